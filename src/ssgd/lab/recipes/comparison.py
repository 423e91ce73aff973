"""The paper's comparison with other regularisers (section 6.1) that is not in figure 3: DropConnect."""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .cifar import cifar

DROPPED = 0.2  # not stated


def dropconnect() -> Recipe:
    """ResNet20 on CIFAR-10 with DropConnect on the dense layer."""
    return replace(
        cifar("cifar10"), name="comparison/dropconnect", method="dropconnect", level=DROPPED, seeds=(0, 1, 2, 3, 4)
    )


def dropconnect_conv() -> Recipe:
    """The same on the convolutions instead, with which the paper's training failed."""
    return replace(dropconnect(), name="comparison/dropconnect-conv", perturb="conv")
