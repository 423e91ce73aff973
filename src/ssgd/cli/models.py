"""List the models with their parameters."""

from __future__ import annotations

import argparse

import torch

from ..lab import models

CLASSES = {"imagenet": 1000, "lstm": 10_000, "sgcn": 29}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    for model in models.MODELS.values():
        classes = CLASSES.get(model.name.partition("-")[0], 10)
        with torch.device("meta"):
            count = sum(p.numel() for p in model.make(classes).parameters())
        print(f"{model.name:18} {count:>12,} parameters for {classes} classes  {model.description}")
