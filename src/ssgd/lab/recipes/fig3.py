"""Figures 3 and A1: test accuracy against the noise level, for S-SGD in its variants and for SmoothOut."""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .cifar import cifar

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
FIG3 = ("all", "conv", "dense", "smoothout")
FIG_A1 = (*FIG3, "ssgd-x2", "smoothout-x2")
DROPPED = 0.2  # SGD+Dropout(0.2)


def fig3(level: float, curve: str = "all") -> Recipe:
    """ResNet20 on CIFAR-100 at that level: S-SGD on all layers, conv or dense alone, or the method of that name."""
    of_layers = curve in ("all", "conv", "dense")
    return replace(
        cifar(),
        name=f"fig3/{curve}/{level:g}",
        method="ssgd" if of_layers else curve,
        level=level,
        perturb=curve if of_layers else "all",
        seeds=(0, 1, 2, 3, 4),
    )


def level_0() -> Recipe:
    """SGD."""
    return replace(cifar(), name="fig3/sgd", seeds=(0, 1, 2, 3, 4))


def dropout() -> Recipe:
    """SGD with dropout before the dense layer."""
    return replace(level_0(), name="fig3/dropout", method="dropout", level=DROPPED)
