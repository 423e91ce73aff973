"""The two passes at the same time leave what they leave one after the other."""

import warnings
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ssgd import SSGD, methods
from ssgd.lab import models
from ssgd.lab.train.kinds import Images, Language
from ssgd.lab.train.steps import BatchCounters, PairStep, Step, can_pair, unchanged


def trained(kind, name, size, steps=4, dropout=False, **options):
    """A net after some steps of that kind, its optimizer and its sums."""
    torch.manual_seed(0)
    net = models.build("small-cnn", 10, 1).to(memory_format=torch.channels_last)
    if dropout:
        net = nn.Sequential(nn.Dropout(0.3), net)
    method = methods.get(name)
    opt = method.build(SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True), net, noise=0.2, seed=3, **options)
    step = kind(method, opt, net, Images.objective, nullcontext, torch.zeros(3))
    numbers = torch.Generator().manual_seed(1)
    for _ in range(steps):
        step(torch.randn(size, 1, 8, 8, generator=numbers), torch.randint(10, (size,), generator=numbers))
    return net, opt, step.sums


@pytest.mark.parametrize("name", ["both", "split"])
@pytest.mark.parametrize("size", [8, 7])
@pytest.mark.parametrize("distribution", ["sphere", "uniform"])
def test_weights_and_momentum_are_bitwise_those_of_passes_in_turn(name, size, distribution):
    (net, opt, sums), (other, other_opt, other_sums) = (
        trained(kind, name, size, distribution=distribution) for kind in (Step, PairStep)
    )
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q)
        assert torch.equal(opt.state[p]["momentum_buffer"], other_opt.state[q]["momentum_buffer"])
    assert torch.equal(sums, other_sums)
    assert opt.param_groups[0]["noise_step"] == other_opt.param_groups[0]["noise_step"] == 4


@pytest.mark.parametrize("name", ["both", "split"])
def test_running_statistics_take_plus_then_minus(name):
    net, other = (trained(kind, name, 8)[0] for kind in (Step, PairStep))
    for a, b in zip(net.buffers(), other.buffers(), strict=True):
        if a.is_floating_point():
            assert torch.allclose(a, b, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(a, b) and a.item() == 8  # two passes in each of four steps


@pytest.mark.parametrize("name", ["both", "split"])
def test_an_lstm_remembers_what_it_does_in_turn(name, monkeypatch):
    """Each pass has a slot of its own for the state in which it ends; weights and state are bitwise those in turn."""
    found, flattened = [], nn.LSTM.flatten_parameters
    for kind in (Step, PairStep):
        torch.manual_seed(0)
        net, method, numbers = models.build("lstm-tiny", 11), methods.get(name), torch.Generator().manual_seed(1)
        net.reset(6)
        opt = method.build(SGD(net.parameters(), lr=0.5, fused=True), net, noise=0.2, seed=3)
        assert can_pair(opt, net)
        step = kind(method, opt, net, Language().objective, nullcontext, torch.zeros(3), clip=1.0)
        with monkeypatch.context() as patch:  # on CUDA this would move weights that a graph reads where they are
            patch.setattr(nn.LSTM, "flatten_parameters", lambda layer: 1 / 0)
            for _ in range(4):
                words = torch.randint(11, (6, 8), generator=numbers)
                step(words[:, :-1], words[:, 1:])
            net.eval()
            net.reset(6)
            net(words)
            net.train()
        assert net.layers[0].flatten_parameters.__func__ is flattened
        found.append([net.carried(), step.sums, *(p.detach() for p in net.parameters())])
        flat = [weight for layer in net.layers for weight in layer._flat_weights]
        assert all(any(weight is p for p in net.parameters()) for weight in flat)  # not those of a pass
        assert not any(layer._weights_have_changed() for layer in net.layers)
    assert found[0][0].abs().sum() > 0
    assert all(map(torch.equal, *found))


def test_dropout_masks_are_those_of_passes_in_turn():
    net, other = (trained(kind, "both", 8, dropout=True)[0] for kind in (Step, PairStep))
    assert all(torch.equal(p, q) for p, q in zip(net.parameters(), other.parameters(), strict=True))


def test_weights_stay_where_they_are_while_both_points_are_held():
    net, opt, _ = trained(Step, "both", 8)
    before = [p.clone() for p in net.parameters()]
    plus, minus = opt.both_points()
    assert all(torch.equal(p, b) for p, b in zip(net.parameters(), before, strict=True))
    for p in opt.selected:
        assert torch.allclose((plus[p] + minus[p]) / 2, p, atol=1e-6)
        assert torch.allclose((plus[p] - p).norm() / p.norm(), torch.tensor(0.2), rtol=1e-4)
        assert plus[p].stride() == p.stride()
    for p in net.parameters():
        p.grad = torch.ones_like(p)
    step = opt.param_groups[0]["noise_step"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        opt.step()
    assert opt.param_groups[0]["noise_step"] == step + 1


@pytest.mark.parametrize("options", [{"bn_stats": "once"}, {"rng": "same"}, {"pairs": 2}, {"noise": 0.0}])
def test_both_points_are_refused_where_one_pass_reaches_into_the_next(options):
    net = nn.Linear(3, 2)
    opt = SSGD(SGD(net.parameters(), lr=0.1), **{"noise": 0.1, "model": net, **options})
    with pytest.raises(ValueError, match=r"both_points\(\) needs .* use points\(\)"):
        opt.both_points()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("base", {}),
        ("sam", {}),
        ("both-x2", {"noise": 0.2}),
        ("both", {"noise": 0.2, "bn_stats": "once"}),
        ("both", {"noise": 0.2, "rng": "same"}),
        ("both", {"noise": 0.0}),
    ],
)
def test_what_cannot_run_at_the_same_time_is_not_paired(name, options):
    net = models.build("small-cnn", 10, 1)
    assert not can_pair(methods.get(name).build(SGD(net.parameters(), lr=0.1), net, **options), net)


def test_a_cumulative_average_is_not_paired():
    net = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, momentum=None))
    assert not can_pair(methods.get("both").build(SGD(net.parameters(), lr=0.1), net), net)
    assert can_pair(methods.get("both").build(SGD(net[:1].parameters(), lr=0.1), net[:1]), net[:1])


def test_of_two_parameters_in_one_place_only_one_would_be_moved():
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    net[1].weight = nn.Parameter(net[0].weight.data)
    assert not can_pair(methods.get("both").build(SGD(net.parameters(), lr=0.1), net), net)


class Partly(nn.Module):
    """A layer that no pass uses, and one that every other pass does."""

    def __init__(self):
        super().__init__()
        self.body, self.never, self.sometimes = nn.Linear(64, 10), nn.Linear(64, 2), nn.Linear(64, 10)
        self.passes = 0

    def forward(self, x):
        self.passes += 1
        x = x.flatten(1)
        return self.body(x) + (self.sometimes(x) if self.passes % 2 else 0)


@pytest.mark.parametrize("name", ["both", "split"])
def test_layers_that_a_pass_does_not_use(name):
    found = []
    for kind in (Step, PairStep):
        torch.manual_seed(0)
        net, method = Partly(), methods.get(name)
        opt = method.build(SGD(net.parameters(), lr=0.1, weight_decay=0.1), net, noise=0.2, seed=3)
        step = kind(method, opt, net, Images.objective, nullcontext, torch.zeros(3))
        for _ in range(3):
            step(torch.randn(8, 1, 8, 8), torch.randint(10, (8,)))
        found.append([p.detach().clone() for p in net.parameters()])
    assert all(map(torch.equal, *found))


def test_steps_inside_unchanged_leave_no_trace():
    net, opt, sums = trained(Step, "both", 8)
    method = methods.get("both")
    step = Step(method, opt, net, Images.objective, nullcontext, sums)
    tensors = [*net.parameters(), *net.buffers(), sums, *(s["momentum_buffer"] for s in opt.state.values())]
    before, counter = [t.clone() for t in tensors], opt.param_groups[0]["noise_step"]
    x, y = torch.randn(8, 1, 8, 8), torch.randint(10, (8,))
    with unchanged(net, opt, sums):
        step(x, y)
        assert not torch.equal(tensors[0], before[0])
    assert all(torch.equal(t, b) for t, b in zip(tensors, before, strict=True))
    assert opt.param_groups[0]["noise_step"] == counter
    assert all(p.grad is None for p in net.parameters())


def test_a_step_that_fails_inside_unchanged_leaves_no_trace(monkeypatch):
    """As in a capture that is refused in the middle: the run steps on eagerly, with the noise it would have had."""
    net, opt, sums = trained(Step, "both", 8)
    step = Step(methods.get("both"), opt, net, Images.objective, nullcontext, sums)
    batch = torch.randn(8, 1, 8, 8), torch.randint(10, (8,))
    before = [p.clone() for p in net.parameters()]
    monkeypatch.setattr(opt.base, "step", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError), unchanged(net, opt, sums):
        step(*batch)
    assert opt.param_groups[0]["noise_step"] == 4
    assert all(torch.equal(p, b) and p.grad is None for p, b in zip(net.parameters(), before, strict=True))


@pytest.mark.parametrize("fails", [False, True])
def test_the_minus_pass_is_forked_before_the_plus_pass_and_joined_after_it(monkeypatch, fails):
    done = []

    class Stream:
        def __init__(self, name):
            self.name = name

        def wait_stream(self, other):
            done.append(f"{self.name} waits for {other.name}")

    def objective(*arguments):
        done.append(f"pass on {current[-1].name}")
        if fails and len(current) == 2:
            raise ZeroDivisionError
        return Images.objective(*arguments)

    @contextmanager
    def on(stream):
        current.append(stream)
        try:
            yield
        finally:
            current.pop()

    net, opt, sums = trained(Step, "both", 8)
    current, side = [Stream("run")], Stream("side")
    monkeypatch.setattr("torch.cuda.current_stream", lambda: current[-1])
    monkeypatch.setattr("torch.cuda.stream", on)
    step = PairStep(methods.get("both"), opt, net, objective, nullcontext, sums, side=side)
    with pytest.raises(ZeroDivisionError) if fails else nullcontext():
        step(torch.randn(8, 1, 8, 8), torch.randint(10, (8,)))
    assert done[:4] == ["side waits for run", "pass on run", "pass on side", "run waits for side"]


def test_counters_advance_by_what_they_are_told():
    net = models.build("small-cnn", 10, 1)
    counters = BatchCounters(net)
    with counters.held():
        net(torch.randn(2, 1, 8, 8))
    assert all(m.num_batches_tracked.item() == 0 for m in net.modules() if isinstance(m, nn.BatchNorm2d))
    counters.add(3)
    assert all(m.num_batches_tracked.item() == 3 for m in net.modules() if isinstance(m, nn.BatchNorm2d))
    assert any("num_batches_tracked" in key for key in net.state_dict())
