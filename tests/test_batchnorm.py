"""Running statistics under each policy, and recomputing them."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from ssgd import SSGD, recompute_bn

from .problems import images, run_passes, same


def net(momentum=0.1, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4, momentum=momentum), nn.Flatten(), nn.Linear(100, 3))


def statistics(model):
    return [b.clone() for b in model.buffers()]


def passes_by_hand(model, opt, way, x):
    """The statistics one plain forward pass leaves at each point, each starting from the same ones."""
    start, found = statistics(model), []
    halves = (x[:4], x[4:]) if way == "split" else (x, x)
    for point in opt.points():
        with point:
            twin = copy.deepcopy(model)
            for b, s in zip(twin.buffers(), start, strict=True):
                b.copy_(s)
            twin(halves[point.index])
            found.append(statistics(twin))
    opt._walk = None  # a look, not a step
    return start, found


@pytest.mark.parametrize("way", ["points", "split", "closure"])
@pytest.mark.parametrize("policy", ["both", "once", "first", "none"])
@pytest.mark.parametrize("momentum", [0.1, None])
def test_policies(way, policy, momentum):
    model = net(momentum)
    x, y = images(samples=8)
    model(x)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5, model=model, bn_stats=policy, seed=1)
    probe = copy.deepcopy((model, opt))
    start, (plus, minus) = passes_by_hand(*probe, way, x)
    if way == "closure":

        def closure():
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        opt.step(closure)
    else:
        run_passes(opt, way, model, x, y)
    seen = statistics(model)
    if policy == "none":
        assert same(seen, start)
    elif policy == "first":
        assert same(seen, plus)
    elif policy == "once":
        for s, p, m in zip(seen, plus, minus, strict=True):
            torch.testing.assert_close(s, (p + m) / 2 if p.is_floating_point() else p)
    else:
        assert not same(seen, plus) and not same(seen, start)
        if momentum is not None:  # (1−m)((1−m)r + m b₊) + m b₋, with m b = after − (1−m) r
            for s, r, p, m in zip(seen, start, plus, minus, strict=True):
                if s.is_floating_point():
                    torch.testing.assert_close(s, 0.9 * p + (m - 0.9 * r))


@pytest.mark.parametrize("policy", ["once", "first", "none"])
def test_an_exception_puts_statistics_back(policy):
    model = net()
    x, _ = images()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5, model=model, bn_stats=policy)
    before = statistics(model)
    with pytest.raises(ValueError, match="inside"):
        for point in opt.points():
            with point:
                model(x)
                if point.sign < 0:
                    raise ValueError("inside")
    assert same(statistics(model), before)


@pytest.mark.parametrize("policy", ["once", "first", "none"])
def test_policies_leave_no_trace_in_the_modules(policy):
    """Idempotent: momentum and mode are as before, and a second step does what a first one does."""
    model = net()
    x, y = images()
    opt = SSGD(SGD(model.parameters(), lr=0.0), 0.5, model=model, bn_stats=policy)
    for _ in range(2):
        run_passes(opt, "points", model, x, y)
        opt.zero_grad()
        assert model[1].momentum == 0.1 and model[1].training and model[1].track_running_stats
    assert model[1].num_batches_tracked == (0 if policy == "none" else 2)


def test_policies_need_the_model():
    with pytest.raises(ValueError, match="bn_stats='once' needs the model: pass model="):
        SSGD(SGD(net().parameters(), lr=0.1), 0.5, bn_stats="once")


def test_recompute_bn_gathers_the_clean_weights_statistics():
    model = net()
    loader = [images(samples=8, seed=s) for s in range(3)]
    with torch.no_grad():
        h = model[0](torch.cat([x for x, _ in loader]))
    model.eval()
    recompute_bn(model, loader)
    torch.testing.assert_close(model[1].running_mean, h.mean((0, 2, 3)))
    assert not model.training and not model[1].training and model[1].momentum == 0.1


def test_recompute_bn_that_fails_changes_nothing():
    model = net()
    model(images()[0])
    before = statistics(model)
    with pytest.raises(ValueError, match="a loader without batches"):
        recompute_bn(model, [])

    def breaks():
        yield images()
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        recompute_bn(model, breaks())
    assert same(statistics(model), before)
    assert model.training and model[1].momentum == 0.1


def test_recompute_bn_without_batch_norm_reads_nothing():
    recompute_bn(nn.Linear(2, 2), iter([None]))
