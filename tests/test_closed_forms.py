"""Losses whose S-SGD gradient is known."""

import pytest
import torch
from torch.optim import SGD

from ssgd import SSGD


def pair_gradient(loss, w, level, distribution="sphere"):
    """The gradient that points() leaves, and the noise it used."""
    opt = SSGD(SGD([w], lr=0.1), level, distribution=distribution, seed=3)
    clean = w.detach().clone()
    for point in opt.points():
        with point:
            if point.sign > 0:
                noise = w.detach() - clean
            loss(w).backward()
    return w.grad, noise


def weight(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 3, dtype=torch.float64, generator=generator).requires_grad_()


@pytest.mark.parametrize("distribution", ["sphere", "sign", "uniform"])
def test_on_a_quadratic_the_noise_cancels(distribution):
    w = weight()
    root = torch.randn(12, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    A = root @ root.T
    gradient, _ = pair_gradient(lambda w: 0.5 * w.flatten() @ A @ w.flatten(), w, 0.5, distribution)
    torch.testing.assert_close(gradient.flatten(), A @ w.detach().flatten(), rtol=1e-12, atol=1e-12)


def test_on_a_cubic_the_pair_adds_exactly_the_third_derivative_term():
    """L = Σ c w³ has ∇L(w ± n) = 3c(w² ± 2wn + n²), so the mean differs from ∇L(w) by 3cn² = ½ L'''n²."""
    w = weight()
    c = torch.linspace(-1, 2, 12, dtype=torch.float64).view(4, 3)
    gradient, noise = pair_gradient(lambda w: (c * w**3).sum(), w, 0.5)
    torch.testing.assert_close(gradient - 3 * c * w.detach() ** 2, 3 * c * noise**2, rtol=1e-10, atol=1e-12)


def test_the_symmetric_excess_is_half_the_curvature_along_the_noise():
    w = weight()
    A = torch.diag(torch.arange(1.0, 13.0, dtype=torch.float64))
    opt = SSGD(SGD([w], lr=0.1), 0.3, seed=3)
    loss = lambda: 0.5 * w.flatten() @ A @ w.flatten()  # noqa: E731
    clean = w.detach().clone()
    excess = opt.symmetric_excess(loss)
    for point in opt.points():
        with point:
            if point.sign > 0:
                noise = (w.detach() - clean).flatten()
    torch.testing.assert_close(excess, 0.5 * noise @ A @ noise, rtol=1e-10, atol=1e-12)


def test_leaves_a_sharp_minimum_where_sgd_stays():
    """Two minima of one weight vector: a narrow deep one at the start, a wide one beside it."""

    def loss(w):
        sharp = -1.0 * torch.exp(-((w - 1.0) ** 2) / (2 * 0.05**2))
        flat = -0.9 * torch.exp(-((w + 1.0) ** 2) / (2 * 0.9**2))
        return (sharp + flat).sum()

    def train(level):
        w = torch.full((4, 4), 1.0, dtype=torch.float64).requires_grad_()
        opt = SSGD(SGD([w], lr=0.002, momentum=0.9), level, seed=0)
        for _ in range(1500):
            for point in opt.points():
                with point:
                    loss(w).backward()
            opt.step()
            opt.zero_grad()
        return w.detach()

    assert (train(0.0) - 1.0).abs().max() < 0.05
    assert (train(0.3) + 1.0).abs().max() < 0.3
