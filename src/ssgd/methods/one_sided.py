"""Weight noise on one side only: what S-SGD adds its mirror image to."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from ..core.checks import check_count
from ..core.noise_points import NoisePoints, NoisyOptimizer
from ..core.weights import Level


class OneSided(NoisyOptimizer):
    """Gradients at w + n, with noise drawn afresh for every step: g = ∇L(w + n).

    With ``distribution="sphere"`` (the default) it is weight noise of fixed norm (Murray & Edwards, 1993; An, 1996).
    With ``distribution="uniform"`` it is SmoothOut (Wen et al., arXiv:1805.07898): U(−a, a) in every element, scaled by
    the layer's rms, where a is √3 times the level (:func:`ssgd.paper_level`). ``pairs=2`` averages over two independent
    draws ("SmoothOut x2"), for two passes. ``split()`` draws noise of its own for each half of the batch.

    Options not named here are those of :class:`ssgd.SSGD`.
    """

    def __init__(
        self, base: Optimizer, noise: Level, *, pairs: int = 1, distribution: Any = "sphere", **options: Any
    ) -> None:
        check_count("pairs", pairs)
        rule = NoisePoints(
            noise,
            [(1, draw) for draw in range(pairs)],
            options,
            distribution=distribution,
            halves=[(1, 0), (1, 1)] if pairs == 1 else None,
            no_split="split() draws once for each half: use pairs=1, or points()",
        )
        super().__init__(base, rule, **options)
        self.pairs = pairs
