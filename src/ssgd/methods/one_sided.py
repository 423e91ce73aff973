"""Weight noise on one side only: what S-SGD adds its mirror image to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.optim import Optimizer

from ..core.checks import check_count
from ..core.noisy import Noisy
from ..core.points import Level
from ..core.walk import Point


class OneSided(Noisy):
    """Gradients at w + n, with noise drawn afresh for every step: g = ∇L(w + n).

    With ``distribution="sphere"`` (the default) it is weight noise of fixed norm (Murray & Edwards, 1993; An, 1996).
    With ``distribution="uniform"`` it is SmoothOut (Wen et al., arXiv:1805.07898): U(−a, a) in every element, scaled by
    the layer's rms, where a is √3 times the level (:func:`ssgd.paper_level`). ``pairs=2`` averages over two independent
    draws ("SmoothOut x2"), for two passes.

    Options not named here are those of :class:`ssgd.SSGD`.
    """

    def __init__(
        self, base: Optimizer, noise: Level, *, pairs: int = 1, distribution: Any = "sphere", **options: Any
    ) -> None:
        check_count("pairs", pairs)
        self.pairs = pairs
        super().__init__(base, noise, distribution=distribution, **options)

    def points(self) -> Iterator[Point]:
        """The points to take this batch's gradient at: one for each draw."""
        yield from self._over([1] * self.pairs)

    def split(self, *batch: Any) -> Iterator[tuple[Point, Any]]:
        """Noise of its own for each half of the batch: the one-sided counterpart of S-SGD's split."""
        if self.pairs > 1:
            raise ValueError("split() draws once for each half: use pairs=1, or points()")
        yield from self._over_halves(batch, [1, 1])
