"""Losses, realised ratios and the symmetric excess."""

import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD

from ssgd import SSGD

from .problems import WAYS, convnet, images, mlp, run_passes, same, take_step, vectors, weights


@pytest.mark.parametrize("way", WAYS)
def test_losses_at_both_points(way):
    model = mlp()
    x, y = vectors()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    returned = take_step(opt, way, model, x, y)
    assert len(opt.losses) == 2 and not any(loss.requires_grad for loss in opt.losses)
    assert opt.losses[0] != opt.losses[1]
    if way == "closure":
        torch.testing.assert_close(returned, (opt.losses[0] + opt.losses[1]) / 2)
        assert not returned.requires_grad
    else:
        assert returned is None


def test_a_closure_may_return_a_number():
    model = mlp()
    x, y = vectors()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)

    def closure():
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss.item()

    assert isinstance(opt.step(closure), float)


@pytest.mark.parametrize("way", ["points", "split"])
def test_realised_ratios_inside_and_outside_a_point(way):
    model = mlp()
    x, y = vectors()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5, distribution="uniform")
    before = weights(model)
    outside = opt.realised_ratios()
    assert same(model, before)
    for point, *_ in opt.split(x, y) if way == "split" else ((p,) for p in opt.points()):
        with point:
            inside = opt.realised_ratios()
            torch.testing.assert_close(torch.stack(inside), torch.stack(outside))
            actual = (model[0].weight - before[0]).norm() / before[0].norm()
            torch.testing.assert_close(inside[0], actual)
    assert len(inside) == len(opt.selected) == 2


def test_a_layer_of_zeros_has_the_ratio_zero():
    w, zero = torch.ones(3, 3, requires_grad=True), torch.zeros(2, 2, requires_grad=True)
    assert [float(ratio) for ratio in SSGD(SGD([w, zero], lr=0.1), 0.5).realised_ratios()] == [pytest.approx(0.5), 0]


@pytest.mark.parametrize("look", [SSGD.realised_ratios, lambda opt: opt.symmetric_excess(lambda: 0.0)])
@pytest.mark.parametrize("accumulating", [False, True])
def test_a_look_inside_a_look_is_refused_and_the_weights_return(look, accumulating):
    model = mlp()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    if accumulating:
        run_passes(opt, "points", model, *vectors())
    before = weights(model)
    with pytest.raises(RuntimeError, match=r"inside the loss of symmetric_excess\(\) would see perturbed weights"):
        opt.symmetric_excess(lambda: look(opt))
    assert same(model, before)


@pytest.mark.parametrize("look", [SSGD.realised_ratios, lambda opt: opt.symmetric_excess(lambda: 0.0)])
def test_a_look_between_the_points_is_refused(look):
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.0), 0.2)
    before, moved = weights(model), []
    for point in opt.points():
        with point:
            F.cross_entropy(model(x), y).backward()
            moved.append([p - b for p, b in zip(weights(model), before, strict=True)])
        if point.index == 0:
            with pytest.raises(RuntimeError, match="between two points would change the noise"):
                look(opt)
    for plus, minus in zip(*moved, strict=True):
        torch.testing.assert_close(plus, -minus)
    look(opt)


def test_each_pass_of_the_excess_begins_with_the_same_statistics():
    model, seen = convnet(), []
    model(images()[0])
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5, model=model)

    def loss():
        seen.append(model[1].running_mean.clone())
        return model(images()[0]).sum()

    opt.symmetric_excess(loss)
    assert len(seen) == 3 and torch.equal(seen[0], seen[1]) and torch.equal(seen[0], seen[2])


def test_the_excess_is_positive_at_a_minimum_and_moves_nothing():
    model = mlp()
    x, y = vectors()
    opt = SSGD(SGD(model.parameters(), lr=0.5), 0.0)
    for _ in range(300):
        take_step(opt, "points", model, x, y)
    opt.zero_grad()
    opt.param_groups[0]["noise"] = 0.2
    before = weights(model)
    assert opt.symmetric_excess(lambda: F.cross_entropy(model(x), y)) > 0
    assert same(model, before) and all(p.grad is None for p in model.parameters())
