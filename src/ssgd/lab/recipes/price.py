"""What does a gain cost? S-SGD in one pass and in two against SGD, its controls and SAM; and how each is tuned."""

from __future__ import annotations

from dataclasses import replace

from ..train.recipe import Recipe
from .cifar import cifar

MODELS = ("resnet20", "resnet56", "wrn28-2", "vgg16")
MIX, LAST = "75-25S-25S", "75-50-25S"  # two passes at SGD's cost, as in table 1
LATE = "75-50S-50S"  # noise once the rate has fallen
CONTENDERS: dict[str, tuple[str, float | None]] = {  # method and level
    "sgd": ("sgd", None),
    "halves": ("halves", None),
    "split-0.26": ("split", 0.26),  # the best of tune's for ResNet20 on CIFAR-100, as are SAM's and ASAM's
    "ssgd-0.5": ("ssgd", 0.5),  # the level of tables 1 and 2, whose runs count here
    f"{MIX}-0.5": ("ssgd", 0.5),
    f"{LAST}-0.5": ("ssgd", 0.5),
    f"{LATE}-split-0.26": ("split", 0.26),
    "sam-0.05": ("sam", 0.05),
    f"{LAST}-sam-0.05": ("sam", 0.05),
    "asam-0.5": ("asam", 0.5),
    "sgd-2x": ("sgd-2x", None),
}
TUNED: dict[str, tuple[float, ...]] = {  # uniform noise of level a has a / √3 of the weights' norm
    "split": (0.17, 0.26, 0.43),  # 0.1, 0.15 and 0.25 of it
    "ssgd": (0.2, 0.3, 0.5),  # 0.12, 0.17 and 0.29
    MIX: (0.3, 0.5),
    LAST: (0.3, 0.5, 0.7),
    f"{LATE}-split": (0.26, 0.43),
    "sam": (0.05, 0.1, 0.2),
    "asam": (0.25, 0.5, 1.0),
}
HELD_OUT = 5000


def price(data: str, model: str, label: str) -> Recipe:
    """Judged on the test set, with seeds that no tuning has seen."""
    return replace(_with(data, model, label, *CONTENDERS[label]), name=f"price/{data}/{model}/{label}")


def tune(data: str, model: str, label: str, level: float | None = None) -> Recipe:
    """Judged on training images held out, at a level or rho worth trying."""
    method = {MIX: "ssgd", LAST: "ssgd", f"{LATE}-split": "split"}.get(label, label)
    name = label if level is None else f"{label}-{level:g}"
    recipe = _with(data, model, label, method, level)
    return replace(recipe, name=f"tune/{data}/{model}/{name}", held_out=HELD_OUT, seeds=(0,))


def _with(data: str, model: str, label: str, method: str, level: float | None) -> Recipe:
    recipe = replace(cifar(data, model), method=method, level=level, evaluate_every=5, seeds=(1, 2, 3, 4, 5))
    phases = next((phases for phases in (MIX, LAST, LATE) if label.startswith(phases)), recipe.phases)
    return replace(recipe, phases=phases)
