"""What is the paper's noise level: the ratio of norms, or the peak of uniform noise in units of the rms?"""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .fig3 import fig3, level_0

DISTRIBUTIONS = ("sphere", "uniform")
SEEDS = (1, 2, 3)  # three of those that price has: its SGD and its 0.5 of uniform need not be trained again


def level(distribution: str, a: float) -> Recipe:
    """ResNet20 on CIFAR-100, S-SGD at level ``a`` of that distribution."""
    return replace(
        fig3(a), name=f"level/{distribution}/{a:g}", distribution=distribution, evaluate_every=5, seeds=SEEDS
    )


def sgd() -> Recipe:
    """Level 0."""
    return replace(level_0(), name="level/sgd", evaluate_every=5, seeds=SEEDS)
