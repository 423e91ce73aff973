"""List the models with their parameters."""

from __future__ import annotations

import argparse

from .. import models


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    for model in models.MODELS.values():
        classes = 1000 if model.image_size == 224 else 10
        count = sum(p.numel() for p in model.make(classes).parameters())
        print(f"{model.name:18} {count:>12,} parameters for {classes} classes  {model.description}")
