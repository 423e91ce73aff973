"""Table 2: six models on both CIFARs, SGD against S-SGD at two levels."""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .cifar import cifar

LEVELS = {
    "resnet20": (0.4, 0.5),
    "resnet56": (0.4, 0.5),
    "wrn28-2": (0.5, 0.7),
    "wrn28-4": (0.5, 0.7),
    "vgg6": (0.7, 0.9),
    "vgg16": (0.7, 0.9),
}


def table2(data: str, model: str, level: float | None = None) -> Recipe:
    """S-SGD in all phases at that level, or SGD."""
    recipe = replace(cifar(data, model), seeds=(0, 1, 2, 3, 4))
    if level is None:
        return replace(recipe, name=f"table2/{data}/{model}/sgd")
    return replace(recipe, name=f"table2/{data}/{model}/ssgd-{level:g}", method="ssgd", level=level)
