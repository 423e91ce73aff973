"""Does the gain hang on weight decay and shortcut? The paper states neither, and its nets fit the images better."""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .baseline import DECAYS
from .cifar import cifar
from .price import CONTENDERS

MODELS = {"A": "resnet20", "B": "resnet20-B"}
LABELS = ("sgd", "split-0.26", "ssgd-0.5")


def setting(shortcut: str, decay: str, label: str) -> Recipe:
    """ResNet20 on CIFAR-100 with that shortcut, trained as one of price's contenders."""
    method, level = CONTENDERS[label]
    return replace(
        cifar(model=MODELS[shortcut]),
        name=f"setting/{shortcut}/{decay}/{label}",
        method=method,
        level=level,
        weight_decay=DECAYS[decay],
        evaluate_every=5,
        seeds=(1, 2, 3),
    )
