"""Which runs a number of the paper is compared with.

By what was trained, not by the run's name, so that a run made for one table counts in every other that has the same
cell. A cell states every field of a recipe that decides a result: its own, and the usual value of all others, so that
a run with, say, a warm-up never slips in. A field that an older row's recipe lacks has its usual value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from .runs import Run

Wanted = Mapping[str, Any]

USUAL: Wanted = {  # a recipe's own defaults, but of what every cell states
    "train_limit": None,
    "test_limit": None,
    "held_out": 0,
    "augment": True,
    "image_size": 224,
    "normalise": "speaker",
    "spec_augment": False,
    "dropout": None,
    "bad": "raise",
    "settings": {},
    "perturb": "all",
    "bn_stats": "both",
    "per_rank": None,
    "epochs": None,
    "anneal": "steps",
    "warm_up": 0.0,
    "lr_for_batch": None,
    "decay": 1.0,
    "decay_after": 0,
    "clip": None,
    "optimizer": "sgd",
    "momentum": 0.9,
    "nesterov": False,
    "decayed": "all",
    "batch": 128,
    "devices": 1,
    "sync_batchnorm": False,
    "recompute_bn": False,
}
CIFAR: Wanted = {**USUAL, "phases": "75-50-50", "lr": [0.1, 0.01, 0.001], "weight_decay": 5e-4}
RUNS_OF = {  # parts of the paper that show the runs of another
    "fig2": "fig7",
    "fig4": "table2",
    "fig6": "table4",
    "tableA1": "table2",
    "tableA2": "table2",
    "figA1": "fig3",
    "figA2": "table5",
    "figA3": "table5",
}
OF_THE_RECIPE = ("epochs",)  # in a row it is how many were trained, in a recipe where restarts end


def matching(runs: Iterable[Run], wanted: Wanted, part: str) -> list[Run]:
    """The runs of a cell, one for each seed: where a training was made twice, the one made for this part, and rather
    one that did not diverge.

    Where there is none, runs of scale ``small`` that were shortened for this very part of the paper: their phases
    are as many and marked alike.
    """
    fits = [run for run in runs if run.recipe and _fits(run, wanted, ("phases",))]
    course = joined_phases(wanted["phases"], wanted)
    whole = [run for run in fits if joined_phases(run.phases, wanted) == course]
    short = [
        run
        for run in fits
        if run.scale == "small" and _made_for(run, part) and marks(run.phases) == marks(wanted["phases"])
    ]
    return first_of_each_seed(sorted(whole or short, key=lambda run: (run.diverged, not _made_for(run, part))))


def _made_for(run: Run, part: str) -> bool:
    return run.experiment.split("/")[0] == RUNS_OF.get(part, part)


def _fits(run: Run, wanted: Wanted, aside: tuple[str, ...]) -> bool:
    fields = {name: value for name, value in wanted.items() if name not in aside}
    return all(same(_field(run, name, USUAL.get(name)), value) for name, value in fields.items())


def _field(run: Run, name: str, usual: object) -> object:
    return run.recipe.get(name, usual) if name in OF_THE_RECIPE else run.field(name, usual)


def same(a: object, b: object) -> bool:
    if isinstance(a, int | float) and isinstance(b, int | float):
        return math.isclose(a, b)
    return a == b


def whole_phases(phases: str) -> str:
    """``75S-50S-50S`` is ``75-50-50``: without any mark the method trains all phases."""
    parts = phases.replace(" ", "").split("-")
    return (
        "-".join(part.removesuffix("S") for part in parts) if all(p.endswith("S") for p in parts) else "-".join(parts)
    )


def joined_phases(phases: str, wanted: Wanted) -> str:
    """Of plain SGD at one rate, ``29-26`` is ``55``; noise would be drawn anew at the cut."""
    parts = whole_phases(phases).split("-")
    plain = wanted["method"] == "sgd" and len(wanted["lr"]) == 1 and all(part.isdigit() for part in parts)
    return str(sum(map(int, parts))) if plain else "-".join(parts)


def marks(phases: str) -> str:
    """What is left of the phases when their lengths are not looked at."""
    return re.sub(r"\d+", "", whole_phases(phases))


def first_of_each_seed(runs: Iterable[Run]) -> list[Run]:
    found: dict[int, Run] = {}
    for run in runs:
        found.setdefault(run.seed, run)
    return [found[seed] for seed in sorted(found)]
