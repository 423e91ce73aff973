"""Figure 5: large batches on four devices, with and without warm restarts.

The batch is divided in four as among the paper's devices, each of which has batch-norm and, we take it, noise of its
own: in one process, or in the four of ``torchrun --nproc-per-node 4``. The learning rate is that of one device, neither
scaled nor warmed up: section 4.3 says that all else is as on one, though section 3.1 has it "proportionally scaled to
the batch size". Controls have a name behind the method's: ``fig5/sgd-scaled/4096``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..train.recipe import Recipe
from .cifar import cifar

BATCHES = (1024, 2048, 4096, 16384)
METHODS = ("sgd", "sgdr", "ssgd", "ssgdr")
CONTROLLED = ("sgd", "ssgd")
CONTROLS: dict[str, dict[str, Any]] = {
    "scaled": {"lr_for_batch": 128, "warm_up": 5},  # a rate in proportion to the batch, reached in five epochs
    "rate-4": {"lr": (0.4, 0.04, 0.004)},  # times the number of devices, as users of Horovod have it
    "epochs-4": {"phases": "300-200-200"},  # each device goes through all images in one of the paper's epochs
}
LEVEL = 0.5  # not stated for this figure
DEVICES = 4


def fig5(method: str, batch: int) -> Recipe:
    """ResNet20 on CIFAR-10; the -r methods anneal by cosines of 10, 20, 40, … epochs, 300 in all."""
    level = LEVEL if method.startswith("ssgd") else None
    recipe = replace(cifar("cifar10"), name=f"fig5/{method}/{batch}", level=level, batch=batch, devices=DEVICES)
    if not method.endswith("r"):
        return replace(recipe, method=method)
    return replace(recipe, method=method, phases="10*2", lr=(0.1,), epochs=300)


def control(method: str, batch: int, name: str) -> Recipe:
    """The same but for what CONTROLS says."""
    return replace(fig5(method, batch), name=f"fig5/{method}-{name}/{batch}", **CONTROLS[name])
