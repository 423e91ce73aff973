"""Momentum-SAM and SAM at intervals against the formulas of their papers."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD, Adagrad, AdamW

from ssgd.methods.momentum_sam import MomentumSAM
from ssgd.methods.sam import SAM
from ssgd.methods.sam_at_intervals import SAMAtIntervals

from .problems import convnet, images, mlp, same, vectors, weights
from .rivals import gradient, take


def taken(opt, model, x, y):
    """A whole step; the weights at each of its points."""
    at = take(opt, model, x, y)
    opt.step()
    opt.zero_grad()
    return at


# --- momentum-SAM: w̃ₜ = wₜ − ρ vₜ / ‖vₜ‖, vₜ₊₁ = μ vₜ + ∇L(w̃ₜ), wₜ₊₁ = wₜ − η vₜ₊₁ --------------------


def test_momentum_sam_is_the_papers_algorithm():
    model, (x, y) = mlp(), vectors()
    rho, mu, eta = 0.3, 0.9, 0.1
    opt = MomentumSAM(SGD(model.parameters(), lr=eta, momentum=mu), rho)
    w = weights(model)
    v = [torch.zeros_like(p) for p in w]
    for step in range(6):
        norm = torch.cat([b.flatten() for b in v]).norm()
        moved = [a - rho * b / norm if step else a for a, b in zip(w, v, strict=True)]
        v = [mu * b + g for b, g in zip(v, gradient(model, moved, x, y), strict=True)]
        w = [a - eta * b for a, b in zip(w, v, strict=True)]
        (at,) = taken(opt, model, x, y)  # one pass
        torch.testing.assert_close(at, moved, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(weights(model), w, rtol=1e-10, atol=1e-12)


def test_momentum_sam_takes_adams_first_moment():
    model, (x, y) = mlp(), vectors()
    opt = MomentumSAM(AdamW(model.parameters(), lr=0.01), 0.3)
    for _ in range(3):
        before = weights(model)
        past = [opt.state[p]["exp_avg"].clone() for p in model.parameters() if p in opt.state]
        (at,) = taken(opt, model, x, y)
        if past:
            norm = torch.cat([m.flatten() for m in past]).norm()
            moved = [w - 0.3 * m / norm for w, m in zip(before, past, strict=True)]
            torch.testing.assert_close(at, moved, rtol=1e-10, atol=1e-12)
    assert past


def test_momentum_sam_leaves_the_momentum_and_the_clean_weights_alone():
    model, (x, y) = mlp(), vectors()
    opt = MomentumSAM(SGD(model.parameters(), lr=0.1, momentum=0.9), 0.3)
    taken(opt, model, x, y)
    momentum = [opt.state[p]["momentum_buffer"].clone() for p in model.parameters()]
    before = weights(model)
    for point in opt.points():
        with point:
            assert not same(model, before)
            F.cross_entropy(model(x), y).backward()
    assert same(model, before)
    assert all(
        torch.equal(opt.state[p]["momentum_buffer"], m) for p, m in zip(model.parameters(), momentum, strict=True)
    )


def test_momentum_sam_climbs_with_the_momentum_of_what_is_chosen():
    model, (x, y) = mlp(), vectors()
    opt = MomentumSAM(SGD(model.parameters(), lr=0.1, momentum=0.9), 0.3, perturb=[model[0].weight])
    taken(opt, model, x, y)
    w, v = model[0].weight.detach().clone(), opt.state[model[0].weight]["momentum_buffer"].clone()
    (at,) = taken(opt, model, x, y)
    torch.testing.assert_close(at[0], w - 0.3 * v / v.norm())


@pytest.mark.parametrize("base", [lambda p: SGD(p, lr=0.1), lambda p: Adagrad(p, lr=0.1)])
def test_momentum_sam_needs_a_momentum(base):
    with pytest.raises(ValueError, match=r"climbs by the base's momentum, and this (SGD|Adagrad) has none"):
        MomentumSAM(base(mlp().parameters()))


# --- SAM at intervals: step t climbs where t is a multiple of the interval --------------------


def test_sam_at_intervals_climbs_in_every_third_step_and_is_its_base_between():
    model, (x, y) = mlp(), vectors()
    opt = SAMAtIntervals(SGD(model.parameters(), lr=0.1, momentum=0.9), 0.05, interval=3)
    v = [torch.zeros_like(p) for p in model.parameters()]
    w = weights(model)
    for step in range(1, 8):
        g = gradient(model, w, x, y)
        if step % 3 == 0:
            norm = torch.cat([a.flatten() for a in g]).norm()
            g = gradient(model, [a + 0.05 * b / norm for a, b in zip(w, g, strict=True)], x, y)
        v = [0.9 * a + b for a, b in zip(v, g, strict=True)]
        w = [a - 0.1 * b for a, b in zip(w, v, strict=True)]
        assert len(taken(opt, model, x, y)) == (2 if step % 3 == 0 else 1)
        torch.testing.assert_close(weights(model), w, rtol=1e-9, atol=1e-12)


def test_sam_at_intervals_of_one_is_sam():
    found = []
    for wrap in (SAM, lambda base, rho: SAMAtIntervals(base, rho, interval=1)):
        model, (x, y) = mlp(), vectors()
        opt = wrap(SGD(model.parameters(), lr=0.1), 0.1)
        for _ in range(3):
            taken(opt, model, x, y)
        found.append(weights(model))
    assert same(found[0], found[1])


def test_all_batches_of_an_accumulated_step_climb_or_none():
    model, (x, y) = mlp(), vectors()
    opt = SAMAtIntervals(SGD(model.parameters(), lr=0.1), 0.1, interval=2)
    for passes in (1, 2, 1):
        assert [len(take(opt, model, x, y)) for _ in range(3)] == [passes] * 3
        opt.step()
        opt.zero_grad()


def test_an_interval_is_a_count():
    with pytest.raises(ValueError, match="interval must be a whole number of at least 1, not 0"):
        SAMAtIntervals(SGD(mlp().parameters(), lr=0.1), interval=0)


# --- both --------------------


BOTH = [lambda base, **o: MomentumSAM(base, 0.3, **o), lambda base, **o: SAMAtIntervals(base, 0.1, interval=3, **o)]


@pytest.mark.parametrize("wrap", BOTH)
def test_resume_is_bitwise(wrap):
    x, y = vectors()
    model = mlp()
    opt = wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    file = io.BytesIO()
    for step in range(7):
        taken(opt, model, x, y)
        if step == 3:
            torch.save({"model": model.state_dict(), "opt": opt.state_dict()}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = mlp()
    other.load_state_dict(saved["model"])
    again = wrap(SGD(other.parameters(), lr=0.1, momentum=0.9))
    again.load_state_dict(saved["opt"])
    for _ in range(3):
        taken(again, other, x, y)
    assert same(model, weights(other))


@pytest.mark.parametrize("wrap", BOTH)
def test_closures_take_the_same_steps(wrap):
    found = []
    for way in ("points", "closure"):
        model, (x, y) = mlp(), vectors()
        opt = wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))

        def closure(opt=opt, model=model, x=x, y=y):
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        for _ in range(4):
            opt.step(closure) if way == "closure" else taken(opt, model, x, y)
        found.append(weights(model))
    assert same(found[0], found[1])


@pytest.mark.parametrize(
    "wrap", [lambda base: MomentumSAM(base, 0.0), lambda base: SAMAtIntervals(base, 0.0, interval=2)]
)
def test_at_zero_they_are_their_base(wrap):
    model, (x, y) = mlp(), vectors()
    other = copy.deepcopy(model)
    plain = SGD(other.parameters(), lr=0.1, momentum=0.9)
    opt = wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
    for _ in range(4):
        assert len(taken(opt, model, x, y)) == 1
        plain.zero_grad()
        F.cross_entropy(other(x), y).backward()
        plain.step()
    assert same(model, weights(other))


@pytest.mark.parametrize("wrap", BOTH)
def test_they_train_with_batch_norm_and_refuse_split(wrap):
    model, (x, y) = convnet(), images()
    model(x)
    opt = wrap(SGD(model.parameters(), lr=0.1, momentum=0.9), model=model, bn_stats="once")
    for step in range(1, 4):
        taken(opt, model, x, y)
        assert model[1].num_batches_tracked == step + 1
    with pytest.raises(ValueError, match=r"has no split\(\)"):
        next(iter(opt.split(x, y)))
