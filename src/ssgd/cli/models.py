"""List the models with their parameters."""

from __future__ import annotations

import argparse

CLASSES = {"imagenet": 1000, "lstm": 10_000, "gpt": 50, "sgcn": 29}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """There are none."""


def run(options: argparse.Namespace) -> None:
    import torch

    from ..lab import models

    for model in models.MODELS.values():
        classes = CLASSES.get(model.name.partition("-")[0], 10)
        with torch.device("meta"):
            count = sum(p.numel() for p in model.make(classes).parameters())
        print(f"{model.name:18} {count:>12,} parameters for {classes} classes  {model.description}")
