"""Prints a training: the recipe before it, and a table after it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from statistics import mean, stdev

from ..lab.columns import in_columns
from ..lab.data import registry as data
from ..lab.models import registry as models
from ..lab.train.distributed import is_first_process
from ..lab.train.engine import compare
from ..lab.train.execution import Execution
from ..lab.train.job import Job
from ..lab.train.kinds import figure
from ..lab.train.recipe import Recipe
from .progress import Progress


def show(recipes: Sequence[Recipe], execution: Execution) -> int:
    """Trains, and prints the results; returns 1 if a run failed."""
    # next to other methods such a recipe is their control
    if all(recipe.method == "base" and "S" in recipe.phases for recipe in recipes):
        raise ValueError(
            f"phases={recipes[0].phases} marks with S what the method trains, and method=base is the plain base: "
            "give another, such as method=both:0.29"
        )
    for recipe in recipes:
        models.check_name(recipe.model)
        data.check_name(recipe.data, execution.folder)
    for recipe in recipes if is_first_process() else ():
        print(recipe, file=sys.stderr)
    jobs = compare(recipes, execution, listener=Progress(execution.progress))
    if not jobs[0].ranks.first:
        return 0
    if any(job.result is not None for job in jobs):
        print(table(jobs))
    return int(any(job.failure is not None for job in jobs))


def table(jobs: Sequence[Job]) -> str:
    """Test accuracy, or perplexity, of the last epoch over the seeds of each recipe, and less that of the first one."""
    names = list(dict.fromkeys(job.recipe.name for job in jobs))
    first = by_seed(job for job in jobs if job.recipe.name == names[0])
    difference_column = ["minus the first"] if len(names) > 1 and first else []
    head = ("recipe", "method", "passes", "seeds", "test", "min", "max", *difference_column, "train", "seconds a run")
    rows: list[tuple[str, ...]] = [head]
    for name in names:
        mine = [job for job in jobs if job.recipe.name == name]
        results = [job.result for job in mine if job.result is not None]
        schedule = mine[0].recipe.schedule
        label = " then ".join(dict.fromkeys(phase.label for phase in schedule.phases))
        if not results:
            rows.append((name, label, f"{schedule.passes:g}", f"0 of {len(mine)}", *["–"] * (len(head) - 4)))
            continue
        test = [value for result in results if (value := figure(result)) is not None]
        train = [value for result in results if (value := figure(result, "train")) is not None]
        spread = f" ± {stdev(test):.2f}" if len(test) > 1 else ""
        rows.append(
            (
                name,
                label,
                f"{schedule.passes:g}",
                str(len(results)) if len(results) == len(mine) else f"{len(results)} of {len(mine)}",
                f"{mean(test):.2f}{spread}",
                f"{min(test):.2f}",
                f"{max(test):.2f}",
                *([difference(by_seed(mine), first) if name != names[0] else "–"] if difference_column else []),
                f"{mean(train):.2f}" if train else "–",
                f"{mean(result['seconds'] for result in results):.0f}",
            )
        )
    return in_columns(rows)


def by_seed(jobs: Iterable[Job]) -> dict[int, float]:
    """The test figures of the runs that have one."""
    found = {job.seed: figure(job.result) for job in jobs if job.result is not None}
    return {seed: value for seed, value in found.items() if value is not None}


def difference(ours: dict[int, float], base: dict[int, float]) -> str:
    """The mean difference, seed by seed: one initialisation and one order of the data serve all recipes."""
    found = [value - base[seed] for seed, value in ours.items() if seed in base]
    if not found:
        return "–"
    return f"{mean(found):+.2f}{f' ± {stdev(found):.2f}' if len(found) > 1 else ''}".replace("-", "−")
