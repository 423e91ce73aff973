"""Entropy-SGD against its own steps."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from ssgd.methods import EntropySGD

from .problems import mlp, same, vectors, weights
from .rivals import assert_gradients, gradient, take


def test_entropy_sgd_follows_its_langevin_steps():
    model, (x, y) = mlp(), vectors()
    opt = EntropySGD(SGD(model.parameters(), lr=1.0), 0.0, inner_steps=4, inner_lr=0.2, gamma=0.5, alpha=0.75)
    w = weights(model)
    inner, mean = [v.clone() for v in w], [v.clone() for v in w]
    at = []
    for _ in range(4):
        at.append([v.clone() for v in inner])
        g = gradient(model, inner, x, y)
        for x_i, m, w_i, g_i in zip(inner, mean, w, g, strict=True):
            x_i -= 0.2 * (g_i - 0.5 * (w_i - x_i))
            m.mul_(0.25).add_(0.75 * x_i)
    seen = take(opt, model, x, y)
    for a, b in zip(itertools.chain(*seen), itertools.chain(*at), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert_gradients(model, [w_i - m for w_i, m in zip(w, mean, strict=True)])


def test_entropy_sgd_adds_thermal_noise():
    w = torch.zeros(100, 100, requires_grad=True)
    opt = EntropySGD(SGD([w], lr=1.0), 0.3, inner_steps=2, inner_lr=0.25, gamma=1.0, seed=1)
    seen = []
    for point in opt.points():
        with point:
            seen.append(w.detach().clone())
            (w * 0).sum().backward()
    assert seen[1].std() == pytest.approx(0.3 * math.sqrt(0.25), rel=0.05)


def test_entropy_sgd_takes_complex_weights():
    w = nn.Parameter(torch.randn(3, 2, dtype=torch.complex64))
    before = w.detach().clone()
    opt = EntropySGD(SGD([w], lr=1.0), 0.0, inner_steps=1, inner_lr=0.1, alpha=1.0)
    for point in opt.points():
        with point:
            w.abs().pow(2).sum().backward()
    opt.step()
    torch.testing.assert_close(w.detach(), before - 0.1 * 2 * before)


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has no grad_dtype")
def test_entropy_sgd_leaves_gradients_of_the_type_asked_for():
    w = nn.Parameter(torch.ones(3, 2, dtype=torch.bfloat16))
    w.grad_dtype = torch.float32
    opt = EntropySGD(SGD([w], lr=1.0), 0.0, inner_steps=1, inner_lr=0.5, alpha=1.0)
    for point in opt.points():
        with point:
            w.sum().backward()
    assert w.grad.dtype == torch.float32
    assert w.grad.eq(0.5).all()


def test_entropy_sgd_takes_no_gradient_from_before_the_walk():
    fresh, stale = mlp(), mlp()
    for p in stale.parameters():
        p.grad = torch.ones_like(p)
    for model in (fresh, stale):
        opt = EntropySGD(SGD(model.parameters(), lr=1.0), 0.0, inner_steps=2)
        take(opt, model, *vectors())
        opt.step()
    assert same(fresh, stale)


def test_entropy_sgd_pulls_an_unused_weight_back_alone():
    used, unused = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    opt = EntropySGD(SGD([used, unused], lr=1.0), 0.0, inner_steps=2)
    for point in opt.points():
        with point:
            used.square().sum().backward()
    opt.step()
    assert torch.equal(unused, torch.ones(2, 2)) and (used < 1).all()


def test_entropy_sgd_leaves_one_gradient_for_tied_weights():
    w = torch.ones(2, 2)
    one, other = nn.Parameter(w), nn.Parameter(w)
    opt = EntropySGD(SGD([one, other], lr=1.0), 0.0, inner_steps=2)
    for point in opt.points():
        with point:
            (one + other).square().sum().backward()
    assert one.grad is not None and other.grad is None


def test_entropy_sgd_refuses_a_bad_level_before_the_first_pass():
    model = mlp()
    opt = EntropySGD(SGD(model.parameters(), lr=1.0), inner_steps=2)
    opt.param_groups[0]["noise"] = -1.0
    with pytest.raises(ValueError, match=r"not -1\.0"):
        next(opt.points())


def test_entropy_sgd_begins_anew_where_gradients_were_cleared_behind_its_back():
    model, (x, y) = mlp(), vectors()
    opt = EntropySGD(SGD(model.parameters(), lr=1.0), inner_steps=2)
    take(opt, model, x, y)
    model.zero_grad()
    assert len(take(opt, model, x, y)) == 2 and opt.param_groups[0]["noise_step"] == 1


def test_entropy_sgd_refuses_to_leave_weights_untrained():
    model = mlp()
    with pytest.raises(ValueError, match="moves every trained weight: leave out perturb, or freeze the others"):
        EntropySGD(SGD(model.parameters(), lr=1.0), perturb=[model[0].weight])


def test_entropy_sgd_refuses_a_grad_scaler():
    model, (x, y) = mlp(torch.float32), vectors(dtype=torch.float32)
    opt = EntropySGD(SGD(model.parameters(), lr=1.0, fused=True), inner_steps=2)
    scaler = torch.amp.GradScaler("cpu")
    for point in opt.points():
        with point:
            scaler.scale(F.cross_entropy(model(x), y)).backward()
    with pytest.raises(RuntimeError, match="Entropy-SGD cannot be used with a GradScaler: train in bfloat16"):
        scaler.step(opt)
