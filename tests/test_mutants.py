"""What a small slip in the core would break, where nothing else would show it."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD
from torch.utils._python_dispatch import TorchDispatchMode

from ssgd import SSGD
from ssgd.methods import NSO, RWP, SAM

from .problems import mlp, run_passes, same, vectors, weights


@pytest.mark.parametrize("pairs", [1, 2, 3])
def test_once_is_the_mean_of_the_statistics_of_all_passes(pairs):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5, model=model, bn_stats="once", pairs=pairs, seed=1)
    x, y = vectors()
    alone = []
    for point in opt.points():
        with point:
            twin = copy.deepcopy(model)
            twin(x)
            alone.append(twin[1])
            F.cross_entropy(model(x), y).backward()
    assert len(alone) == 2 * pairs
    for name in ("running_mean", "running_var"):
        expected = torch.stack([getattr(norm, name) for norm in alone]).mean(0)
        torch.testing.assert_close(getattr(model[1], name), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("policy", ["once", "first", "none"])
def test_policies_reach_every_layer_that_keeps_statistics(policy):
    """Instance norm is no batch norm, and may keep statistics too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv1d(1, 2, 1), nn.InstanceNorm1d(2, track_running_stats=True)).double()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5, model=model, bn_stats=policy)
    x = vectors()[0][:, None]
    before, alone = model[1].running_mean.clone(), []
    for point in opt.points():
        with point:
            twin = copy.deepcopy(model)
            twin(x)
            alone.append(twin[1].running_mean)
            model(x).square().mean().backward()
    expected = {"once": (alone[0] + alone[1]) / 2, "first": alone[0], "none": before}[policy]
    torch.testing.assert_close(model[1].running_mean, expected, rtol=1e-12, atol=0)


class InterruptAt(TorchDispatchMode):
    """Ctrl-C during the n-th operation."""

    def __init__(self, number):
        super().__init__()
        self.left = number

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("when", ["enter", "leave"])
@pytest.mark.parametrize("index", [0, 1])
@pytest.mark.parametrize("kind", [SSGD, NSO, RWP, SAM])
def test_ctrl_c_on_entering_or_leaving_a_point_leaves_clean_weights_while_the_iterator_is_held(kind, index, when):
    x, y = vectors()
    number, interrupted = 0, True
    while interrupted:
        number += 1
        model = mlp()
        opt = kind(SGD(model.parameters(), lr=0.1), 0.5)
        before = weights(model)
        points = opt.points()
        try:
            for _ in range(index):
                with next(points):
                    F.cross_entropy(model(x), y).backward()
            point = next(points)
            with InterruptAt(number if when == "enter" else 0):
                point.__enter__()
            F.cross_entropy(model(x), y).backward()
            with InterruptAt(number if when == "leave" else 0):
                point.__exit__(None, None, None)
            interrupted = False
        except KeyboardInterrupt:
            assert same(model, before), f"operation {number}"
            with pytest.raises(RuntimeError, match="cut the batch short"):
                opt.step()
            run_passes(opt, "points", model, x, y)  # and the next batch is taken
            opt.step()
            assert not same(model, before)
    assert number > 1 or (kind in (RWP, SAM) and index == 0)  # their first point is w itself


@pytest.mark.parametrize("left", ["begun", "complete", "cut short"])
@pytest.mark.parametrize("cleared", [False, True])
def test_a_checkpoint_loaded_over_an_open_batch_goes_on_with_its_own_noise(left, cleared):
    def noise(model, opt):
        for point in opt.points():
            with point:
                found = weights(model)
                break
        return found

    model, twin = mlp(), mlp()
    opt, fresh = (SSGD(SGD(m.parameters(), lr=0.1), 0.3, seed=1) for m in (model, twin))
    saved = opt.state_dict()
    fresh.load_state_dict(copy.deepcopy(saved))
    points = opt.points()
    if left == "begun":
        next(points)
    elif left == "complete":
        for point in points:
            with point:
                F.cross_entropy(model(vectors()[0]), vectors()[1]).backward()
    else:
        with pytest.raises(KeyboardInterrupt), next(points):
            raise KeyboardInterrupt
    opt.load_state_dict(copy.deepcopy(saved))
    if cleared:
        opt.zero_grad()
    assert same(noise(model, opt), noise(twin, fresh))


@pytest.mark.parametrize("left", ["begun", "begun, accumulating", "complete"])
def test_an_old_iterator_dropped_inside_a_new_point_moves_nothing(left):
    model = mlp()
    x, y = vectors()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.3)
    before = weights(model)
    if left == "begun, accumulating":
        run_passes(opt, "points", model, x, y)
    old = opt.points()
    point = next(old)
    if left == "complete":
        with point:
            F.cross_entropy(model(x), y).backward()
        with next(old):
            F.cross_entropy(model(x), y).backward()
    seen = []
    for point in opt.points():
        with point:
            moved = weights(model)
            old = None
            assert same(model, moved) and not same(model, before)
            seen.append(moved)
            F.cross_entropy(model(x), y).backward()
    torch.testing.assert_close(seen[1], [2 * w - p for w, p in zip(before, seen[0], strict=True)], rtol=0, atol=1e-14)
    opt.step()


def test_a_parameter_moved_to_another_group_has_that_groups_level():
    model = mlp()
    first, last = model[0].weight, model[2].weight
    groups = [{"params": [first, last], "noise": 0.1}, {"params": [model[2].bias], "noise": 0.3}]
    opt = SSGD(SGD(groups, lr=0.1), 0.1)

    def levels():
        before = [first.detach().clone(), last.detach().clone()]
        for point in opt.points():
            with point:
                found = [((p - w).norm() / w.norm()).item() for p, w in zip((first, last), before, strict=True)]
        opt.zero_grad()
        return found

    assert levels() == pytest.approx([0.1, 0.1])
    opt.param_groups[1]["params"].append(opt.param_groups[0]["params"].pop())
    assert levels() == pytest.approx([0.1, 0.3])
