"""Figures 2 and 7: the line between two solutions, the plane through three, two of which begin where the first ends."""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .cifar import cifar
from .table2 import table2

LEVEL = 0.5  # not stated for these figures: it gives figure 2's error in table 2
PHASES = {"sgd-m": "75-50", "sgd-f": "75-50-50", "ssgd": "75-50-50S"}


def fig7(label: str) -> Recipe:
    """ResNet20 on CIFAR-100: 125 epochs of SGD, and 50 more of SGD or of S-SGD."""
    recipe, phases = replace(cifar(), name=f"fig7/{label}"), PHASES[label]
    recipe = replace(recipe, phases=phases, lr=recipe.lr[: len(phases.split("-"))])
    return replace(recipe, method="ssgd", level=LEVEL) if label == "ssgd" else recipe


def fig2(label: str) -> Recipe:
    """The ends of the line: table 2's ResNet20 on CIFAR-100, of the seed whose line is committed."""
    return replace(table2("cifar100", "resnet20", None if label == "sgd" else LEVEL), seeds=(3,))
