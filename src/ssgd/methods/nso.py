"""NSO: the symmetric pair with noise of one absolute size for all weights."""

from __future__ import annotations

from typing import Any

from torch.optim import Optimizer

from ..core.checks import check_count
from ..core.noise_points import NoisePoints, NoisyOptimizer
from ..core.weights import Level


class NSO(NoisyOptimizer):
    """Noise stability optimization (Zhang et al., arXiv:2306.08553).

    g = ( ∇L(w + u) + ∇L(w − u) ) / 2 with u ~ N(0, σ²) in every trainable weight, biases and normalisation included:
    S-SGD's pair, but σ (the group key ``noise``) is absolute, not relative to the layer, and the norm is not fixed.
    ``split()`` takes +u with one half of the batch and −u with the other.

    Options not named here are those of :class:`ssgd.SSGD`; the distribution is fixed.
    """

    def __init__(self, base: Optimizer, noise: Level, *, pairs: int = 1, **options: Any) -> None:
        check_count("pairs", pairs)
        both = [(sign, pair) for pair in range(pairs) for sign in (1, -1)]
        rule = NoisePoints(
            noise,
            both,
            options,
            distribution="gaussian",
            halves=both if pairs == 1 else None,
            no_split="split() has two halves for one pair of signs: use pairs=1, or points()",
            every_tensor=True,
        )
        super().__init__(base, rule, **options)
