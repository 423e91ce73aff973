"""Prints a training: the recipe before it, and a table after it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from ..lab.data import registry as data
from ..lab.experiments.running import outcomes
from ..lab.models import registry as models
from ..lab.train.distributed import is_first_process
from ..lab.train.recipe import Execution, Recipe
from .comparison import Row, rows_of, table
from .progress import Progress


def show(
    recipes: Sequence[Recipe],
    execution: Execution,
    keep: Callable[[list[Row]], object] = lambda rows: None,
    on: str = "here",
) -> int:
    """Trains, prints the results and gives their rows to ``keep``; returns 1 if a run failed."""
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
    found = outcomes(recipes, execution, on, lambda: Progress(execution.progress))
    if not is_first_process():
        return 0
    rows = rows_of(recipes, found)
    if any(row["finished"] for row in rows):
        print(table(rows))
        keep(rows)
    return int(any("failure" in ended for ended in found.values()))
