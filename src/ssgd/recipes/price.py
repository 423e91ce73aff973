"""What does a gain cost? S-SGD in one pass and in two against SGD, its controls and SAM; and how each is tuned."""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .cifar import cifar

MODELS = ("resnet20", "resnet56", "wrn28-2", "vgg16")
MIX = "75-25S-25S"
CONTENDERS: dict[str, tuple[str, float | None]] = {
    "sgd": ("sgd", None),
    "halves": ("halves", None),
    "split-0.15": ("split", 0.15),
    "split-0.25": ("split", 0.25),
    "split-0.35": ("split", 0.35),
    "split-0.5": ("split", 0.5),
    "ssgd-0.5": ("ssgd", 0.5),
    f"{MIX}-0.5": ("ssgd", 0.5),
    "sam-0.1": ("sam", 0.1),
    "asam-1": ("asam", 1.0),
    "sgd-2x": ("sgd-2x", None),
}
TUNED: dict[str, tuple[float, ...]] = {
    "split": (0.1, 0.15, 0.25, 0.35, 0.5),
    "ssgd": (0.2, 0.3, 0.4, 0.5, 0.7),
    MIX: (0.3, 0.4, 0.5, 0.7),
    "sam": (0.02, 0.05, 0.1, 0.2, 0.4),
    "asam": (0.2, 0.5, 1.0, 2.0, 4.0),
}
HELD_OUT = 5000


def price(data: str, model: str, label: str) -> Recipe:
    """Judged on the test set, with seeds that no tuning has seen."""
    return replace(_with(data, model, label, *CONTENDERS[label]), name=f"price/{data}/{model}/{label}")


def tune(data: str, model: str, label: str, level: float | None = None) -> Recipe:
    """Judged on training images held out, at a level or rho worth trying."""
    method = "ssgd" if label == MIX else label
    name = label if level is None else f"{label}-{level:g}"
    recipe = _with(data, model, label, method, level)
    return replace(recipe, name=f"tune/{data}/{model}/{name}", held_out=HELD_OUT, seeds=(0,))


def _with(data: str, model: str, label: str, method: str, level: float | None) -> Recipe:
    recipe = replace(cifar(data, model), method=method, level=level, seeds=(1, 2, 3, 4, 5))
    return replace(recipe, phases=MIX) if label.startswith(MIX) else recipe
