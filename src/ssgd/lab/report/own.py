"""Runs of one's own, as a question: the trainings that no number of the paper and no question of ours asks for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from ..experiments.catalogue import experiments
from ..experiments.cells import Cell, Experiment
from ..experiments.identity import identity
from ..experiments.rows import FIGURES, Results, Row

ABOUT = (
    "What is no number of the paper and no question of ours: test figures of the last epoch over the seeds. The "
    "difference is to the same training by the plain base, seed by seed."
)


def own_runs(results: Results) -> Experiment:
    """Returns a cell for each such training, those of the same data and model together."""
    known = {cell.identity for one in experiments() for cell in (*one.cells, *one.also)}
    cells: dict[str, Cell] = {}
    for rows in results.trainings():
        row = next(iter(rows.values()))
        if row.get("recipe"):
            metric = next((f"test_{name}" for name in FIGURES if _have(rows.values(), f"test_{name}")), "test_accuracy")
            unit = metric.removeprefix("test_") + ("" if metric.endswith("perplexity") else ", %")
            method = " then ".join(dict.fromkeys(phase.label for phase in row.recipe.schedule.phases))
            line = f"{row['experiment']}: {method}", f"{row['model']}, {row['data']}, {unit}"
            cell = Cell(row["experiment"], partial(getattr, row, "recipe"), *line, metric=metric)
            cells[cell.identity] = cell
    mine = [cell for key, cell in cells.items() if key not in known]
    bases = [cells.get(identity(replace(cell.unnamed, method="base", level=None, settings={}))) for cell in mine]
    based = (cell if base in (None, cell) else replace(cell, base=base) for cell, base in zip(mine, bases, strict=True))
    return Experiment("own", "Your runs", ABOUT, tuple(based), base="the base")


def _have(rows: Iterable[Row], metric: str) -> bool:
    return any(row.metric(metric) is not None for row in rows)
