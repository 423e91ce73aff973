"""Choose the level, or other fields, on held-out data; called again it goes on where it was cut.

--vary KEY=A,B,… names what to choose from, as in ssgd compare: --vary level=0.1,0.2 --vary lr=0.05,0.1 are four
candidates. Without --vary they are six levels of the method, 0 among them; without a method that of split.

All candidates are trained in a short course. The best third goes on to one of three times the epochs, until a round
at full length leaves one. held_out=N training samples take the place of the test set, a tenth where it is not given.

--model package.module:function --data FOLDER, without a recipe, is for your own images.
"""

from __future__ import annotations

import argparse
import shlex
import time
from functools import partial

from ..lab.columns import in_columns
from ..lab.experiments.running import outcomes
from ..lab.experiments.tuning import Round, halving, judged_on_held_out
from ..lab.train.recipe import Recipe
from ..methods import registry
from .arguments import add_on, refuse_several_processes
from .compare import begun_with, combinations, variants
from .fields import add_fields, prepared, value_of
from .progress import Progress

__all__ = ["KEPT", "add_arguments", "prepared", "run"]
KEPT = "the last checkpoint"
AROUND = (0.0, 1 / 3, 2 / 3, 1.0, 4 / 3, 2.0)  # times the method's own level


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--vary", action="append", default=[], metavar="KEY=A,B,…", help="A field and the values to choose from."
    )
    add_on(parser)
    add_fields(parser)


def run(options: argparse.Namespace) -> int:
    refuse_several_processes("tune")
    began, given = time.monotonic(), value_of(options, "held_out")
    if given == "0":
        raise ValueError("held_out=0 would judge on the test set: give another number, or leave it out")
    options.changes += ["held_out=1"] if given is None else []  # the test data are not looked for
    options.changes += ["seeds=0"] if value_of(options, "seeds") is None else []
    recipe, execution = begun_with(options, "ssgd tune", [*options.vary, "held_out="])
    recipe = recipe.with_changes([f"name=tune/{recipe.name}", *(["held_out=0"] if given is None else [])])
    vary = options.vary or [f"method={','.join(levels(recipe))}"]
    recipe, judge = judged_on_held_out(recipe, execution)
    candidates = variants(recipe, vary)
    print(f"{len(candidates)} candidates on {recipe.data}, judged on {judge}; the test set is not used", flush=True)
    progress = partial(Progress, execution.progress)
    rounds = list(halving(candidates, lambda courses: outcomes(courses, execution, options.on, progress, began)))
    names = [candidate.name for candidate in candidates]
    print(table(names, rounds, aside=f"{recipe.name}/"))
    words = dict(zip(names, combinations(vary), strict=True))[next(iter(rounds[-1].figures))]
    decided = {"held_out", "seeds", *(word.partition("=")[0] for word in words)}
    kept = [change for change in options.changes if change.partition("=")[0] not in decided]
    print(f"\nthe best: {shlex.join(['ssgd', 'train', *filter(None, [options.recipe]), *kept, *words])}")
    return 0


def levels(recipe: Recipe) -> list[str]:
    """Levels of the recipe's method to choose from, of split where it has none: ``split:0.1``."""
    method = registry.get(recipe.method if registry.get(recipe.method).settings else "split")
    level = method.settings[0]
    return list(dict.fromkeys(f"{method.name}:{min(level.default * times, level.high):.2g}" for times in AROUND))


def table(names: list[str], rounds: list[Round], aside: str) -> str:
    """Returns the figure of every candidate in each round that it came to, the best first.

    ``aside`` is what all names begin with.
    """
    head = ["candidate", *(f"{one.metric} after {one.epochs} epoch{'s' * (one.epochs > 1)}" for one in rounds)]
    lines = [head]
    for name in dict.fromkeys([*(name for one in reversed(rounds) for name in one.figures), *names]):
        figures = (one.figures.get(name) for one in rounds)
        lines.append([name.removeprefix(aside), *("–" if value is None else f"{value:.2f}" for value in figures)])
    return in_columns(lines)
