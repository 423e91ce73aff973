"""Figures A4 to A6: the solutions whose Hessians' eigenvalues are drawn."""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .cifar import cifar

LEVEL = 0.5  # not stated for these figures


def wide(label: str) -> Recipe:
    """WideResNet20-2 on CIFAR-100, by SGD or S-SGD."""
    recipe = replace(cifar("cifar100", "wrn20-2"), name=f"figA6/{label}")
    return replace(recipe, method="ssgd", level=LEVEL) if label == "ssgd" else recipe
