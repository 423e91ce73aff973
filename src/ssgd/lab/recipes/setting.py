"""Does the gain hang on what the paper does not state: weight decay, shortcut, batch-norm, devices that share a batch?

Its nets fit the training images better than ours, and are better at the larger learning rates, at which batch-norm's
statistics are least steady; and batch-norm over half a batch alone lifts ours.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..train.recipe import Recipe
from .baseline import DECAYS
from .cifar import cifar
from .price import CONTENDERS

NETS: dict[str, dict[str, Any]] = {
    "A": {},
    "B": {"model": "resnet20-B"},
    "A-2": {"devices": 2},
    "A-tf": {"model": "resnet20-tf"},  # the paper trained with TensorFlow
    "A-w": {"decayed": "weights"},  # as kernel regularisers have it
}
LABELS = ("sgd", "split-0.26", "ssgd-0.5")


def setting(net: str, decay: str, label: str) -> Recipe:
    """ResNet20 on CIFAR-100 but for what NETS says, trained as one of price's contenders."""
    method, level = CONTENDERS[label]
    return replace(
        cifar(),
        name=f"setting/{net}/{decay}/{label}",
        method=method,
        level=level,
        weight_decay=DECAYS[decay],
        evaluate_every=5,
        seeds=(1, 2, 3),
        **NETS[net],
    )
