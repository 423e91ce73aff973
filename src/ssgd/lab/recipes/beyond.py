"""Beyond CIFAR: words, speech and ten classes of ImageNet, at the same epochs and at the same cost.

``base`` is SGD or Adam alone. ``ssgd`` takes both signs in as many epochs, at twice the cost; ``ssgd-half`` in half the
epochs, at the same cost; ``split`` takes a sign a half in as many epochs, at the same cost, and ``one-sided`` the same
noise with one sign for all, which says what the pair is good for. ``base-2x`` is the base in twice the epochs: what the
cost of both signs could have bought. Of words the epochs are those after the first ``STEM_EPOCHS``, which are SGD's for
all, as in the paper's SGD(29)+S-SGD(26): ``stem`` is trained once, and the others go on from it.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ..train.recipe import Recipe
from .table3 import LEVEL as IMAGENET_LEVEL
from .table3 import tiny_imagenet10
from .table4 import table4
from .table5 import table5

LABELS = ("base", "ssgd", "split", "ssgd-half", "one-sided", "base-2x")
LEVELS = {  # of ssgd and of split; one-sided has split's
    "ptb-large": (0.9, 0.5),
    "ptb-small": (0.7, 0.4),
    "an4": (0.5, 0.25),
    "connected-digits": (0.5, 0.25),
    "tiny-imagenet10": (IMAGENET_LEVEL, IMAGENET_LEVEL),
}
SEEDS = {"ptb-large": (1,), "an4": (1, 2, 3, 4, 5)}
STEM_EPOCHS = {"ptb-large": 29, "ptb-small": 30}


def labels(task: str) -> tuple[str, ...]:
    """What is compared: of words not twice the epochs, since the rate goes down from epoch to epoch."""
    return LABELS[:-1] if task in STEM_EPOCHS else LABELS


def stem(task: str) -> Recipe:
    """Where the others of a task begin."""
    return replace(beyond(task, "base"), name=f"beyond/{task}/stem", phases=str(STEM_EPOCHS[task]))


def beyond(task: str, label: str) -> Recipe:
    """Seeds that no tuning has seen."""
    recipe = replace(_base(task), name=f"beyond/{task}/{label}", seeds=SEEDS.get(task, (1, 2, 3)))
    both, split = LEVELS[task]
    if label == "base-2x":
        return replace(recipe, method="sgd-2x")
    if label != "base":
        method, level = {"split": ("split", split), "one-sided": ("smoothout", split)}.get(label, ("ssgd", both))
        recipe = replace(recipe, method=method, level=level)
    if task in STEM_EPOCHS:
        return replace(recipe, phases=_after_stem(task, label, int(recipe.phases)))
    return _in_half(recipe) if label == "ssgd-half" else recipe


def _base(task: str) -> Recipe:
    if task.startswith("ptb-"):
        return table5(task.removeprefix("ptb-"))
    return tiny_imagenet10() if task == "tiny-imagenet10" else table4(task, 190)


def _after_stem(task: str, label: str, epochs: int) -> str:
    """The rate goes down from epoch to epoch as it did: half the epochs end at a higher one."""
    rest = epochs - STEM_EPOCHS[task]
    return f"{STEM_EPOCHS[task]}-{rest // 2 if label == 'ssgd-half' else rest}{'' if label == 'base' else 'S'}"


def _in_half(recipe: Recipe) -> Recipe:
    """The same course of the learning rate in half the epochs."""
    phases = "-".join(str(math.ceil(int(epochs) / 2)) for epochs in recipe.phases.split("-"))
    return replace(recipe, phases=phases, warm_up=recipe.warm_up / 2)
