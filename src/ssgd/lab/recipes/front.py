"""What does a method's level cost and bring? Each method at several levels, on images held out."""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .cifar import cifar
from .price import HELD_OUT

LEVELS: dict[str, tuple[float | None, ...]] = {  # of noise: its norm ÷ that of the weights
    "sgd": (None,),
    "sgd-decay-2e-3": (None,),  # more decay is a rival of noise
    "split": (0.15, 0.25, 0.4),
    "noise": (0.15, 0.25, 0.4),
    "halves": (None,),
    "noise-halves": (0.15, 0.25, 0.4),
    "ssgd": (0.17, 0.29, 0.5),
    "sam": (0.05, 0.1, 0.2),
    "asam": (0.5, 1.0, 2.0),
    "dropconnect": (None,),
}
DECAYS = {"sgd-decay-2e-3": 2e-3}


def front(label: str, level: float | None = None) -> Recipe:
    """ResNet20 on CIFAR-100, judged on training images held out."""
    recipe = cifar()
    return replace(
        recipe,
        name=f"front/cifar100/resnet20/{label if level is None else f'{label}-{level:g}'}",
        method="sgd" if label in DECAYS else label,
        level=level,
        distribution="sphere",
        weight_decay=DECAYS.get(label, recipe.weight_decay),
        held_out=HELD_OUT,
        evaluate_every=5,
        seeds=(0,),
    )
