"""Accuracy of solutions under weight noise, pruning, few bits and noisy inputs, as they are and recalibrated."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..files import append_line
from .arguments import add_graph, add_precision, add_solutions, execution, file_of, short_names

USUAL = {"language": "perplexity", "speech": "error"}  # the figure of a kind; a wrong word is an error of speech

if TYPE_CHECKING:
    from ..analysis import Tolerance
    from ..lab.solutions import Solution

KEPT = "the evaluations that are done"
NEEDS = ("matplotlib",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_solutions(parser, "Seeds of one training share a curve.")
    parser.add_argument(
        "--damage",
        nargs="+",
        metavar="NAME=S,S",
        help="The damages and their strengths, such as noise=0.2,0.4 pruning channel-bits=4 (default: nearly all).",
    )
    parser.add_argument("--draws", type=int, default=25, help="The draws of random damage (default: 25).")
    parser.add_argument(
        "--recalibrate",
        type=int,
        default=2000,
        metavar="N",
        help="Gathers batch-norm's statistics from N training samples (default: 2000).",
    )
    parser.add_argument(
        "--figure",
        choices=("accuracy", "error", "loss", "perplexity", "ece"),
        help="The figure to print and to draw (default: accuracy; perplexity of texts, the word error rate of speech).",
    )
    parser.add_argument("--seed", type=int, default=0, help="The seed of the damage (default: 0).")
    parser.add_argument("--results", type=Path, metavar="FILE", help="A file that gets a line of JSON for each run.")
    add_precision(parser, bf16=True)
    add_graph(parser)


def run(options: argparse.Namespace) -> int:
    from ..analysis import draw_tolerance
    from ..lab.solutions import solutions
    from ..lab.train.distributed import is_first_process

    found, results = solutions(options.solutions), []
    for one in found:
        if is_first_process() and not options.quiet:
            print(one.name)
        results.append(measure(one, options))
    if not is_first_process():  # torchrun's other processes have shared in the evaluations
        return 0
    trainings: dict[str, list[Tolerance]] = {}
    for one, result in zip(found, results, strict=True):
        trainings.setdefault(training(one), []).append(result)
        if options.results is not None:
            asked = {"limit": options.limit, "damage_seed": options.seed}
            row = {"experiment": one.recipe.name, "seed": one.recipe.seeds[0], **asked, **result.figures()}
            append_line(options.results, json.dumps(row, allow_nan=False))
    runs = dict(zip(short_names(list(trainings)), trainings.values(), strict=True))
    what = options.figure or usual_figure(found[0], results[0])
    print(table(runs, what))
    draw_tolerance(runs, what, options.out / "tolerance.png")
    print(f"written: tolerance.png, and an .npz and a .json of each run in {options.out}")
    return 0


def measure(found: Solution, options: argparse.Namespace) -> Tolerance:
    """Measures one solution on its test data; its statistics are gathered again from its training data."""
    from ..analysis import tolerance
    from ..lab.solutions import data_of, tasks
    from ..lab.train.evaluating import judged_by_test

    task = judged_by_test(tasks(found, execution(options), options.limit, forward_only=True, decode=True))
    return tolerance(
        task,
        None if options.damage is None else dict(map(strengths, options.damage)),
        out=file_of(found, options),
        progress=not options.quiet,
        data=data_of(found, options.limit),
        **{name: getattr(options, name) for name in ("draws", "recalibrate", "seed", "precision", "graph")},
    )


def strengths(word: str) -> tuple[str, list[float] | None]:
    """Reads ``noise`` or ``noise=0.2,0.4``."""
    name, given, values = word.partition("=")
    try:
        return name, [float(value) for value in values.split(",")] if given else None
    except ValueError:
        raise ValueError(f"--damage {word} is not NAME=NUMBER,NUMBER, such as noise=0.2,0.4") from None


def training(found: Solution) -> str:
    """Returns the folder that holds the seeds of a training."""
    return re.split(r"/seed-\d+\b", found.name)[0]


def usual_figure(found: Solution, result: Tolerance) -> str:
    """Returns the figure that solutions of this kind of data are known by."""
    from ..lab import models

    known = models.MODELS.get(found.recipe.model)
    if known is not None and known.kind in USUAL:
        return USUAL[known.kind]
    return "accuracy" if np.isfinite(result.errors[0, 0]).all() else "loss"


def table(runs: Mapping[str, Sequence[Tolerance]], what: str) -> str:
    """Lists the mean over draws and seeds, as it is and recalibrated, of each training."""
    from ..lab.columns import in_columns

    first = next(iter(runs.values()))[0]
    rows = [("damage", "strength", *(f"{name}: {what}, {' / '.join(first.columns)}" for name in runs))]
    means = [np.mean([result.summary(what)[0] for result in results], axis=0) for results in runs.values()]
    for number, (damage, strength) in enumerate(zip(first.damages, first.strengths, strict=True)):
        cells = [" / ".join(f"{value:.2f}" for value in mean[number]) for mean in means]
        rows.append((damage, f"{strength:g}", *cells))
    return in_columns(rows)
