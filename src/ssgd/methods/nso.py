"""NSO: the symmetric pair with noise of one absolute size for all weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.optim import Optimizer

from ..core.checks import check_count
from ..core.noisy import Noisy
from ..core.points import Level
from ..core.walk import Point


class NSO(Noisy):
    """Noise stability optimization (Zhang et al., arXiv:2306.08553).

    g = ( ∇L(w + u) + ∇L(w − u) ) / 2 with u ~ N(0, σ²) in every trainable weight, biases and normalisation included:
    S-SGD's pair, but σ (the group key ``noise``) is absolute, not relative to the layer, and the norm is not fixed.

    Options not named here are those of :class:`ssgd.SSGD`; the distribution is fixed.
    """

    every_tensor = True

    def __init__(self, base: Optimizer, noise: Level, *, pairs: int = 1, **options: Any) -> None:
        check_count("pairs", pairs)
        self.pairs = pairs
        super().__init__(base, noise, distribution="gaussian", **options)

    def points(self) -> Iterator[Point]:
        """The points to take this batch's gradient at: +u and −u for each pair."""
        yield from self._over([1, -1] * self.pairs)

    def split(self, *batch: Any) -> Iterator[tuple[Point, Any]]:
        """+u with one half of the batch, −u with the other."""
        if self.pairs > 1:
            raise ValueError("split() has two halves for one pair of signs: use pairs=1, or points()")
        yield from self._over_halves(batch, [1, -1])
