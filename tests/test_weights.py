"""Weights return bit for bit, whatever happens inside a point."""

import linecache
import math
import sys
import warnings
from collections import Counter
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.optim import SGD, AdamW
from torch.testing._internal.two_tensor import TwoTensor

import ssgd
from ssgd import SSGD
from ssgd.methods.entropy_sgd import EntropySGD
from ssgd.methods.nso import NSO
from ssgd.methods.one_sided import OneSided
from ssgd.methods.rwp import RWP
from ssgd.methods.sam import SAM

from .problems import WAYS, mlp, run_passes, same, take_step, vectors, weights

PACKAGE = ssgd.__path__[0]


def passes(opt, way, x, y):
    """(point, its batch), by points() or split()."""
    return opt.split(x, y) if way == "split" else ((point, (x, y)) for point in opt.points())


@pytest.mark.parametrize("way", ["points", "split"])
@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, torch.OutOfMemoryError])
@pytest.mark.parametrize("at", [1, -1])
def test_an_exception_restores_and_the_batch_can_be_skipped(way, error, at):
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1, momentum=0.9), 0.5, seed=1)
    take_step(opt, way, model, x, y)
    opt.zero_grad()
    before = weights(model)
    with pytest.raises(error):
        for point, (xb, yb) in passes(opt, way, x, y):
            with point:
                F.cross_entropy(model(xb), yb).backward()
                if point.sign == at:
                    assert not same(model, before)
                    raise error("inside")
    assert same(model, before)
    assert all(p.grad is None for p in model.parameters())
    with pytest.raises(RuntimeError, match=r"cut the batch short.*skip this step"):
        opt.step()
    assert same(model, before)
    take_step(opt, way, model, x, y)
    assert not same(model, before)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("call", [1, 2])
def test_an_exception_in_a_closure_restores(error, call):
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    before = weights(model)
    calls = []

    def closure():
        opt.zero_grad()
        calls.append(1)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if len(calls) == call:
            raise error("inside")
        return loss

    with pytest.raises(error):
        opt.step(closure)
    assert same(model, before)
    calls += [1] * 5
    opt.step(closure)
    assert not same(model, before)


class InterruptAt:
    """Raises KeyboardInterrupt on the n-th line that runs inside the package, as Ctrl-C could.

    Of a line that runs again and again only the first ``most`` runs count.
    """

    def __init__(self, line, most=math.inf):
        self.line, self.most, self.runs, self.seen, self.where = line, most, Counter(), 0, ""

    def __call__(self, frame, event, arg):
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        if event == "line":
            place = frame.f_code.co_filename, frame.f_lineno
            self.runs[place] += 1
            self.seen += self.runs[place] <= self.most
            if self.seen == self.line:
                self.where = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
                raise KeyboardInterrupt
        return self


@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_on_any_line_leaves_clean_weights(way):
    """Every line of the package that a step runs is interrupted once; w must be what it was, or the step's result."""
    x, y = vectors(samples=4, dtype=torch.float32)

    def start():
        model = mlp(torch.float32)
        return model, SSGD(SGD(model.parameters(), lr=0.1), 0.5, seed=1)

    model, opt = start()
    before = weights(model)
    take_step(opt, way, model, x, y)
    after = weights(model)
    line, interrupted = 0, True
    while interrupted:
        line += 1
        model, opt = start()
        tracer = InterruptAt(line)
        sys.settrace(tracer)
        try:
            take_step(opt, way, model, x, y)
            interrupted = False
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(None)
        assert same(model, before) or same(model, after), f"line {line}: {tracer.where}"
        if interrupted and line % 10 == 0:  # and the optimizer can go on
            opt.zero_grad()
            take_step(opt, way, model, x, y)
            assert not same(model, before)
    assert line > 200


@pytest.mark.parametrize("op", ["norm", "add_", "mul_", "sub_", "copy_"])
@pytest.mark.parametrize("call", [1, 2])
def test_a_failing_operation_leaves_clean_weights(monkeypatch, op, call):
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1, foreach=False), 0.5, pairs=2)
    before = weights(model)
    real, calls = getattr(torch, f"_foreach_{op}"), []

    def failing(*args, **kwargs):
        calls.append(1)
        if len(calls) == call:
            raise torch.OutOfMemoryError(f"{op}, call {call}")
        return real(*args, **kwargs)

    monkeypatch.setattr(torch, f"_foreach_{op}", failing)
    with pytest.raises(torch.OutOfMemoryError):
        run_passes(opt, "points", model, x, y)
    assert same(model, before)


def test_weights_are_clean_between_the_points_and_after():
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5, pairs=2)
    before = weights(model)
    for point in opt.points():
        assert same(model, before)
        with point:
            assert not same(model, before)
            F.cross_entropy(model(x), y).backward()
        assert same(model, before)


@pytest.mark.parametrize("way", ["points", "split"])
def test_breaking_out_of_the_loop_leaves_clean_weights_and_no_step(way):
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    before = weights(model)
    for point, (xb, yb) in passes(opt, way, x, y):
        with point:
            F.cross_entropy(model(xb), yb).backward()
        break
    assert same(model, before)
    with pytest.raises(RuntimeError, match="after 1 of 2 points"):
        opt.step()
    with pytest.raises(RuntimeError, match="left after 1 of 2 points: call zero_grad"):
        run_passes(opt, way, model, x, y)
    assert same(model, before)
    opt.zero_grad()
    run_passes(opt, way, model, x, y)
    opt.step()
    assert not same(model, before)


def test_weights_stay_in_their_storage():
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    places = [p.data_ptr() for p in model.parameters()]
    for point in opt.points():
        with point:
            assert [p.data_ptr() for p in model.parameters()] == places
            F.cross_entropy(model(x), y).backward()
    opt.step()
    assert [p.data_ptr() for p in model.parameters()] == places


@pytest.mark.parametrize("way", ["points", "split"])
@pytest.mark.parametrize("last", [False, True])
def test_a_backward_after_its_point_raises(way, last):
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    before = weights(model)
    with pytest.raises(RuntimeError, match="no gradient came inside" if last else "modified by an inplace operation"):
        for point, (xb, yb) in passes(opt, way, x, y):
            with point:
                loss = F.cross_entropy(model(xb), yb)
                if last and point.sign > 0:
                    loss.backward()
            if not last or point.sign < 0:
                loss.backward()
    assert same(model, before)


@pytest.mark.parametrize("way", ["points", "split"])
def test_a_late_backward_that_autograd_cannot_see_raises_at_the_next_point(way):
    """A single linear layer saves only its input, so autograd has no changed tensor to complain about."""
    model = nn.Linear(5, 3)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    with pytest.raises(RuntimeError, match=r"after its point was left, .* call backward\(\) inside"):
        for point, (xb, yb) in passes(opt, way, x, y):
            with point:
                loss = F.cross_entropy(model(xb), yb)
            loss.backward()


@pytest.mark.parametrize("way", ["points", "split"])
def test_a_last_pass_without_its_backward_raises_where_autograd_would_not(way):
    model = nn.Linear(5, 3)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    before = weights(model)
    with pytest.raises(RuntimeError, match=r"no gradient came inside the last point: call backward\(\) inside"):
        for point, (xb, yb) in passes(opt, way, x, y):
            with point:
                loss = F.cross_entropy(model(xb), yb)
                if point.sign > 0:
                    loss.backward()
            if point.sign < 0:
                loss.backward()
    assert same(model, before)


def test_a_pass_before_the_last_may_do_without_its_backward():
    """As where its loss is found not to be finite."""
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5, pairs=2)
    before = weights(model)
    for point in opt.points():
        with point:
            loss = F.cross_entropy(model(x), y)
            if point.index != 1:
                loss.backward()
    opt.step()
    assert not same(model, before)


def test_it_raises_with_clean_weights_while_the_iterator_is_held():
    model = nn.Linear(5, 3)
    x, y = vectors(dtype=torch.float32)
    points = SSGD(SGD(model.parameters(), lr=0.1), 0.5).points()
    before = weights(model)
    with next(points):
        F.cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match="no gradient came inside the last point"), next(points):
        model(x)
    assert same(model, before)


def test_a_batch_without_a_backward_is_passed_over_where_others_have_one():
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    run_passes(opt, "points", model, x, y)
    before = weights(model)
    for point in opt.points():
        with point:
            F.cross_entropy(model(x), y)
    opt.step()
    assert not same(model, before)


@pytest.mark.parametrize("way", ["points", "split"])
@pytest.mark.parametrize("then", ["step", "next batch"])
def test_losses_run_backward_together_after_the_loop_are_refused(way, then):
    """Of a frozen body's head, as in fine-tuning, backward needs no weight that has moved."""
    model = nn.Sequential(nn.Linear(5, 4).requires_grad_(False), nn.Tanh(), nn.Linear(4, 3))
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model[2].parameters(), lr=0.1), 0.5)
    before, losses = weights(model), []
    for point, (xb, yb) in passes(opt, way, x, y):
        with point:
            losses.append(F.cross_entropy(model(xb), yb))
    sum(losses).backward()
    with pytest.raises(RuntimeError, match=r"after its point was left, .* call backward\(\) inside"):
        opt.step() if then == "step" else next(iter(opt.points()))
    assert same(model, before)
    opt.zero_grad()
    for point in opt.points():
        with point:
            F.cross_entropy(model(x), y).backward()
    opt.step()
    assert not same(model, before)


@pytest.mark.parametrize("level", [0.0, 0.5])
def test_of_a_single_point_too_unless_it_is_w(level):
    model = nn.Linear(5, 3)
    x, y = vectors(dtype=torch.float32)
    opt = OneSided(SGD(model.parameters(), lr=0.1), level)
    for point in opt.points():
        with point:
            loss = F.cross_entropy(model(x), y)
    loss.backward()
    with nullcontext() if level == 0 else pytest.raises(RuntimeError, match="after its point was left"):
        opt.step()


def test_a_point_can_be_taken_once_and_in_order():
    opt = SSGD(SGD(mlp().parameters(), lr=0.1), 0.5)
    kept = []
    for point in opt.points():
        with point:
            kept.append(point)
    with pytest.raises(RuntimeError, match="this point is over"), kept[0]:
        pass
    with pytest.raises(RuntimeError, match="wrap the passes in `with point:`"):
        list(opt.points())
    with pytest.raises(RuntimeError, match="wrap the passes in `with point:`"):
        list(OneSided(SGD(mlp().parameters(), lr=0.1), 0.5).points())


def test_a_distribution_that_fails_half_way_leaves_clean_weights_while_the_iterator_is_held():
    def fails(z, generator):
        z.normal_(generator=generator)
        if z.dtype is torch.float64:
            raise MemoryError

    parameters = [nn.Parameter(torch.ones(2, 2, dtype=kind)) for kind in (torch.float32, torch.float64)]
    points = SSGD(SGD(parameters, lr=0.1), 0.5, distribution=fails).points()
    with pytest.raises(MemoryError):
        next(points).__enter__()
    assert all((p == 1).all() for p in parameters)


def test_a_point_that_failed_cannot_be_entered_again():
    model = mlp(torch.float32)
    point = next(SSGD(SGD(model.parameters(), lr=0.1), 0.5).points())
    before = weights(model)
    with pytest.raises(MemoryError), point:
        raise MemoryError
    with pytest.raises(RuntimeError, match="this point is over"), point:
        pass
    assert same(model, before)


def test_tied_weights_move_once():
    emb = nn.Embedding(7, 4)
    out = nn.Linear(4, 7, bias=False)
    out.weight = nn.Parameter(emb.weight.data)  # another Parameter on the same memory
    transposed = nn.Parameter(emb.weight.data.t())
    opt = SSGD(SGD([emb.weight, out.weight, transposed], lr=0.1), 0.5)
    before = emb.weight.detach().clone()
    for point in opt.points():
        with point:
            torch.testing.assert_close((emb.weight - before).norm(), 0.5 * before.norm())
    assert torch.equal(emb.weight, before)


def test_weights_that_overlap_in_part_are_refused():
    storage = torch.randn(10, 4)
    a, b = nn.Parameter(storage[:6]), nn.Parameter(storage[4:])
    opt = SSGD(SGD([a, b], lr=0.1), 0.5)
    with pytest.raises(ValueError, match="overlap or interleave in memory"):
        next(opt.points())


@pytest.mark.parametrize("second", [lambda s: s[19:23].view(2, 2), lambda s: s.view(10, 4)[1:5, 2:]])
def test_weights_that_overlap_by_one_element_or_interleave_are_refused(second):
    storage = torch.randn(40)
    first = storage[:20].view(5, 4) if second(storage).is_contiguous() else storage.view(10, 4)[1:5, :2]
    opt = SSGD(SGD([nn.Parameter(first), nn.Parameter(second(storage))], lr=0.1), 0.5)
    with pytest.raises(ValueError, match="overlap or interleave in memory"):
        next(opt.points())


def test_weights_side_by_side_in_one_memory_are_two():
    storage = torch.randn(40)
    parameters = [nn.Parameter(part.view(4, 5)) for part in storage.split(20)]
    assert len(SSGD(SGD(parameters, lr=0.1), 0.5).realised_ratios()) == 2


def test_weights_whose_values_lie_in_tensors_inside_them_are_each_their_own():
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False), nn.Linear(3, 4, bias=False))
    for layer in model:
        weight = layer.weight.detach()
        layer.weight = nn.Parameter(TwoTensor(weight, weight.clone()))
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.3)
    before = [p.detach().clone() for p in model.parameters()]
    for point in opt.points():
        with point:
            moved = [(p - w).a.norm() / w.a.norm() for p, w in zip(model.parameters(), before, strict=True)]
            torch.testing.assert_close(torch.stack(moved), torch.full((3,), 0.3))
            model(torch.ones(2, 3)).sum().backward()
    assert all(torch.equal(p.a, w.a) and torch.equal(p.b, w.b) for p, w in zip(model.parameters(), before, strict=True))


def test_weights_without_elements_are_each_their_own():
    parameters = [nn.Parameter(torch.ones(shape)) for shape in ((0, 3), (3, 0), (5, 0), (2, 2))]
    plus, minus = SSGD(SGD(parameters, lr=0.1), 0.5).both_points()
    assert [plus[p].shape for p in parameters] == [minus[p].shape for p in parameters] == [p.shape for p in parameters]


def test_frozen_weights_stay_and_unused_ones_return():
    model = nn.ModuleList([nn.Linear(5, 5), nn.Linear(5, 3), nn.Linear(3, 3)])
    model[0].weight.requires_grad_(False)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    before = weights(model)
    x, y = vectors(dtype=torch.float32)
    for point in opt.points():
        with point:
            assert torch.equal(model[0].weight, before[0])
            F.cross_entropy(model[1](model[0](x)), y).backward()  # model[2] gets no gradient
    assert same(model, before)
    opt.step()
    assert torch.equal(model[2].weight, before[4])


@pytest.mark.parametrize("wrap", [partial(SSGD, noise=0.2, pairs=2), partial(RWP, noise=0.2)], ids=["ssgd", "rwp"])
@pytest.mark.parametrize("fails", [False, True], ids=["", "fails"])
def test_what_moves_in_a_batch_is_settled_when_it_begins(wrap, fails):
    """A layer thawed on the way, and one frozen."""
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = wrap(SGD(model.parameters(), lr=0.0))
    first, *_, last = model.children()
    before = weights(model)
    last.requires_grad_(False)
    with pytest.raises(ValueError) if fails else nullcontext():
        for point in opt.points():
            last.requires_grad_(True)
            with point:
                F.cross_entropy(model(x), y).backward()
                if fails and point.index == len(point.passes.points) - 1:
                    raise ValueError
            first.requires_grad_(point.index == 0)
        opt.step()
    assert same(model, before)


@pytest.mark.parametrize("inside", [True, False], ids=["in the pass", "between"])
@pytest.mark.parametrize("wrap", [partial(SSGD, noise=0.2), partial(NSO, noise=0.1), partial(RWP, noise=0.2)])
def test_a_parameter_that_gets_other_memory_returns_all_the_same(wrap, inside):
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = wrap(SGD(model.parameters(), lr=0.0))
    before = weights(model)

    def elsewhere():
        """As an LSTM's flatten_parameters() has it on CUDA."""
        with torch.no_grad():
            for p in model.parameters():
                p.set_(p.clone())

    moved = []
    for _ in range(2):
        for point in opt.points():
            with point:
                if inside:
                    elsewhere()
                F.cross_entropy(model(x), y).backward()
                moved.append([p - b for p, b in zip(weights(model), before, strict=True)])
            if not inside:
                elsewhere()
        opt.step()
        opt.zero_grad()
    assert same(model, before)
    if not isinstance(opt, RWP):
        for plus, minus in zip(moved[0], moved[1], strict=True):
            torch.testing.assert_close(plus, -minus)


def test_a_parameter_cut_down_has_noise_of_its_own_length():
    model = mlp(torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.0), 0.2)
    weight = next(model.parameters())
    weight.data[1:] *= 10
    opt.realised_ratios()
    weight.data = weight.data[:1]
    before = weight.detach().clone()
    with next(opt.points()):
        torch.testing.assert_close((weight - before).norm() / before.norm(), torch.tensor(0.2))


def test_an_iterator_dropped_late_disturbs_no_other_walk():
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.0), 0.2)
    dropped = [opt.points()]
    with next(dropped[0]):
        F.cross_entropy(model(x), y).backward()
    opt.zero_grad()
    dropped.append(opt.points())
    next(dropped[1])  # and never entered
    for point in opt.points():
        with point:
            dropped.clear()
            ratios = opt.realised_ratios()
            torch.testing.assert_close(ratios, [torch.tensor(0.2)] * len(ratios))
            F.cross_entropy(model(x), y).backward()
    assert all(p.grad is not None for p in model.parameters())
    opt.step()


@pytest.mark.parametrize("way", ["points", "split", "one_pass"])
@pytest.mark.parametrize("base", [partial(SGD, weight_decay=0.1, momentum=0.9), AdamW], ids=["sgd", "adamw"])
def test_frozen_weights_that_are_named_get_noise_and_are_not_updated(way, base):
    """The gradient of what is trained is the mean of those at the frozen weight + n and − n."""
    model = mlp()
    x, y = vectors()
    frozen, trained = model[0].weight, [p for p in model.parameters() if p is not model[0].weight]
    frozen.requires_grad_(False)
    opt, other = (SSGD(base(model.parameters(), lr=0.1), 0.5, model=model, perturb=[frozen], seed=3) for _ in "ab")
    before = frozen.clone()
    noise = other.both_points()[0][frozen] - before
    assert noise.norm() == pytest.approx(0.5 * before.norm().item())
    parts = [(x, y), (x, y)] if way == "points" else list(zip(x.chunk(2), y.chunk(2), strict=True))
    expected = [torch.zeros_like(p) for p in trained]
    for sign, (inputs, targets) in zip((1, -1), parts, strict=True):
        at = {"0.weight": before + sign * noise}
        loss = F.cross_entropy(torch.func.functional_call(model, at, inputs), targets)
        expected = [e + g / 2 for e, g in zip(expected, torch.autograd.grad(loss, trained), strict=True)]
    if way == "one_pass":
        with opt.one_pass():
            F.cross_entropy(model(x), y).backward()
    else:
        for point, (inputs, targets) in opt.split(x, y) if way == "split" else ((p, (x, y)) for p in opt.points()):
            with point:
                F.cross_entropy(model(inputs), targets).backward()
    for p, gradient in zip(trained, expected, strict=True):
        torch.testing.assert_close(p.grad, gradient)
    opt.step()
    assert torch.equal(frozen, before) and frozen.grad is None


@pytest.mark.parametrize("wrap", [partial(NSO, noise=0.1), partial(RWP, noise=0.2), partial(EntropySGD, inner_steps=2)])
def test_frozen_weights_stay_where_every_tensor_moves(wrap):
    model = mlp(torch.float32)
    model[0].requires_grad_(False)
    opt = wrap(SGD(model.parameters(), lr=0.1))
    before, moved = weights(model), []
    for point in opt.points():
        with point:
            moved.append([not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True)])
            F.cross_entropy(model(vectors(dtype=torch.float32)[0]), vectors()[1]).backward()
    assert moved[-1] == [False, False, True, True]


def test_freezing_while_training_is_seen():
    model = mlp()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    model[0].weight.requires_grad_(False)
    before = weights(model)
    for point in opt.points():
        with point:
            assert torch.equal(model[0].weight, before[0])
            assert not torch.equal(model[2].weight, before[2])


@pytest.mark.parametrize("layout", ["channels_last", "transposed", "strided"])
def test_any_memory_layout(layout):
    base = torch.randn(6, 4, 3, 3)
    data = {
        "channels_last": base.to(memory_format=torch.channels_last),
        "transposed": base.transpose(0, 1),
        "strided": base[:, ::2],
    }[layout]
    w, plain = nn.Parameter(data), nn.Parameter(torch.randn(3, 3))
    opt = SSGD(SGD([w, plain], lr=0.1), 0.5)
    before, strides = w.detach().clone(), w.stride()
    for point in opt.points():
        with point:
            torch.testing.assert_close((w - before).norm(), 0.5 * before.norm())
    assert torch.equal(w, before) and w.stride() == strides


def test_cudnn_style_recurrent_weights():
    model = nn.LSTM(4, 6, num_layers=2)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    x = torch.randn(3, 2, 4)
    clean, _ = model(x)
    for point in opt.points():
        with point:
            out, _ = model(x)
            assert not torch.allclose(out, clean)
            out.pow(2).mean().backward()
    assert torch.equal(model(x)[0], clean)
    opt.step()


def test_parametrised_weights_move_through_what_is_trained():
    model = nn.Sequential(
        parametrizations.weight_norm(nn.Linear(5, 8)), nn.Tanh(), parametrizations.spectral_norm(nn.Linear(8, 3))
    ).eval()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    names = {id(p): n for n, p in model.named_parameters()}
    chosen = [names[id(p)] for p in opt.selected]
    assert chosen == ["0.parametrizations.weight.original1", "2.parametrizations.weight.original"]
    x, y = vectors(dtype=torch.float32)
    clean = model(x)
    for point in opt.points():
        with point:
            assert not torch.allclose(model(x), clean)
            F.cross_entropy(model(x), y).backward()
    torch.testing.assert_close(model(x), clean, rtol=0, atol=0)


class Mirrored(nn.Module):
    """A symmetric matrix, computed by operations that save nothing for backward()."""

    def forward(self, weight):
        return weight.triu() + weight.triu(1).T


@pytest.mark.parametrize("way", ["points", "closure"])
@pytest.mark.parametrize("wrap", [lambda base: SSGD(base, 0.5), lambda base: SAM(base, 0.5)], ids=["SSGD", "SAM"])
def test_one_cache_of_parametrised_weights_around_all_passes_sees_every_change(wrap, way):
    def train(around_all):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(5, 5), nn.Tanh(), parametrizations.weight_norm(nn.Linear(5, 3)))
        parametrize.register_parametrization(model[0], "weight", Mirrored())
        opt = wrap(SGD(model.parameters(), lr=0.1))
        with parametrize.cached() if around_all else nullcontext():
            take_step(opt, way, model, *vectors(dtype=torch.float32))
        return model

    assert same(train(around_all=True), weights(train(around_all=False)))


def test_old_style_weight_norm_keeps_its_magnitude():
    with pytest.warns(FutureWarning):
        model = torch.nn.utils.weight_norm(nn.Conv2d(3, 4, 3))
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    assert [p.shape for p in opt.selected] == [model.weight_v.shape]


class SetByTheFirstBatch(nn.Module):
    """As ActNorm: its weights come from what it sees first."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1, 3))
        self.register_buffer("known", torch.zeros(()))

    def forward(self, x):
        if not self.known:
            with torch.no_grad():
                self.scale.copy_(1 / x.std(0, keepdim=True))
            self.known.fill_(1)
        return x * self.scale


def backward_at_points(opt, model, x):
    for point in opt.points():
        with point:
            model(x).square().mean().backward()


@pytest.mark.parametrize("wrap", [lambda base: SSGD(base, 0.1), lambda base: SAM(base, 0.1)], ids=["SSGD", "SAM"])
def test_what_is_written_inside_the_points_is_undone_with_a_warning(wrap):
    words = torch.randint(5, (8,))
    model = nn.Sequential(nn.Embedding(5, 4, max_norm=0.1), nn.Linear(4, 1))
    before = weights(model)
    opt = wrap(SGD(model.parameters(), lr=0.0))
    if isinstance(opt, SAM):
        model(words)  # at its first point, w itself, nothing is undone
        before = weights(model)
        model[0].max_norm = 0.01
    with pytest.warns(UserWarning, match=r"wrote to the weights inside a point.*undone.*perturb="):
        backward_at_points(opt, model, words)
    assert isinstance(opt, SAM) or same(model, before)


def test_what_is_written_between_the_points_stays_and_nothing_is_said():
    """There the weights are w."""
    model = nn.Linear(3, 2)
    before = weights(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for point in SSGD(SGD(model.parameters(), lr=0.0), 0.1).points():
            with torch.no_grad():
                model.weight.mul_(1 + point.index)
            with point:
                model(torch.randn(4, 3)).square().mean().backward()
    assert torch.equal(model.weight, 2 * before[0])


@pytest.mark.parametrize("wrap", [partial(SAM, rho=0.1), partial(RWP, noise=0.1)])
def test_what_is_written_at_w_itself_stays_and_nothing_is_said(wrap):
    model = nn.Linear(3, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for point in wrap(SGD(model.parameters(), lr=0.0)).points():
            with point:
                if point.index == 0:
                    nn.init.constant_(model.weight, 7.0)
                model(torch.randn(4, 3)).square().mean().backward()
    assert (model.weight == 7).all()


def test_a_forward_before_training_or_a_choice_of_weights_keeps_what_a_layer_sets():
    x = torch.randn(16, 3) * 7
    for chosen in (False, True):
        model = nn.Sequential(SetByTheFirstBatch(), nn.Linear(3, 2))
        perturb = [model[1].weight] if chosen else None
        if not chosen:
            model(x)
        opt = SSGD(SGD(model.parameters(), lr=0.0), 0.1, perturb=perturb)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            backward_at_points(opt, model, x)
        torch.testing.assert_close(model[0].scale.detach(), 1 / x.std(0, keepdim=True))


def test_weights_that_get_other_memory_inside_a_point_are_not_taken_for_written():
    model = nn.Linear(3, 2)
    opt = SSGD(SGD(model.parameters(), lr=0.0), 0.1)
    before = weights(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for point in opt.points():
            with point:
                with torch.no_grad():
                    model.weight.set_(model.weight.detach().clone())  # what flatten_parameters() does on a GPU
                model(torch.randn(4, 3)).square().mean().backward()
    assert same(model, before)


def test_weights_loaded_between_points_that_are_then_dropped_stay():
    model = nn.Linear(3, 2)
    opt = SSGD(SGD(model.parameters(), lr=0.0), 0.1)
    points = opt.points()
    with next(points):
        model(torch.randn(4, 3)).square().mean().backward()
    loaded = {name: torch.full_like(w, 7.0) for name, w in model.state_dict().items()}
    model.load_state_dict(loaded)
    opt.zero_grad()
    assert all((w == 7).all() for w in weights(model))
