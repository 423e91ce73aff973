"""A run that begins where another has ended."""

from __future__ import annotations

from ..train.execution import Execution, resolved
from ..train.recipe import Recipe
from ..train.rundir import RunDir, environment

LATER = {"name", "phases", "lr", "method", "level"}


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
    directory.open(resolved(recipe, execution.kind).to_json(), environment())
    directory.checkpoints.save(*saved)
    for row in origin.timings():  # the seconds of the whole training, as its passes are
        directory.add_timing(row)
    directory.close()
