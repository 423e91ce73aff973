"""Figures 2 and 7: the plane through three solutions, two of which begin where the first ends, and the line of these.

Figure 2 is "a 1-D sectional view" of figure 7 (section 6.2): both ends of its line share the first 125 epochs.
"""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .cifar import cifar

LEVEL = 0.5  # not stated for these figures: in table 2 it has the error that figure 2 tells
PHASES = {"sgd-m": "75-50", "sgd-f": "75-50-50", "ssgd": "75-50-50S"}


def fig7(label: str) -> Recipe:
    """ResNet20 on CIFAR-100: 125 epochs of SGD, and 50 more of SGD or of S-SGD."""
    recipe, phases = replace(cifar(), name=f"fig7/{label}"), PHASES[label]
    recipe = replace(recipe, phases=phases, lr=recipe.lr[: len(phases.split("-"))])
    return replace(recipe, method="ssgd", level=LEVEL) if label == "ssgd" else recipe
