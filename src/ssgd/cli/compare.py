"""Train variants of a recipe, several at once on a GPU, and compare them over seeds.

--vary method=sgd,split:0.15,ssgd:0.3 trains one variant for each value; twice given, all combinations.
"""

from __future__ import annotations

import argparse
from itertools import product

from ..recipes.configure import from_command_line
from ..train.recipe import Recipe, override
from ..train.terminal import ended, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", nargs="?", metavar="RECIPE", help="one of `ssgd recipes`, or a run's folder")
    parser.add_argument(
        "--vary", action="append", default=[], metavar="KEY=A,B,…", help="a field and the values to compare"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    def work() -> int:
        recipe, execution = from_command_line(options.recipe, options.rest, "ssgd compare")
        return show(variants(recipe, options.vary), execution)

    return ended(work)


def variants(recipe: Recipe, vary: list[str]) -> list[Recipe]:
    """The recipe with every combination of the values, each named by its own."""
    choices = []
    for change in vary:
        key, equals, values = change.partition("=")
        if not equals or not values:
            raise ValueError(f"cannot use --vary {change!r}: write --vary method=sgd,split:0.15")
        choices.append([f"{key}={value}" for value in values.split(",")])
    found = []
    for combination in product(*choices):
        name = "/".join([recipe.name, *(text.partition("=")[2].replace(":", "-") for text in combination)])
        found.append(override(recipe, [*combination, f"name={name}"]))
    return found
