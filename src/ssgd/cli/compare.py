"""Train variants of a recipe, or of your own model on your own images, and compare them over seeds.

--vary method=base,split:0.15,both:0.3 trains one variant for each value; of several fields, all combinations.
Without --vary and method they are SGD, S-SGD and split.

--model package.module:function --data FOLDER, without a recipe, compares SGD, S-SGD and split on a folder of images
with train/ and val/, a folder in them for each class. The function is called with the number of classes.
"""

from __future__ import annotations

import argparse
import re
from itertools import product

from ..lab.recipes.configure import from_command_line, named
from ..lab.recipes.own import METHODS
from ..lab.train.recipe import Recipe
from ..lab.train.terminal import ended, show


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vary", action="append", default=[], metavar="KEY=A,B,…", help="a field and the values to compare"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    def work() -> int:
        name, words = named(options.rest)
        first = [change.partition(",")[0] for change in options.vary if re.match("(lr|phases)=.", change)]
        words = [*words, *first]  # lr and phases must fit each other before anything is varied
        recipe, execution = from_command_line(name, words, "ssgd compare", __doc__ or "")
        own = any(re.match("(--)?method", word) for word in words)
        vary = options.vary or ([] if name and own else [f"method={','.join(METHODS)}"])
        return show(variants(recipe, vary), execution)

    return ended(work)


def variants(recipe: Recipe, vary: list[str]) -> list[Recipe]:
    """The recipe with every combination of the values, each named by its own."""
    choices: list[list[str]] = []
    for change in vary:
        key, equals, values = change.partition("=")
        if not equals or not values:
            raise ValueError(f"cannot use --vary {change!r}: write --vary method=base,split:0.15")
        if any(choice[0].startswith(f"{key}=") for choice in choices):
            raise ValueError(f"--vary {key} is given twice: give all its values at once, --vary {key}=A,B")
        choices.append([f"{key}={value}" for value in values.split(",")])
    found: list[Recipe] = []
    for combination in product(*choices):
        name = "/".join([recipe.name, *(re.sub("[:/]", "-", text.partition("=")[2]) for text in combination)])
        if any(name == other.name for other in found):
            raise ValueError(f"--vary makes {name} twice: give each value once")
        found.append(recipe.with_changes([*combination, f"name={name}"]))
    return found
