"""How each kind of training goes: the fields of a recipe that its tables share.

The paper leaves open the momentum, the weight decay, how its noise is drawn, and most of what concerns speech and
words; a comment says where a value is ours.
"""

from __future__ import annotations

from typing import Any

from ...core.noise import paper_level
from ..train.recipe import Recipe

FIVE = (0, 1, 2, 3, 4)  # the paper's runs on CIFAR
UNIFORM = "uniform"  # our reading of the paper's noise, whose level is the peak of U(-a, a) in units of the layer's rms
HALF = paper_level(0.5)  # where the paper states no level: that of the better row of its table 2
BOTH = ("both", HALF)
BASE = ("base", None)

CIFAR: dict[str, Any] = {
    "phases": "75-50-50",
    "lr": (0.1, 0.01, 0.001),
    "batch": 128,
    "momentum": 0.9,  # not stated
    "weight_decay": 5e-4,  # not stated: of three the one that gives the paper's SGD (results/baseline.jsonl)
    "distribution": UNIFORM,
}
IMAGENET: dict[str, Any] = {  # rates and weight decay are the usual ones
    "data": "imagenet",
    "phases": "30-30-30",
    "lr": (0.1, 0.01, 0.001),
    "lr_for_batch": 256,
    "warm_up": 5,
    "batch": 1024,
    "devices": 8,  # the cores of the paper's TPU, 128 images on each
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "distribution": UNIFORM,
    "seeds": (0, 1, 2),
}
SPEECH: dict[str, Any] = {  # all of it ours but Adam; warmed up because the first gradients are the largest
    "augment": False,
    "lr": (1e-3, 1e-4),
    "warm_up": 1,
    "optimizer": "adam",
    "weight_decay": 0.0,
    "clip": 400.0,
    "batch": 16,
    "precision": "tf32",
    "distribution": UNIFORM,
}
CORPORA: dict[str, dict[str, Any]] = {
    "wsj": {"phases": "50-15", "batch": 32},  # the paper's 65 epochs or so are read off its figure 6
    "an4": {"phases": "30-15"},  # the errors on the validation part stop falling before epoch 30
    "connected-digits": {"phases": "24-12"},
}
WORDS: dict[str, Any] = {
    "data": "ptb",
    "augment": False,
    "lr": (1.0,),
    "momentum": 0.0,
    "weight_decay": 0.0,
    "batch": 20,
    "precision": "tf32",
    "distribution": UNIFORM,
}
CHARACTERS: dict[str, Any] = {  # no number of the paper: all of it is ours
    "model": "gpt-2x128",
    "data": "ptb-characters",
    "train_limit": 1_024_000,  # a fifth of the text: 500 steps of 16 windows of 128 characters
    "test_limit": 20_480,
    "augment": False,
    "phases": "2",
    "lr": (4e-3,),
    "warm_up": 0.2,
    "evaluate_every": 2,
    "anneal": "cosine",
    "optimizer": "adamw",
    "weight_decay": 0.1,
    "decayed": "weights",
    "batch": 16,
    "precision": "bf16",
}
LSTMS: dict[str, dict[str, Any]] = {
    "large": {"phases": "55", "decay": 1.15, "decay_after": 14, "clip": 10.0},  # Zaremba et al. (arXiv:1409.2329)
    # nowhere public: of four that were tried, the best on the validation part with the paper's perplexity for SGD
    "small": {"phases": "50", "decay": 1.15, "decay_after": 10, "clip": 5.0, "dropout": 0.4},
}


def cifar(
    data: str = "cifar100", model: str = "resnet20", method: str = "base", level: float | None = None, **changes: Any
) -> Recipe:
    """Returns the paper's protocol for CIFAR: 175 epochs, the rate 0.1 divided by 10 after 75 and 125 of them."""
    return Recipe(**{**CIFAR, "data": data, "model": model, "method": method, "level": level, **changes})


def imagenet(depth: int, method: str = "base", level: float | None = None) -> Recipe:
    """Returns ResNet18 or ResNet50 for 90 epochs; train/ and val/ lie in a folder called imagenet, or ``data=PATH``."""
    return Recipe(**IMAGENET, model=f"imagenet-resnet{depth}", method=method, level=level)


def tiny_imagenet10(method: str = "base", level: float | None = None, **changes: Any) -> Recipe:
    """Returns ResNet18 on ten classes of Tiny ImageNet, 5,000 images of 64 × 64; batch and epochs are ours."""
    small = {"data": "tiny-imagenet-10", "image_size": 64, "batch": 128, "devices": 1, "lr_for_batch": None}
    fields = {**IMAGENET, **small, "weight_decay": 5e-4, "seeds": (0,), "method": method, "level": level, **changes}
    return Recipe(model="imagenet-resnet18", **fields)


def speech(data: str, units: int, method: str = "base", level: float | None = None, **changes: Any) -> Recipe:
    """Returns SGCN by CTC under Adam; the net has no dropout and no masks, since the paper has none."""
    fields = {**SPEECH, **CORPORA[data], "data": data, "method": method, "level": level, **changes}
    return Recipe(model=f"sgcn-{units}", **fields)


def ptb(size: str, method: str = "base", level: float | None = None, **changes: Any) -> Recipe:
    """Returns a word-level LSTM on the Penn Treebank: plain SGD at rate 1 that falls from epoch to epoch."""
    return Recipe(model=f"lstm-{size}", **{**WORDS, **LSTMS[size], "method": method, "level": level, **changes})


def characters(method: str = "base", level: float | None = None, **changes: Any) -> Recipe:
    """Returns a small transformer on the characters of the Penn Treebank, under AdamW and without batch-norm."""
    return Recipe(**{**CHARACTERS, "method": method, "level": level, **changes})


def digits(**changes: Any) -> Recipe:
    """Returns a small convolutional net on 1,000 of the digits that come with the package: seconds."""
    fields = {"model": "small-cnn", "data": "digits", "batch": 50, "weight_decay": 5e-4, **changes}
    return Recipe(phases="8-4", lr=(0.1, 0.01), **fields)


def words() -> Recipe:
    """Returns a tiny LSTM on a language of thirty words that is made up on the spot: seconds."""
    fields = {**WORDS, "data": "fake-text", "precision": "fp32", "distribution": "sphere"}
    return Recipe(model="lstm-tiny", **{**fields, "phases": "4-2", "lr": (1.0, 0.2), "clip": 5.0})


def utterances() -> Recipe:
    """Returns a tiny net on sounds that are made up on the spot, by CTC: seconds."""
    return Recipe(
        model="sgcn-small",
        data="fake-speech",
        augment=False,
        phases="15-5",
        lr=(3e-3, 3e-4),
        optimizer="adam",
        weight_decay=0.0,
        batch=12,
        precision="fp32",
    )
