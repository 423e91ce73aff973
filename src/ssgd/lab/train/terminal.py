"""A training at the terminal: the plan before, a table after, and a sentence for what went wrong."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from statistics import mean, stdev

from ...files import DiskProblem
from ..columns import in_columns
from ..data import registry as data
from ..models import registry as models
from .engine import TIME_IS_UP, Stopped, compare
from .execution import Execution
from .job import Job
from .kinds import figure
from .recipe import Recipe
from .run import Diverged

TIMED_OUT = 124  # as the command timeout has it


def show(recipes: Recipe | Sequence[Recipe], execution: Execution) -> int:
    """Train, and print what came out: 1 if a run failed."""
    recipes = [recipes] if isinstance(recipes, Recipe) else list(recipes)
    if all(recipe.method == "base" and "S" in recipe.phases for recipe in recipes):  # beside others it is their control
        raise ValueError(
            f"phases={recipes[0].phases} marks with S what the method trains, and method=base is plain SGD: "
            "give another, such as method=both:0.29"
        )
    for recipe in recipes:
        models.check_name(recipe.model)
        data.check_name(recipe.data, execution.folder)
    for recipe in recipes if speaks() else ():
        print(recipe, file=sys.stderr)
    jobs = compare(recipes, execution)
    if not jobs[0].ranks.first:
        return 0
    if any(job.result is not None for job in jobs):
        print(table(jobs))
    for job in jobs:
        if job.failure is not None:
            print(f"{job.label} failed: {explained(job.failure)}", file=sys.stderr)
    return int(any(job.failure is not None for job in jobs))


def table(jobs: Sequence[Job]) -> str:
    """Test accuracy, or perplexity, of the last epoch over the seeds of each recipe, and beside the first recipe's."""
    names = list(dict.fromkeys(job.recipe.name for job in jobs))
    first = by_seed(job for job in jobs if job.recipe.name == names[0])
    beside = ["minus the first"] if len(names) > 1 and first else []
    head = ("recipe", "method", "passes", "seeds", "test", "min", "max", *beside, "train", "seconds a run")
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
                *([difference(by_seed(mine), first) if name != names[0] else "–"] if beside else []),
                f"{mean(train):.2f}" if train else "–",
                f"{mean(result['seconds'] for result in results):.0f}",
            )
        )
    return in_columns(rows)


def by_seed(jobs: Iterable[Job]) -> dict[int, float]:
    """The test figures that there are."""
    found = {job.seed: figure(job.result) for job in jobs if job.result is not None}
    return {seed: value for seed, value in found.items() if value is not None}


def difference(ours: dict[int, float], base: dict[int, float]) -> str:
    """Seed by seed: one initialisation and one order of the data serve all recipes."""
    found = [value - base[seed] for seed, value in ours.items() if seed in base]
    if not found:
        return "–"
    return f"{mean(found):+.2f}{f' ± {stdev(found):.2f}' if len(found) > 1 else ''}".replace("-", "−")


def ended(work: Callable[[], int], kept: str | None = "the last checkpoint") -> int:
    """``work``'s exit status; what a user can do something about ends with a sentence, not with a trace.

    ``kept``: what the same command goes on from when it was interrupted, if there is anything.
    """
    try:
        return work()
    except Stopped as stopped:
        if speaks():
            print(f"{stopped}; all is saved. {how_to_go_on()}", file=sys.stderr)
        return TIMED_OUT if stopped.number == TIME_IS_UP else 128 + stopped.number
    except KeyboardInterrupt:
        return _interrupted(kept)
    except BrokenPipeError:
        raise  # whoever read the output has gone, and needs no sentence
    except (ValueError, ImportError, OSError, Diverged) as problem:
        print(f"ssgd: {explained(problem)}", file=sys.stderr)
        return 2 if isinstance(problem, ValueError) else 1
    except RuntimeError as problem:
        if "KeyboardInterrupt" in str(problem):  # what torch makes of one inside its own scripts
            return _interrupted(kept)
        raise


def _interrupted(kept: str | None) -> int:
    print("interrupted" if kept is None else f"interrupted, going back to {kept}. {how_to_go_on()}", file=sys.stderr)
    return 130


def speaks() -> bool:
    """Whether this is the one of ``torchrun``'s processes that says what all of them would."""
    return os.environ.get("RANK", "0") == "0"


def how_to_go_on() -> str:
    """The command, where this process knows it: ``torchrun`` gave it another than its own."""
    return (
        "The same torchrun command goes on."
        if "RANK" in os.environ
        else f"The same command goes on: {shlex.join(sys.orig_argv)}"
    )


def explained(problem: BaseException) -> str:
    if isinstance(problem, DiskProblem):
        return f"{problem}. What was saved is whole: the same command goes on from there."
    if isinstance(problem, (ValueError, ImportError, OSError, Diverged)):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"
