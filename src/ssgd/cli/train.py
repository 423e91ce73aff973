"""Train a recipe with all its seeds; called again it goes on where it was cut.

Every field of the recipe can be given as key=value or as an option: ssgd train cifar100 method=split:0.15 --seeds 0 1 2
"""

from __future__ import annotations

import argparse

from ..lab.recipes.configure import from_command_line, named
from ..lab.train.terminal import ended, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return ended(lambda: show(*from_command_line(*named(options.rest), "ssgd train", __doc__ or "")))
