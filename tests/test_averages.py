"""SWA and EMA."""

import copy
import math
import pickle

import pytest
import torch
from torch.optim import SGD

from ssgd import recompute_bn
from ssgd.methods import Averaging

from .problems import convnet, images, mlp, same, take_step, vectors, weights
from .rivals import take


@pytest.mark.parametrize("kind", ["swa", "ema"])
def test_averages(kind):
    model, (x, y) = mlp(), vectors()
    opt = Averaging(SGD(model.parameters(), lr=0.5), model=model, kind=kind, decay=0.9, start=2, every=3)
    kept = []
    for i in range(9):
        take(opt, model, x, y)
        opt.step()
        opt.zero_grad()
        if i in (2, 5, 8):
            kept.append(weights(model))
    for i, average in enumerate(opt.averaged.module.parameters()):
        a, b, c = (k[i] for k in kept)
        expected = (a + b + c) / 3 if kind == "swa" else 0.9 * (0.9 * a + 0.1 * b) + 0.1 * c
        torch.testing.assert_close(average, expected)


@pytest.mark.parametrize("kind", ["swa", "ema"])
def test_an_average_starts_anew_after_a_checkpoint_without_one_and_can_be_pickled(kind):
    model = mlp()
    x, y = vectors()
    opt = Averaging(SGD(model.parameters(), lr=0.5), model=model, kind=kind, decay=0.9)
    alone = opt.base.state_dict()
    for _ in range(3):
        take_step(opt, "points", model, x, y)
        opt.zero_grad()
    copied = pickle.loads(pickle.dumps(opt))
    assert copied.steps == 3 and same(copied.averaged, weights(opt.averaged))
    opt.load_state_dict(alone)
    take_step(opt, "points", model, x, y)
    assert opt.steps == 1 and same(opt.averaged.module, weights(model))


def test_an_average_goes_on_counting_from_its_checkpoint():
    model, (x, y) = mlp(), vectors()
    opt = Averaging(SGD(model.parameters(), lr=0.5), model=model, start=1, every=2)
    take_step(opt, "points", model, x, y)
    saved = copy.deepcopy(opt.state_dict())
    again = Averaging(SGD(model.parameters(), lr=0.5), model=model, start=1, every=2)
    again.load_state_dict(saved)
    take_step(again, "points", model, x, y)
    assert again.steps == 2 and again.averaged.n_averaged == 1


def test_an_average_begins_after_its_start():
    model, (x, y) = mlp(), vectors()
    opt = Averaging(SGD(model.parameters(), lr=0.5), model=model, start=2)
    for expected in (0, 0, 1, 2):
        take_step(opt, "points", model, x, y)
        assert opt.averaged.n_averaged == expected


def test_a_step_that_was_not_taken_does_not_enter_the_average():
    model, (x, y) = mlp(), vectors()
    opt = Averaging(SGD(model.parameters(), lr=0.5), model=model, nonfinite="skip")
    take_step(opt, "points", model, x, y)
    x[0, 0] = math.nan
    take_step(opt, "points", model, x, y)
    assert opt.steps == opt.averaged.n_averaged == 1


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"kind": "mean"}, "kind must be 'swa' or 'ema', not 'mean'"),
        ({"decay": 1.0}, r"decay must be in \[0, 1\).*not 1.0, 0, 1"),
        ({"start": -1}, "not 0.999, -1, 1"),
        ({"every": 0}, "not 0.999, 0, 0"),
    ],
)
def test_averages_of_another_kind_are_refused(options, sentence):
    model = mlp()
    with pytest.raises(ValueError, match=sentence):
        Averaging(SGD(model.parameters(), lr=0.5), model=model, **options)


def test_an_average_gets_its_own_batch_norm_statistics():
    model = convnet()
    x, y = images()
    model(x)
    opt = Averaging(SGD(model.parameters(), lr=0.5), model=model)
    for _ in range(3):
        take(opt, model, x, y)
        opt.step()
        opt.zero_grad()
    recompute_bn(opt.averaged.module, [(x, y)])
    with torch.no_grad():
        h = opt.averaged.module[0](x)
    torch.testing.assert_close(opt.averaged.module[1].running_mean, h.mean((0, 2, 3)))
