"""Table 3: ImageNet, and ten classes of it; train/ and val/ lie in a folder of that name, or ``data=PATH``."""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .cifar import DISTRIBUTION, MOMENTUM

LEVEL = 0.25
DEVICES = 8  # the cores of the paper's TPU, 128 images on each


def table3(depth: int, method: str = "sgd") -> Recipe:
    """ResNet18 or ResNet50, 90 epochs, batch 1024; rates and weight decay are the usual ones, not the paper's word."""
    return Recipe(
        name=f"table3/resnet{depth}/{method}",
        model=f"imagenet-resnet{depth}",
        data="imagenet",
        method=method,
        level=LEVEL if method == "ssgd" else None,
        distribution=DISTRIBUTION,
        phases="30-30-30",
        lr=(0.1, 0.01, 0.001),
        lr_for_batch=256,
        warm_up=5,
        batch=1024,
        devices=DEVICES,
        momentum=MOMENTUM,
        weight_decay=1e-4,
    )


def tiny_imagenet10() -> Recipe:
    """ResNet18 on ten classes of Tiny ImageNet, 5,000 images of 64 × 64; batch and epochs are ours."""
    return replace(
        table3(18),
        name="tiny-imagenet10",
        data="tiny-imagenet-10",
        image_size=64,
        batch=128,
        devices=1,
        lr_for_batch=None,
        weight_decay=5e-4,
    )
