"""Figure 3: test accuracy against the noise level, on all layers, convolutions only, dense only."""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .cifar import cifar

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)


def fig3(level: float, perturb: str = "all") -> Recipe:
    """ResNet20 on CIFAR-100 at that level."""
    name = f"fig3/{perturb}/{level:g}"
    return replace(cifar(), name=name, method="ssgd", level=level, perturb=perturb, seeds=(0, 1, 2, 3, 4))
