"""Which weight decay, which the paper does not state, gives its SGD?"""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .cifar import cifar

DECAYS = {"1e-4": 1e-4, "2e-4": 2e-4, "5e-4": 5e-4}


def baseline(data: str, decay: str) -> Recipe:
    """ResNet20 by SGD."""
    return replace(cifar(data), name=f"baseline/{data}/{decay}", weight_decay=DECAYS[decay], seeds=(0, 1, 2))
