"""Compiled models: the weights move under them without a recompilation."""

import pytest
import torch
from torch.optim import SGD

from ssgd import SSGD

from .problems import WAYS, convnet, images, mlp, take_step, vectors


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("policy", ["both", "once"])
def test_no_recompilation_on_the_second_step(way, policy):
    model = convnet()
    x, y = images()
    model(x)
    compiled = torch.compile(model, backend="aot_eager")
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.3, model=compiled, bn_stats=policy)
    take_step(opt, way, compiled, x, y)
    assert torch._dynamo.utils.counters["frames"]["ok"] > 0
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            take_step(opt, way, compiled, x, y)


@pytest.mark.parametrize("way", WAYS)
def test_a_compiled_model_sees_the_noise(way):
    x, y = vectors()
    results = []
    for compiled in (False, True):
        model = mlp()
        run = torch.compile(model, backend="aot_eager") if compiled else model
        opt = SSGD(SGD(model.parameters(), lr=0.1), 0.3, seed=1)
        for _ in range(3):
            take_step(opt, way, run, x, y)
        results.append(model)
    for p, q in zip(*(m.parameters() for m in results), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-10, atol=1e-12)
