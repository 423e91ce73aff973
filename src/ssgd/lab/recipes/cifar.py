"""The paper's protocol for CIFAR, on which its tables and figures build."""

from __future__ import annotations

from ..train.recipe import Recipe

WEIGHT_DECAY = 5e-4  # not stated in the paper: the one of three that gives its SGD (results/baseline.jsonl)
MOMENTUM = 0.9  # not stated either
DISTRIBUTION = "uniform"  # our reading of the paper's level: the peak of U(−a, a) in units of the layer's rms


def cifar(data: str = "cifar100", model: str = "resnet20") -> Recipe:
    """175 epochs of SGD: batch 128, learning rate 0.1, divided by 10 after 75 and 125 epochs."""
    return Recipe(
        name=data,
        model=model,
        data=data,
        phases="75-50-50",
        lr=(0.1, 0.01, 0.001),
        batch=128,
        momentum=MOMENTUM,
        weight_decay=WEIGHT_DECAY,
        distribution=DISTRIBUTION,
    )


def cifar10() -> Recipe:
    """ResNet20 on CIFAR-10."""
    return cifar("cifar10")


def cifar100() -> Recipe:
    """ResNet20 on CIFAR-100."""
    return cifar("cifar100")
