"""What a plan lacks: runs here or on a Ray cluster, a row for each as it ends, and the picture last."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from ...core.checks import check_count
from ..train.distributed import is_first_process
from ..train.engine import TIME_IS_UP, Listener, Stopped, compare, explain
from ..train.job import Job
from ..train.kinds import figure, figure_in_words
from ..train.recipe import Execution, Recipe
from ..train.rundir import RunDir, environment
from .pictures import draw
from .planning import Plan, Planned, device_name, longest_first, missing
from .rows import Results, Row

LATER = {"name", "phases", "lr", "method", "level"}  # fields that may differ from those of the stem
Ended = dict[str, Any]  # name, at_once, and either result or failure, then divergence too if it was that
Over = Callable[[Ended], None]


def carry_out(
    plans: Plan | Sequence[Plan],
    execution: Execution,
    results: Results,
    *,
    limit: int | None = None,
    on: str = "here",
    listener: Callable[[], Listener] = Listener,
) -> dict[str, str]:
    """Runs what is missing, at most ``limit`` runs. Returns what went wrong, by the name of the run.

    Runs of several plans go side by side, each training once. A run that fails does so alone. Called again, it goes on
    where it was cut. Side by side the longest begin first.
    ``execution.minutes`` are those of all of it.
    """
    if limit is not None:
        check_count("limit", limit)
    began = time.monotonic()
    results.check_place()
    failures: dict[str, str] = {}
    plans = [plans] if isinstance(plans, Plan) else plans
    chosen = dict(islice(missing(plans).items(), limit))
    _check_processes([run for _, run in chosen.values()])
    if on == "ray" or (execution.kind == "cuda" and "RANK" not in os.environ):
        order = longest_first([run for _, run in chosen.values()], results.rows, device_name(execution))
        chosen = {run.name: chosen[run.name] for run in order}

    def over(ended: Ended) -> None:
        if "failure" in ended:
            failures[ended["name"]] = ended["failure"]
        found = ended.get("result") or ended.get("divergence")
        if found is None:
            return
        plan, run = chosen[ended["name"]]
        row = Row({**found, "scale": plan.scale, "at_once": ended["at_once"]})
        with results.alone():
            if results.find(run.recipe, run.seed, plan.experiment.needs) is None or not results.has(row):
                results.append(plan.experiment.name, row)

    for stem, recipes in _stages(list(chosen.values()), execution):
        train_on(on, recipes, stem, execution, over, began, listener)
    for plan in plans:
        if plan.pictures and "RANK" not in os.environ:  # one process makes them: the same command without torchrun
            draw(plan, _what_is_left(execution, began))
    return failures


def _check_processes(runs: Sequence[Planned]) -> None:
    """Each process has noise and batch-norm of its own: another number of them is another training."""
    count = int(os.environ.get("WORLD_SIZE", "1"))
    for run in runs if count > 1 else ():
        devices = run.recipe.devices
        if devices != count:
            remedy = f"use --nproc-per-node {devices}" if devices > 1 else "leave torchrun out"
            raise ValueError(
                f"{run.name} has devices={devices}, and {count} processes, each with noise and batch-norm of its own, "
                f"would make another training of it: {remedy}, or choose others by --only"
            )


def train_on(on: str, recipes: Sequence[Recipe], stem: Recipe | None, execution: Execution, *more: Any) -> None:
    """Trains recipes of one seed each ``"here"`` or on ``"ray"``; ``more`` is what ``train_here`` takes besides."""
    if on == "ray":
        if execution.minutes is not None:
            raise ValueError("minutes are for runs of one process, not of a Ray cluster")
        from .on_ray import train_on_ray

        train_on_ray(recipes, stem, execution, more[0])
    else:
        train_here(recipes, stem, execution, *more)


def outcomes(
    recipes: Sequence[Recipe],
    execution: Execution,
    on: str = "here",
    listener: Callable[[], Listener] = Listener,
    began: float | None = None,
) -> dict[str, Ended]:
    """Trains recipes with all their seeds. Returns what came of each run by its name, in the first process alone.

    ``execution.minutes`` are counted from ``began`` on, in the seconds of ``time.monotonic()``.
    """
    found: dict[str, Ended] = {}

    def over(ended: Ended) -> None:
        found[ended["name"]] = ended
        if on == "ray":  # no listener hears of it
            told = ended.get("failure") or figure_in_words(ended["result"])
            listener().say(f"{ended['name']}: {told}")

    runs = [replace(recipe, seeds=(seed,)) for recipe in recipes for seed in recipe.seeds]
    train_on(on, runs, None, execution, over, began, listener)
    return found


def figures(recipe: Recipe, outcomes: Mapping[str, Ended]) -> dict[int, float]:
    """The test figure of each seed that has one."""
    ended = {seed: outcomes[f"{recipe.name}/seed-{seed}"].get("result", {}) for seed in recipe.seeds}
    return {seed: value for seed, result in ended.items() if (value := figure(result)) is not None}


def train_here(
    recipes: Sequence[Recipe],
    stem: Recipe | None,
    execution: Execution,
    over: Over,
    began: float | None = None,
    listener: Callable[[], Listener] = Listener,
) -> None:
    """Side by side on a GPU; a process trains in one precision at a time."""
    alike: dict[str, list[Recipe]] = {}
    for recipe in recipes:
        alike.setdefault(recipe.resolved(execution.kind).precision, []).append(recipe)
    for group in alike.values():
        ready = [recipe for recipe in group if _branched(recipe, stem, execution, over)]
        at_once = min(execution.at_once, len(ready)) if execution.kind == "cuda" else 1

        def told(job: Job, at_once: int = at_once) -> None:
            if not job.ranks.first:
                return
            if job.failure is not None:
                failure = {"failure": explain(job.failure), "divergence": job.divergence}
                over({"name": job.label, **failure, "at_once": at_once})
            else:
                over({"name": job.label, "result": job.result, "at_once": at_once})

        if ready:
            compare(ready, _what_is_left(execution, began), told, listener())


def _what_is_left(execution: Execution, began: float | None) -> Execution:
    """Of its minutes, if it has any, for what began then."""
    if execution.minutes is None or began is None:
        return execution
    left = execution.minutes - (time.monotonic() - began) / 60
    if left <= 0:
        raise Stopped(TIME_IS_UP)
    return replace(execution, minutes=left)


def _stages(
    chosen: Sequence[tuple[Plan, Planned]], execution: Execution
) -> Iterator[tuple[Recipe | None, list[Recipe]]]:
    """What can be trained together, with what it goes on from; each to be trained before the next is asked for."""
    first: list[Recipe] = []
    after: dict[str, list[Recipe]] = {}
    stems: dict[str, Recipe] = {}
    needed: set[str] = set()  # where solutions must lie in one valley, for a picture; others may begin at the start
    for plan, run in chosen:
        stem = f"{run.recipe.name.rpartition('/')[0]}/{plan.experiment.stem}"
        stems |= {recipe.name: recipe for recipe in plan.experiment.recipes(plan.scale) if recipe.name == stem}
        (after.setdefault(stem, []) if stem in stems and stem != run.recipe.name else first).append(run.recipe)
        needed |= {stem} if plan.experiment.picture is not None else set()
    if first:
        yield None, first
    for stem, those in after.items():
        begun = all(_trained(replace(stems[stem], seeds=seeds), execution) for seeds in {one.seeds for one in those})
        yield stems[stem] if begun or stem in needed else None, those


def _trained(recipe: Recipe, execution: Execution) -> bool:
    return RunDir(execution.run_folder(recipe, recipe.seeds[0])).checkpoints.load() is not None


def _branched(recipe: Recipe, stem: Recipe | None, execution: Execution, over: Over) -> bool:
    if stem is None or not is_first_process():
        return True
    try:
        branch(replace(stem, seeds=recipe.seeds), recipe, execution)
    except (ValueError, OSError) as problem:
        if "RANK" in os.environ:  # the other ranks would train what this one leaves out
            raise
        over({"name": f"{recipe.name}/seed-{recipe.seeds[0]}", "failure": explain(problem)})
        return False
    return True


def branch(stem: Recipe, recipe: Recipe, execution: Execution) -> None:
    """Gives the run's folder the last state of the stem's, unless it has one of its own.

    Both are of one seed, and the recipe's first phases are the stem's. In equal arithmetic this ends as training from
    the start does; on a GPU, whose arithmetic is not equal, it keeps both in one valley.
    """
    begun, whole = stem.schedule.phases, recipe.schedule.phases
    if recipe.schedule.peak is not None:
        raise ValueError(f"{recipe.name} cannot go on from {stem.name}: a cosine over the whole is another over a part")
    if recipe.differences(stem).keys() - LATER or whole[: len(begun)] != begun:
        raise ValueError(
            f"{recipe.name} cannot go on from {stem.name}: only what comes after its phases may be another"
        )
    (seed,) = recipe.seeds
    directory = RunDir(execution.run_folder(recipe, seed))
    if directory.checkpoints.load() is not None or directory.result() is not None:
        return
    origin = RunDir(execution.run_folder(stem, seed))
    saved = origin.checkpoints.load()
    if saved is None:
        raise ValueError(f"{recipe.name} goes on from {stem.name}, which has not been trained here: run that first")
    directory.open(recipe.resolved(execution.kind).to_json(), environment())
    directory.checkpoints.save(*saved)
    for row in origin.timings():  # the seconds of the whole training, as its passes are
        directory.add_timing(row)
    directory.close()
