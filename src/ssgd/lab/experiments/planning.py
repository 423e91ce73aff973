"""What an experiment still needs: which runs, what they cost, and how long they may take."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import mean

import torch

from ...core.checks import check_choice
from ..train.recipe import Execution, Recipe
from ..train.rundir import RunDir
from .cells import SCALES, Experiment
from .identity import identity
from .rows import Results, Row


@dataclass(frozen=True)
class Planned:
    """One run: a recipe with one seed, and its row if it has been made."""

    recipe: Recipe
    row: Row | None
    folder: Path  # where its weights lie, or will
    to_do: bool
    begun: int = 0  # epochs that lie behind it, where it was cut

    @property
    def seed(self) -> int:
        return self.recipe.seeds[0]

    @property
    def name(self) -> str:
        return f"{self.recipe.name}/seed-{self.seed}"

    @property
    def training(self) -> tuple[str, str, int]:
        """What is trained, whatever it is called."""
        return identity(self.recipe), self.recipe.precision, self.seed

    @property
    def label(self) -> str:
        """The last part of the recipe's name."""
        return self.recipe.name.rpartition("/")[2]

    @property
    def passes(self) -> float:
        """Forward and backward, over all the data."""
        return self.recipe.schedule.passes

    @property
    def left(self) -> float:
        """Of its passes, those still to be made."""
        schedule = self.recipe.schedule
        return sum(schedule.phases[schedule.index(e)].passes_a_step for e in range(self.begun, schedule.epochs))

    @property
    def kind(self) -> tuple[str, str, int | None]:
        """What its seconds a pass hang on: net, data, and how much of them."""
        return self.recipe.model, self.recipe.data, self.recipe.train_limit


@dataclass(frozen=True)
class Plan:
    """The runs of an experiment at a scale, those that are equal only once."""

    experiment: Experiment
    scale: str
    runs: tuple[Planned, ...]
    pictures: Mapping[str, Path]  # that are missing: results without their suffix, by name
    pictured: int  # the seed that they are of, the experiment's first

    @property
    def to_do(self) -> tuple[Planned, ...]:
        return tuple(run for run in self.runs if run.to_do)


def plan(
    experiment: Experiment,
    scale: str,
    results: Results,
    out: str | Path = Execution.out,
    *,
    seeds: Sequence[int] | None = None,
    only: str | Sequence[str] | None = None,
) -> Plan:
    """What there is and what is missing.

    A run is done when any row of the results is of the same training and seed and carries what is needed. Where a
    picture is still to be made from its weights, they must lie below ``out`` too. ``only``: a pattern, or several, for
    names of runs.
    """
    return plans([experiment], scale, results, out, seeds=seeds, only=only)[0]


def plans(
    experiments: Sequence[Experiment],
    scale: str,
    results: Results,
    out: str | Path = Execution.out,
    *,
    seeds: Sequence[int] | None = None,
    only: str | Sequence[str] | None = None,
) -> list[Plan]:
    """Of several experiments those that have such runs. Every pattern must be in the name of one."""
    check_choice("scale", scale, SCALES)
    patterns = [only] if isinstance(only, str) else only or [""]
    found = [_plan(experiment, scale, results, out, seeds, patterns) for experiment in experiments]
    for pattern in patterns:
        if not any(_fits(run.name, pattern) for plan in found for run in plan.runs):
            told = f"no run of {' or '.join(one.name for one in experiments)} has {pattern!r} in its name"
            first = experiments[0].recipes(scale)[0]
            raise ValueError(f"{told}, such as {first.name}/seed-{first.seeds[0]}: see --plan")
    return [plan for plan in found if plan.runs]


def _fits(name: str, pattern: str) -> bool:
    return fnmatchcase(name, f"*{pattern}*")


def missing(plans: Sequence[Plan]) -> dict[str, tuple[Plan, Planned]]:
    """What is to do for all of them, by name, each training once: for one that needs its curve or its weights, if any.

    What begins where another ends is no other's.
    """
    found: dict[str, tuple[Plan, Planned]] = {}
    known: dict[tuple[str, str, int], str] = {}
    for plan in sorted(plans, key=lambda plan: not _particular(plan)):
        for run in plan.to_do:
            if run.name in found:
                continue
            if not plan.experiment.stem and run.training in known:
                first, begun = found[known[run.training]]
                if _particular(first) or run.begun <= begun.begun:
                    continue
                del found[known[run.training]]  # this one was cut further on
            found[run.name] = plan, run
            known |= {} if plan.experiment.stem else {run.training: run.name}
    return found


def _particular(plan: Plan) -> bool:
    """Whether it needs more of its runs than their row."""
    return "curve" in plan.experiment.needs or bool(plan.pictures)


def _plan(
    experiment: Experiment,
    scale: str,
    results: Results,
    out: str | Path,
    seeds: Sequence[int] | None,
    patterns: Sequence[str],
) -> Plan:
    recipes = experiment.recipes(scale)
    pictures, pictured = _pictures(experiment, scale, results.folder), recipes[0].seeds[0]
    found: dict[tuple[str, str, int], Planned] = {}
    for recipe in _one_seed_each(recipes, seeds):
        seed = recipe.seeds[0]
        row = results.find(recipe, seed, experiment.needs)
        folder = _folder(recipe, None if experiment.stem else row, out)
        needed = bool(pictures) and seed == pictured
        without_weights = needed and not _weights(folder) and row is not None and "diverged" not in row
        begun = _epochs_behind(folder) if row is None else 0
        run = Planned(recipe, row, folder, row is None or without_weights, begun)
        if any(_fits(run.name, pattern) for pattern in patterns):
            found.setdefault(run.training, run)
    return Plan(experiment, scale, tuple(found.values()), pictures, pictured)


def expected_seconds(runs: Iterable[Planned], rows: Iterable[Row], device: str, at_once: int) -> tuple[float, set[str]]:
    """How long the runs may take on a device, by finished rows of the same net and data; and the nets that have none.

    A row's seconds are those of a run among others: as many as it says, or as many as now.
    """
    rates = _seconds_a_pass(rows, device, at_once)
    known = [(rates.get(run.kind), run) for run in runs]
    return sum(rate * run.left for rate, run in known if rate), {run.recipe.model for rate, run in known if not rate}


def longest_first(runs: Iterable[Planned], rows: Iterable[Row], device: str) -> list[Planned]:
    """So that runs side by side end at nearly the same time. Nets of which nothing is known may be the longest."""
    rates = _seconds_a_pass(rows, device, 1)
    return sorted(runs, key=lambda run: (run.kind in rates, -rates.get(run.kind, 1.0) * run.left))


def device_name(execution: Execution) -> str:
    """What rows call the device."""
    return torch.cuda.get_device_name() if execution.kind == "cuda" else "cpu"


def _seconds_a_pass(rows: Iterable[Row], device: str, at_once: int) -> dict[tuple[str, str, int | None], float]:
    found = defaultdict(list)
    for row in rows:
        numbers = [row.get("passes"), row.get("seconds"), row.get("at_once", at_once)]
        told = all(isinstance(n, int | float) and 0 < n < math.inf for n in numbers)
        recipe = row.get("recipe")
        if told and recipe and row.get("device") == device and "diverged" not in row:
            kind = recipe.get("model"), recipe.get("data"), recipe.get("train_limit")
            found[kind].append(row["seconds"] / row.get("at_once", at_once) / row["passes"])
    return {kind: mean(seconds) for kind, seconds in found.items()}


def _one_seed_each(recipes: Sequence[Recipe], seeds: Sequence[int] | None) -> Iterable[Recipe]:
    """Seed by seed, so that what is to be compared is done together."""
    wanted = dict.fromkeys(seed for recipe in recipes for seed in (seeds or recipe.seeds))
    for seed in wanted:
        for recipe in recipes:
            if seed in (seeds or recipe.seeds):
                yield replace(recipe, seeds=(seed,))


def _folder(recipe: Recipe, row: Row | None, out: str | Path) -> Path:
    """The run's own, or that of an equal run under another name which has left its weights."""
    (seed,) = recipe.seeds
    own = Execution(out=str(out)).run_folder(recipe, seed)
    if row is None or _weights(own):
        return own
    others = Execution(out=str(out)).run_folder(replace(recipe, name=row["experiment"]), seed)
    return others if _weights(others) else own


def _epochs_behind(folder: Path) -> int:
    try:
        return len(RunDir(folder).metrics()) if any(folder.glob("checkpoints/step-*.pt")) else 0
    except ValueError:  # spoilt: the run itself will say so
        return 0


def _weights(folder: Path) -> bool:
    return (folder / "weights.safetensors").exists()


def _pictures(experiment: Experiment, scale: str, results: Path) -> dict[str, Path]:
    picture = experiment.picture
    if picture is None:
        return {}
    folder = results / picture.folder / ("smoke" if scale == "smoke" else "")
    names = list(picture.of) if picture.kind == "spectrum" else [picture.kind]
    return {name: folder / name for name in names if not (folder / f"{name}.npz").exists()}
