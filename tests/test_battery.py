"""One battery over {base} × {way in} × {distribution}: fast = reference bitwise, level 0 = base, resume = no break."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F

from ssgd import SSGD
from ssgd.reference import Reference

from .problems import BASES, DISTRIBUTIONS, WAYS, mlp, same, take_step, vectors

every_base = pytest.mark.parametrize("base", BASES)
every_way = pytest.mark.parametrize("way", WAYS)
every_distribution = pytest.mark.parametrize("distribution", DISTRIBUTIONS)


@every_base
@every_way
@every_distribution
def test_equals_the_reference(base, way, distribution):
    model, slow_model = mlp(), mlp()
    x, y = vectors(samples=7)  # odd, so that the halves of split differ in size
    opt = SSGD(BASES[base](model.parameters()), 0.3, distribution=distribution, seed=5)
    slow = Reference(
        BASES[base](slow_model.parameters()), 0.3, [slow_model[0].weight, slow_model[2].weight], distribution, seed=5
    )
    for _ in range(10):
        take_step(opt, way, model, x, y)
        if way == "split":
            slow.step(
                lambda: F.cross_entropy(slow_model(x[:4]), y[:4]),
                lambda: F.cross_entropy(slow_model(x[4:]), y[4:]),
                shares=(4 / 7, 3 / 7),
            )
        else:
            slow.step(lambda: F.cross_entropy(slow_model(x), y))
    for fast_p, slow_p in zip(model.parameters(), slow_model.parameters(), strict=True):
        assert torch.equal(fast_p, slow_p)


@pytest.mark.parametrize("pairs", [2, 3])
def test_pairs_equal_the_reference(pairs):
    model, slow_model = mlp(), mlp()
    x, y = vectors()
    opt = SSGD(BASES["nesterov"](model.parameters()), 0.3, pairs=pairs, seed=5)
    layers = [slow_model[0].weight, slow_model[2].weight]
    slow = Reference(BASES["nesterov"](slow_model.parameters()), 0.3, layers, pairs=pairs, seed=5)
    for _ in range(5):
        take_step(opt, "points", model, x, y)
        slow.step(lambda: F.cross_entropy(slow_model(x), y))
    for fast_p, slow_p in zip(model.parameters(), slow_model.parameters(), strict=True):
        assert torch.equal(fast_p, slow_p)


@every_base
@every_distribution
@pytest.mark.parametrize("pairs", [1, 2])
def test_points_and_closure_agree_bitwise(base, distribution, pairs):
    def train(way):
        model = mlp(torch.float32)
        x, y = vectors(dtype=torch.float32)
        opt = SSGD(BASES[base](model.parameters()), 0.3, distribution=distribution, pairs=pairs, seed=5)
        for _ in range(5):
            take_step(opt, way, model, x, y)
        return model

    assert same(train("closure"), train("points"))


@every_base
@every_distribution
def test_split_of_a_batch_and_itself_is_points_bitwise(base, distribution):
    def train(way, *batch):
        model = mlp(torch.float32)
        opt = SSGD(BASES[base](model.parameters()), 0.3, distribution=distribution, seed=5)
        for _ in range(5):
            take_step(opt, way, model, *batch)
        return model

    x, y = vectors(dtype=torch.float32)
    assert same(train("split", torch.cat([x, x]), torch.cat([y, y])), train("points", x, y))


@every_base
@every_way
def test_level_zero_is_the_base_bitwise_and_leaves_the_global_stream_alone(base, way):
    from .problems import convnet, images

    def train(wrapped):
        model = convnet()
        x, y = images(samples=7)
        model(x)  # makes the lazy layer
        opt = BASES[base](model.parameters())
        torch.manual_seed(9)
        if wrapped:
            opt = SSGD(opt, 0.0, model=model, bn_stats="once", rng="same")
        passes = []
        model.register_forward_hook(lambda *_: passes.append(1))
        for _ in range(4):
            take_step(opt, way if wrapped else "plain", model, x, y)
        return list(model.state_dict().values()), torch.get_rng_state(), len(passes)

    plain, plain_stream, plain_passes = train(False)
    ours, our_stream, our_passes = train(True)
    assert same(ours, plain)
    assert torch.equal(our_stream, plain_stream)
    assert our_passes == plain_passes == 4


@every_base
@every_way
def test_resume_is_bitwise(base, way):
    x, y = vectors(dtype=torch.float32)

    def start(seed):
        model = mlp(torch.float32)
        return model, SSGD(BASES[base](model.parameters()), 0.3, seed=seed)

    model, opt = start(seed=5)
    for _ in range(3):
        take_step(opt, way, model, x, y)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    for _ in range(3):
        take_step(opt, way, model, x, y)

    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed, resumed_opt = start(seed=77)
    resumed.load_state_dict(saved["model"])
    resumed_opt.load_state_dict(saved["opt"])
    for _ in range(3):
        take_step(resumed_opt, way, resumed, x, y)
    assert same(resumed, model)


@every_way
def test_copies_go_on_alike(way):
    x, y = vectors(dtype=torch.float32)
    model = mlp(torch.float32)
    opt = SSGD(BASES["adam"](model.parameters()), 0.3, model=model, seed=5)
    take_step(opt, way, model, x, y)
    twin, twin_opt = copy.deepcopy((model, opt))
    file = io.BytesIO()
    torch.save((model, opt), file)
    file.seek(0)
    third, third_opt = torch.load(file, weights_only=False)
    for m, o in ((model, opt), (twin, twin_opt), (third, third_opt)):
        for _ in range(2):
            take_step(o, way, m, x, y)
    assert same(twin, model)
    assert same(third, model)


@every_way
def test_noise_changes_what_is_learned(way):
    """Guards the battery: with noise the result must differ from the base's."""
    x, y = vectors(dtype=torch.float32)
    results = []
    for level in (0.0, 0.3):
        model = mlp(torch.float32)
        opt = SSGD(BASES["sgd"](model.parameters()), level, seed=5)
        take_step(opt, way, model, x, y)
        results.append(model)
    assert not same(*results)
