"""Train a recipe with all its seeds; called again it goes on where it was cut.

Every field of the recipe can be given as key=value or as an option: ssgd train cifar100 method=split:0.15 --seeds 0 1 2
"""

from __future__ import annotations

import argparse

from .fields import add_fields, chosen, prepared
from .training import show

__all__ = ["KEPT", "add_arguments", "prepared", "run"]
KEPT = "the last checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_fields(parser)


def run(options: argparse.Namespace) -> int:
    recipe, execution = chosen(options, "ssgd train")
    return show([recipe], execution)
