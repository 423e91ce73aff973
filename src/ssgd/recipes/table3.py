"""Table 3: ImageNet. The folder with train/ and val/ is given by ``data=PATH``."""

from __future__ import annotations

from ..train.recipe import Recipe
from .cifar import LAW, MOMENTUM

LEVEL = 0.25


def table3(depth: int, method: str = "sgd") -> Recipe:
    """ResNet18 or ResNet50, 90 epochs, batch 1024; rates and weight decay are the usual ones, not the paper's word."""
    return Recipe(
        name=f"table3/resnet{depth}/{method}",
        model=f"imagenet-resnet{depth}",
        data="imagenet",
        method=method,
        level=LEVEL if method == "ssgd" else None,
        law=LAW,
        phases="30-30-30",
        lr=(0.1, 0.01, 0.001),
        lr_for_batch=256,
        warm_up=5,
        batch=1024,
        momentum=MOMENTUM,
        weight_decay=1e-4,
    )
