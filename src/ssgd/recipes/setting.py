"""Does the gain hang on what the paper does not state: weight decay, shortcut, and devices that share a batch?

Its nets fit the training images better than ours; and batch-norm over half a batch alone lifts ours.
"""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .baseline import DECAYS
from .cifar import cifar
from .price import CONTENDERS

NETS = {"A": ("resnet20", 1), "B": ("resnet20-B", 1), "A-2": ("resnet20", 2)}  # model and devices
LABELS = ("sgd", "split-0.26", "ssgd-0.5")


def setting(net: str, decay: str, label: str) -> Recipe:
    """ResNet20 on CIFAR-100 with that shortcut, on as many devices, trained as one of price's contenders."""
    (model, devices), (method, level) = NETS[net], CONTENDERS[label]
    return replace(
        cifar(model=model),
        name=f"setting/{net}/{decay}/{label}",
        devices=devices,
        method=method,
        level=level,
        weight_decay=DECAYS[decay],
        evaluate_every=5,
        seeds=(1, 2, 3),
    )
