"""RWP and m-ARWP: random weight perturbation mixed with the clean gradient."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..core.buckets import as_real
from ..core.gradients import present
from ..core.noisy import Noisy
from ..core.parallel import local
from ..core.points import Damping, Level
from ..core.walk import Point


class RWP(Noisy):
    """Random weight perturbation (Li et al., arXiv:2211.11489 and arXiv:2404.00357).

    g = λ ∇L(w + ε) + (1 − λ) ∇L(w), with ε ~ N(0, (γ‖w_f‖)²) in each filter f of every trainable weight. γ is the group
    key ``noise``; λ is ``share``: 1 is plain RWP (one pass), ½ the papers' mixture, m-RWP (two passes). With
    ``adaptive`` (ARWP) a filter's noise is divided by √(1 + η F_f), where F sums its past squared gradients,
    F ← β F + g², so that noise is smaller where the loss is curved (g as above, not the noisy one alone).

    The papers take the two gradients on different batches: ``split()`` does, on the halves of one.
    Options not named here are those of :class:`ssgd.SSGD`; the distribution is fixed.
    """

    every_tensor = True

    def __init__(
        self,
        base: Optimizer,
        noise: Level,
        *,
        share: float = 0.5,
        adaptive: bool = False,
        eta: float = 1.0,
        beta: float = 0.99,
        **options: Any,
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share is that of the noisy gradient: above 0 and at most 1, not {share!r}")
        if not eta >= 0 or not 0 <= beta < 1:
            raise ValueError(f"eta must be at least 0 and beta in [0, 1), not {eta!r} and {beta!r}")
        self.share, self.adaptive, self.eta, self.beta = share, adaptive, eta, beta
        super().__init__(base, noise, distribution="filter", **options)

    def points(self) -> Iterator[Point]:
        """The points to take this batch's gradient at: w, then w + ε."""
        yield from self._over([1]) if self.share == 1 else self._over([0, 1], [1 - self.share, self.share])

    def split(self, *batch: Any) -> Iterator[tuple[Point, Any]]:
        """The clean gradient with one half of the batch, the noisy one with the other."""
        if self.share == 1:
            raise ValueError("split() takes a clean and a noisy gradient: use a share below 1, or points()")
        yield from self._over_halves(batch, [0, 1], [1 - self.share, self.share])

    def _damping(self) -> Damping | None:
        if not self.adaptive:
            return None

        def by_filter(p: Tensor) -> Tensor:
            past = self.state[p].get("squared_gradients")
            if past is None:
                return torch.ones((), dtype=as_real(p).dtype, device=p.device)
            rows = tuple(range(1, past.dim()))
            return (1 + self.eta * (local(past).sum(rows, keepdim=True) if rows else local(past))).sqrt_()

        return by_filter

    @torch.no_grad()
    def _step_base(self) -> bool:
        stepped = super()._step_base()
        for p in self.selected if stepped and self.adaptive else []:
            if p.grad is not None:
                (gradient,) = map(as_real, present([p]))
                past = local(self.state[p].setdefault("squared_gradients", torch.zeros_like(as_real(p))))
                new = past * self.beta + gradient.square()
                past.copy_(new if self._found_inf is None else torch.where(self._found_inf > 0, past, new))
        return stepped
