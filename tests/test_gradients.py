"""p.grad is a mean whenever no pair is open."""

import warnings
from collections import UserDict

import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD

from ssgd import SSGD
from ssgd.methods import SAM

from .problems import WAYS, mlp, run_passes, take_step, vectors


def hand_made(model, opt, pairs_of_batches, shares=(0.5, 0.5)):
    """Σ over batches of the weighted mean of ∇L at w + n and w − n, by torch.autograd.grad."""
    clean = [p.detach().clone() for p in model.parameters()]
    moved = []
    for point in opt.points():
        with point:
            moved.append([p.detach().clone() for p in model.parameters()])
    opt.load_state_dict(opt.state_dict())  # a look, not a step

    def at(values, x, y):
        with torch.no_grad():
            for p, v in zip(model.parameters(), values, strict=True):
                p.copy_(v)
        return torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))

    total = [torch.zeros_like(p) for p in model.parameters()]
    for (x_plus, y_plus), (x_minus, y_minus) in pairs_of_batches:
        for t, a, b in zip(total, at(moved[0], x_plus, y_plus), at(moved[1], x_minus, y_minus), strict=True):
            t += shares[0] * a + shares[1] * b
    with torch.no_grad():
        for p, v in zip(model.parameters(), clean, strict=True):
            p.copy_(v)
    return total


def assert_gradients(model, expected):
    for p, e in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, e, rtol=1e-9, atol=1e-12)


def start(**options):
    model = mlp()
    return model, SSGD(SGD(model.parameters(), lr=0.1), 0.4, seed=2, **options)


def test_points_leave_the_mean():
    model, opt = start()
    x, y = vectors()
    expected = hand_made(model, opt, [((x, y), (x, y))])
    run_passes(opt, "points", model, x, y)
    assert_gradients(model, expected)


@pytest.mark.parametrize("samples", [2, 3, 7, 8])
def test_split_weighs_each_half_by_its_share(samples):
    model, opt = start()
    x, y = vectors(samples)
    k = (samples + 1) // 2
    expected = hand_made(model, opt, [((x[:k], y[:k]), (x[k:], y[k:]))], shares=(k / samples, (samples - k) / samples))
    run_passes(opt, "split", model, x, y)
    assert_gradients(model, expected)


@pytest.mark.parametrize("way", ["points", "split"])
@pytest.mark.parametrize("samples", [8, 7])
def test_accumulation_adds_means(way, samples):
    model, opt = start()
    batches = [vectors(samples, seed=s) for s in range(3)]
    k = (samples + 1) // 2
    if way == "points":
        expected = hand_made(model, opt, [(b, b) for b in batches])
    else:
        cut = [((x[:k], y[:k]), (x[k:], y[k:])) for x, y in batches]
        expected = hand_made(model, opt, cut, shares=(k / samples, 1 - k / samples))
    for x, y in batches:
        run_passes(opt, way, model, x, y)
    assert_gradients(model, expected)


@pytest.mark.parametrize("way", ["points", "split"])
def test_accumulation_is_exact_for_powers_of_two(way):
    """Twice the same batch is twice the gradient, to the last bit: ×2 and ×½ round nothing."""
    model, opt = start()
    x, y = vectors()
    run_passes(opt, way, model, x, y)
    once = [p.grad.clone() for p in model.parameters()]
    run_passes(opt, way, model, x, y)
    for p, g in zip(model.parameters(), once, strict=True):
        torch.testing.assert_close(p.grad, 2 * g, rtol=1e-14, atol=0)


@pytest.mark.parametrize("way", ["points", "split"])
def test_clipping_and_logged_norms_see_the_mean(way):
    model, opt = start()
    x, y = vectors()
    halves = ((x[:4], y[:4]), (x[4:], y[4:])) if way == "split" else ((x, y), (x, y))
    expected = hand_made(model, opt, [halves, halves])
    norm = torch.linalg.vector_norm(torch.cat([e.flatten() for e in expected]))
    run_passes(opt, way, model, x, y)
    run_passes(opt, way, model, x, y)
    seen = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1 * norm.item())
    torch.testing.assert_close(seen, norm)
    assert_gradients(model, [0.1 * norm / (norm + 1e-6) * e for e in expected])  # torch's own 1e-6


def test_a_clean_gradient_can_be_added_outside_the_points():
    model, opt = start()
    x, y = vectors()
    expected = hand_made(model, opt, [((x, y), (x, y))])
    penalty = lambda: sum(p.pow(2).sum() for p in model.parameters())  # noqa: E731
    penalty().backward()
    run_passes(opt, "points", model, x, y)
    penalty().backward()
    assert_gradients(model, [e + 4 * p.detach() for e, p in zip(expected, model.parameters(), strict=True)])


@pytest.mark.parametrize("clear", ["opt", "opt, in place", "model", "model, in place", "base", "by hand", "never"])
@pytest.mark.parametrize("stale", [False, True])
@pytest.mark.parametrize("kind", [SSGD, SAM])
def test_closures_that_clear_and_those_that_do_not(clear, stale, kind):
    """Also with gradients there before: a clearing closure drops them, another adds to them, as with any optimizer."""
    model = mlp()
    opt = kind(
        SGD(model.parameters(), lr=0.1), 0.4
    )  # without the model, whose zero_grad() must be noticed all the same
    x, y = vectors()
    if kind is SSGD:
        expected = hand_made(model, opt, [((x, y), (x, y))])
    else:
        run_passes(opt, "points", model, x, y)
        expected = [p.grad for p in model.parameters()]
        opt.zero_grad()
    if stale:
        for p in model.parameters():
            p.grad = torch.full_like(p, 0.25)
        if clear == "never":
            expected = [e + 0.25 for e in expected]

    def by_hand():
        for p in model.parameters():
            p.grad = None

    clearing = {
        "opt": opt.zero_grad,
        "opt, in place": lambda: opt.zero_grad(set_to_none=False),
        "model": model.zero_grad,
        "model, in place": lambda: model.zero_grad(set_to_none=False),
        "base": opt.base.zero_grad,
        "by hand": by_hand,
        "never": lambda: None,
    }[clear]

    def closure():
        clearing()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    opt.base.register_step_pre_hook(lambda *_: assert_gradients(model, expected))
    loss = opt.step(closure)
    torch.testing.assert_close(loss, sum(opt.losses) / 2)
    assert len(opt.losses) == 2
    assert not any(p._post_accumulate_grad_hooks for p in model.parameters())


def test_a_closure_may_clear_a_part():
    """Of one layer, or of one that gets no gradient or is frozen: what is cleared is dropped, the rest is kept."""
    model = torch.nn.ModuleList(
        [torch.nn.Linear(5, 3), torch.nn.Linear(3, 3), torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)]
    )
    opt = SAM(SGD(model.parameters(), lr=0.0), 0.1)
    model[3].requires_grad_(False)
    x, y = vectors(dtype=torch.float32)

    def closure():
        for cleared in (model[0], model[2], model[3].weight):
            cleared.zero_grad() if isinstance(cleared, torch.nn.Module) else setattr(cleared, "grad", None)
        loss = F.cross_entropy(model[1](model[0](x)), y)
        loss.backward()
        return loss

    opt.step(closure)
    alone = [model[i].weight.grad.clone() for i in (0, 1)]
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    opt.step(closure)
    torch.testing.assert_close(model[0].weight.grad, alone[0])
    torch.testing.assert_close(model[1].weight.grad, alone[1] + 1)
    assert model[2].weight.grad is None and model[3].weight.grad is None and model[3].bias.grad == 1


def test_unused_parameters_keep_no_gradient():
    model = torch.nn.ModuleList([torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)])
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.4)
    x, y = vectors(dtype=torch.float32)
    for point in opt.points():
        with point:
            F.cross_entropy(model[0](x), y).backward()
    assert model[1].weight.grad is None and model[0].weight.grad is not None


def test_split_takes_any_structure():
    opt = SSGD(SGD(mlp().parameters(), lr=0.1), 0.4)
    batch = {
        "ids": torch.arange(5),
        "more": [torch.arange(10).view(5, 2), (torch.arange(5),)],
        "name": "x",
        "t": torch.tensor(3),
    }
    seen = []
    for point, half in opt.split(batch):
        with point:
            seen.append(half)
    assert [len(h["ids"]) for h in seen] == [3, 2]
    assert torch.equal(torch.cat([h["more"][0] for h in seen]), batch["more"][0])
    assert torch.equal(torch.cat([h["more"][1][0] for h in seen]), batch["more"][1][0])
    assert all(h["name"] == "x" and h["t"] == 3 for h in seen)
    assert seen[0]["ids"].data_ptr() == batch["ids"].data_ptr()  # a view


def test_split_takes_mappings_that_are_no_dicts():
    """Such as Hugging Face's BatchEncoding, which is a UserDict."""
    opt = SSGD(SGD(mlp().parameters(), lr=0.1), 0.4)
    batch = UserDict(ids=torch.arange(5), more=[UserDict(mask=torch.ones(5, 2))])
    seen = []
    for point, half in opt.split(batch):
        with point:
            seen.append(half)
    assert [half["ids"].tolist() for half in seen] == [[0, 1, 2], [3, 4]]
    assert [len(half["more"][0]["mask"]) for half in seen] == [3, 2]


def test_a_closure_may_clear_in_place_what_it_does_not_use():
    model = torch.nn.ModuleList([torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)])
    opt = SAM(SGD(model.parameters(), lr=0.1), 0.1)
    model[1].weight.grad = torch.ones(3, 5)
    x, y = vectors(dtype=torch.float32)

    def closure():
        opt.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model[0](x), y)
        loss.backward()
        return loss

    before = model[1].weight.detach().clone()
    opt.step(closure)
    assert torch.equal(model[1].weight, before)


@pytest.mark.parametrize("kind", [SSGD, SAM])
def test_a_closure_may_run_backward_for_each_part_of_its_batch(kind):
    x, y = vectors()

    def gradients(stale, parts):
        model = mlp()
        opt = kind(SGD(model.parameters(), lr=0.0), 0.4)
        for p in model.parameters():
            p.grad = torch.full_like(p, stale)

        def closure():
            losses = [F.cross_entropy(model(x[part]), y[part]) / len(parts) for part in parts]
            for loss in losses:
                loss.backward()
            return sum(losses)

        opt.step(closure)
        return [p.grad for p in model.parameters()]

    whole, parts = gradients(0.0, [slice(0, 8)]), gradients(0.25, [slice(0, 4), slice(4, 8)])
    torch.testing.assert_close(parts, [g + 0.25 for g in whole], rtol=1e-9, atol=1e-12)


def test_a_closure_may_leave_out_the_last_backward():
    model, opt = start()
    x, y = vectors()
    calls = []

    def closure():
        loss = F.cross_entropy(model(x), y)
        calls.append(loss)
        if len(calls) == 1:
            loss.backward()
        return loss

    opt.step(closure)
    assert len(calls) == 2 and model[0].weight.grad.norm() > 0


def test_a_gradient_without_elements_is_finite():
    w = torch.nn.Parameter(torch.ones(2, 2))
    none = torch.nn.Parameter(torch.ones(0, 2))
    opt = SSGD(SGD([w, none], lr=0.1), 0.4, nonfinite="raise")
    for point in opt.points():
        with point:
            (w.sum() + none.sum()).backward()
    opt.step()
    assert (w < 1).all()


@pytest.mark.parametrize("policy", ["skip", "raise"])
def test_no_gradient_at_all_is_no_fault(policy):
    """As where a trainer steps before anything has been accumulated."""
    model, opt = start(nonfinite=policy)
    for point in opt.points():
        with point:
            pass
    opt.step()
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize("policy", ["skip", "raise", "step"])
@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_gradients_that_are_not_finite(policy, fused, way):
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    x[0, 0] = float("nan")
    opt = SSGD(SGD(model.parameters(), lr=0.1, fused=fused), 0.4, nonfinite=policy)
    before = [p.detach().clone() for p in model.parameters()]
    if policy == "raise":
        with pytest.raises(FloatingPointError, match=r"not finite: zero_grad\(\) and skip"):
            take_step(opt, way, model, x, y)
    else:
        take_step(opt, way, model, x, y)
    unchanged = all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert unchanged == (policy != "step")
    x[0, 0] = 0.0
    take_step(opt, way, model, x, y)  # and a good batch is stepped with
    if policy != "step":
        assert not torch.equal(model[0].weight, before[0])
        assert all(p.isfinite().all() for p in model.parameters())


class SameMemory(torch.autograd.Function):
    """x Wᵀ, whose backward returns the gradient of W in the same memory every time, as CUDA graphs do."""

    @staticmethod
    def forward(ctx, x, weight, memory):
        ctx.save_for_backward(x, weight)
        ctx.memory = memory
        return x @ weight.T

    @staticmethod
    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        torch.mm(grad.T, x, out=ctx.memory)
        return grad @ weight, ctx.memory, None


def with_backward(loss):
    loss.backward()
    return loss


@pytest.mark.parametrize("batches", [1, 2])
@pytest.mark.parametrize("way", WAYS)
def test_gradients_that_come_in_the_same_memory_each_time(way, batches):
    def gradients(owned):
        weight = torch.nn.Parameter(mlp()[0].weight.detach())
        memory = torch.zeros_like(weight)
        opt = SSGD(SGD([weight], lr=0.0), 0.4, seed=2)

        def loss(x):
            return (SameMemory.apply(x, weight, memory) if owned else x @ weight.T).tanh().square().mean()

        for seed in range(batches):
            x, _ = vectors(seed=seed)
            if way == "closure":
                opt.step(lambda x=x: with_backward(loss(x)))
                continue
            for point, part in opt.split(x) if way == "split" else ((point, x) for point in opt.points()):
                with point:
                    loss(part).backward()
        return weight.grad

    torch.testing.assert_close(gradients(owned=True), gradients(owned=False), rtol=1e-12, atol=0)


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("when", ["inside", "between"])
@pytest.mark.parametrize("way", ["points", "split"])
def test_clearing_by_the_model_drops_no_other_points_gradient(way, when, to_none):
    found = []
    for clears in (True, False):
        model, opt = start()
        x, y = vectors()
        passes = opt.split(x, y) if way == "split" else ((point, (x, y)) for point in opt.points())
        for point, (xb, yb) in passes:
            if clears and when == "between":
                model.zero_grad(to_none)
            with point:
                if clears and when == "inside":
                    model.zero_grad(to_none)
                F.cross_entropy(model(xb), yb).backward()
        found.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


def clamp(p):
    p.grad.clamp_(-0.01, 0.01)


def test_hooks_see_the_gradient_of_their_own_point():
    model, opt = start()
    x, y = vectors()
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(clamp)
    parts = []
    for point in opt.points():
        with point:
            F.cross_entropy(model(x), y).backward()
            parts.append([p.grad.clone() for p in model.parameters()])
    assert all(g.abs().max() == pytest.approx(0.01) for part in parts for g in part)
    assert_gradients(model, [(plus + minus) / 2 for plus, minus in zip(*parts, strict=True)])


def test_a_gradient_set_by_hand_inside_a_point_is_that_points():
    model, opt = start()
    for point in opt.points():
        with point:
            for p in model.parameters():
                p.grad = torch.full_like(p, 1.0 + 2.0 * point.index)
    assert_gradients(model, [torch.full_like(p, 2.0) for p in model.parameters()])


def test_torchs_hooks_on_all_optimizers_run_once_a_step():
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

    ran = []
    handles = [
        register_optimizer_step_pre_hook(lambda opt, *_: ran.append(("before", type(opt).__name__))),
        register_optimizer_step_post_hook(lambda opt, *_: ran.append(("after", type(opt).__name__))),
    ]
    try:
        model, opt = start()
        run_passes(opt, "points", model, *vectors())
        opt.step()
    finally:
        for handle in handles:
            handle.remove()
    assert ran == [("before", "SGD"), ("after", "SGD")]


@pytest.mark.parametrize("kind", [SSGD, SAM])
def test_gradients_with_a_graph_of_their_own_are_refused(kind):
    """Bases of the second order, such as AdaHessian, want them; on a linear layer their Hessian would be doubled."""
    model = mlp()
    opt = kind(SGD(model.parameters(), lr=0.1), 0.4)
    x, y = vectors()
    before = [p.detach().clone() for p in model.parameters()]
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match=r"AdaHessian.*not served"):
        warnings.simplefilter("ignore")  # torch's own, of create_graph
        for point in opt.points():
            with point:
                F.cross_entropy(model(x), y).backward(create_graph=True)
    assert all(torch.equal(p, w) for p, w in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("times", [2, 3])
def test_a_parameter_listed_twice_counts_once(way, times):
    found = []
    for listed in (times, 1):
        model = mlp()
        parameters = list(model.parameters()) * listed
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's own, of the duplicates
            opt = SSGD(SGD(parameters, lr=0.0), 0.4, seed=2)
        take_step(opt, way, model, *vectors())
        found.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)
