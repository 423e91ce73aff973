"""Running statistics under each policy, and recomputing them."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from ssgd import SSGD, recompute_bn
from ssgd.methods import RWP, SAM

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
    opt.load_state_dict(opt.state_dict())  # a look, not a step
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


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("passes", torch.zeros(()))

    def forward(self, x):
        self.passes += 1
        return x


@pytest.mark.parametrize("policy", ["once", "first", "none"])
def test_policies_leave_what_other_layers_count(policy):
    model = nn.Sequential(Counting(), *net())
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5, model=model, bn_stats=policy)
    run_passes(opt, "points", model, *images())
    assert model[0].passes == 2


@pytest.mark.parametrize("policy", ["once", "first", "none"])
@pytest.mark.parametrize("kind", [SSGD, SAM])
def test_at_level_zero_statistics_move_as_the_bases_do(policy, kind):
    model, plain = net(), net()
    x, y = images()
    run_passes(kind(SGD(model.parameters(), lr=0.1), 0.0, model=model, bn_stats=policy), "points", model, x, y)
    plain(x)
    assert same(statistics(model), statistics(plain))


def test_policies_reach_methods_with_a_clean_point():
    model = net()
    opt = RWP(SGD(model.parameters(), lr=0.1), 0.5, model=model, bn_stats="none")
    before = statistics(model)
    run_passes(opt, "points", model, *images())
    assert same(statistics(model), before)


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


def test_recompute_bn_leaves_instance_norm_alone():
    net = nn.Sequential(nn.Conv1d(1, 2, 1), nn.InstanceNorm1d(2, track_running_stats=True))
    recompute_bn(net, iter([None]))  # read, it would fail


@pytest.mark.parametrize("layer", [nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)])
def test_recompute_bn_without_statistics_reads_nothing(layer):
    recompute_bn(layer, iter([None]))


def test_recompute_bn_leaves_a_layer_that_does_not_count_its_batches():
    model = net()
    model(images()[0])
    model[1].num_batches_tracked = None  # without momentum it could gather nothing
    before = statistics(model)
    recompute_bn(model, [images()])
    assert same(statistics(model), before)


def test_recompute_bn_moves_batches_to_the_device():
    class Elsewhere:
        def to(self, device):
            return images()[0].to(device)

    model, plain = net(), net()
    recompute_bn(model, [(Elsewhere(), None)], device=torch.device("cpu"))
    recompute_bn(plain, [images()])
    assert same(statistics(model), statistics(plain))


def test_recompute_bn_takes_batches_of_any_kind_with_a_forward():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(2)

        def forward(self, pixels, mask):
            return self.norm(pixels * mask)

    net, x = Named(), torch.randn(6, 2) * 3 + 1
    batches = [{"pixels": x, "mask": torch.ones(6, 1)}]
    with pytest.raises(TypeError, match=r"which failed: give forward=lambda model, batch.*'mask'"):
        recompute_bn(net, batches)
    assert net.norm.num_batches_tracked == 0
    recompute_bn(net, batches, forward=lambda model, batch: model(**batch))
    torch.testing.assert_close(net.norm.running_mean, x.mean(0))
    net.forward = lambda batch: net.norm(batch["pixels"])
    recompute_bn(net, [({"pixels": x + 1}, None)])  # a model that takes a dict
    torch.testing.assert_close(net.norm.running_mean, x.mean(0) + 1)
