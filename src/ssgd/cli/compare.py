"""Train variants of a recipe, or of your own model on your own images, and compare them over seeds.

--vary method=base,split:0.15,both:0.3 trains one variant for each value; of several fields, all combinations.
Without --vary and method they are SGD, S-SGD and split.

--model package.module:function --data FOLDER, without a recipe, compares SGD, S-SGD and split on a folder of images
with train/ and val/, a folder in them for each class. The function is called with the number of classes.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

from ..lab.experiments.custom import METHODS
from ..lab.train.recipe import Execution, Recipe
from .arguments import add_on
from .comparison import WRITERS, Row, check_places
from .fields import add_fields, chosen, in_name, prepared, short, value_of
from .training import show

__all__ = ["KEPT", "add_arguments", "prepared", "run"]
KEPT = "the last checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vary", action="append", default=[], metavar="KEY=A,B,…", help="A field and the values to compare."
    )
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="Writes the table and the figure of each seed as JSON."
    )
    parser.add_argument("--csv", type=Path, metavar="FILE", help="Writes the table as CSV.")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="Draws the differences to the first, as .png, .pdf or .svg."
    )
    add_on(parser)
    add_fields(parser)


def run(options: argparse.Namespace) -> int:
    vary = options.vary
    if not vary and (options.recipe is None or value_of(options, "method") is None):
        vary = [f"method={','.join(METHODS)}"]
    recipe, execution = begun_with(options, "ssgd compare", vary)
    files = {what: getattr(options, what) for what in WRITERS}
    check_places(**files)

    def keep(rows: list[Row]) -> None:
        for what, path in files.items():
            if path is not None:
                WRITERS[what](rows, path)
                print(f"written: {path}")

    return show(variants(recipe, vary), execution, keep, options.on)


def begun_with(options: argparse.Namespace, program: str, vary: list[str]) -> tuple[Recipe, Execution]:
    """Returns the recipe that is to be varied, and the execution."""
    # lr and phases must fit each other before anything is varied
    first = [change.partition(",")[0] for change in vary if change.partition("=")[0] in ("lr", "phases")]
    options.changes += [change for change in first if change.partition("=")[2]]
    return chosen(options, program, [change.partition("=")[0].replace("-", "_") for change in vary])


def combinations(vary: list[str]) -> list[tuple[str, ...]]:
    """Every combination of the values that --vary gives, as ``key=value`` texts."""
    choices: list[list[str]] = []
    for change in vary:
        key, equals, values = change.partition("=")
        if not equals or not values:
            raise ValueError(f"cannot use --vary {change!r}: write --vary method=base,split:0.15")
        if any(choice[0].startswith(f"{key}=") for choice in choices):
            raise ValueError(f"--vary {key} is given twice: give all its values at once, --vary {key}=A,B")
        choices.append([f"{key}={value}" for value in values.split(",")])
    return list(product(*choices))


def variants(recipe: Recipe, vary: list[str]) -> list[Recipe]:
    """The recipe with every combination of the values, each named by its own."""
    found: list[Recipe] = []
    for combination in combinations(vary):
        varied = [text.partition("=")[::2] for text in combination]
        name = "/".join([recipe.name, *(short(in_name(key, value)) for key, value in varied)])
        if any(name == other.name for other in found):
            raise ValueError(f"--vary makes {name} twice: give each value once")
        found.append(recipe.with_changes([*combination, f"name={name}"]))
    return found
