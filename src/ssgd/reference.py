"""S-SGD's step written out: slow, readable, the oracle of the tests.

    w̃₊ = w + n,   w̃₋ = w − n,   ‖n_l‖ = level · ‖w_l‖ in each layer l
    g  = ( ∇L(w̃₊) + ∇L(w̃₋) ) / 2
    w  ← the base optimizer's step with g

For uniform noise the norm holds on average; the paper's own level is √3 times this one. The reference holds w, n and
every gradient in memory at once, serves one process, one device and one dtype, and steps every parameter, with zeros
where no gradient came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from .core.noise import Distribution, as_distribution, mix


class Reference:
    """S-SGD as the paper writes it. ``loss`` functions return L at the weights as they are now."""

    def __init__(
        self,
        base: Optimizer,
        level: float,
        layers: Sequence[Tensor],
        distribution: str | Distribution = "sphere",
        pairs: int = 1,
        seed: int = 0,
    ) -> None:
        self.base, self.level, self.layers, self.pairs, self.seed = base, level, layers, pairs, seed
        self.distribution = as_distribution(distribution)
        if self.distribution.unit not in ("norm", "rms"):
            raise ValueError(f"the reference scales noise by the norm or the rms, not by {self.distribution.unit!r}")
        self.t = 0

    def step(self, *losses: Callable[[], Tensor], shares: Sequence[float] = (0.5, 0.5)) -> None:
        """One update. One loss is taken at both points (`both`); two are taken at one point each (`split`)."""
        plus_loss, minus_loss = losses if len(losses) == 2 else losses * 2
        parameters = [p for group in self.base.param_groups for p in group["params"]]
        w = [layer.detach().clone() for layer in self.layers]
        g = [torch.zeros_like(p) for p in parameters]
        for pair in range(self.pairs):
            n = self.noise(w, pair)
            g_plus = self._gradient(parameters, plus_loss, [w_l + n_l for w_l, n_l in zip(w, n, strict=True)])
            g_minus = self._gradient(parameters, minus_loss, [w_l - n_l for w_l, n_l in zip(w, n, strict=True)])
            for g_i, plus, minus in zip(g, g_plus, g_minus, strict=True):
                g_i.add_(plus, alpha=shares[0] / self.pairs)
                g_i.add_(minus, alpha=shares[1] / self.pairs)
        self._set_layers(w)
        for p, g_i in zip(parameters, g, strict=True):
            p.grad = g_i
        self.base.step()
        self.t += 1

    def noise(self, w: Sequence[Tensor], pair: int) -> list[Tensor]:
        """n of update t: each layer has a generator of its own, and is scaled to its own norm."""
        return [self._scaled(self._drawn(layer, w_l, pair), w_l) for layer, w_l in zip(self.layers, w, strict=True)]

    def _drawn(self, layer: Tensor, w_l: Tensor, pair: int) -> Tensor:
        """z of one layer, seeded by seed, step, rank (0 here), pair, and the layer's place among all parameters."""
        parameters = [p for group in self.base.param_groups for p in group["params"]]
        position = next(i for i, p in enumerate(parameters) if p is layer)
        generator = torch.Generator(w_l.device).manual_seed(mix(self.seed, self.t, 0, pair, position))
        z_l = torch.empty(w_l.numel(), dtype=w_l.dtype, device=w_l.device)
        self.distribution.fill(z_l, generator)
        return z_l.view_as(w_l)

    def _scaled(self, z_l: Tensor, w_l: Tensor) -> Tensor:
        length = torch.linalg.vector_norm(z_l) if self.distribution.unit == "norm" else math.sqrt(w_l.numel())
        n_l: Tensor = z_l * (torch.linalg.vector_norm(w_l) * self.level / length)
        return n_l

    def _gradient(self, parameters: list[Tensor], loss: Callable[[], Tensor], point: list[Tensor]) -> list[Tensor]:
        self._set_layers(point)
        gradients = torch.autograd.grad(loss(), parameters, allow_unused=True)
        return [torch.zeros_like(p) if g is None else g for g, p in zip(gradients, parameters, strict=True)]

    @torch.no_grad()
    def _set_layers(self, values: Sequence[Tensor]) -> None:
        for layer, value in zip(self.layers, values, strict=True):
            layer.copy_(value)
