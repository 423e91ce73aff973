"""Runs of one's own: the rows that no number of the paper and no question of ours asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..experiments.catalogue import experiments
from ..experiments.identity import identity
from ..experiments.rows import FIGURES, Results, Row
from ..experiments.statistics import Difference, Sample, paired, sample
from .outcomes import figures


@dataclass(frozen=True)
class Own:
    """The runs of one training over its seeds, and their differences to the same training by the plain base.

    ``what`` is the figure, such as "accuracy, %"; ``sample`` is None where every seed diverged.
    """

    name: str
    model: str
    data: str
    method: str
    what: str
    sample: Sample | None
    difference: Difference | None
    diverged: tuple[int, ...]


def own_runs(results: Results) -> list[Own]:
    """Returns the trainings that are no cell's, those of the same data and model together."""
    cells = {cell.identity for one in experiments() for cell in (*one.cells, *one.also)}
    every: dict[str, dict[int, Row]] = {}
    for row in results.rows:
        if row.get("recipe") and row.get("scale") != "smoke":
            every.setdefault(identity(row.recipe), {}).setdefault(row.seed, row)
    own = [_own(key, rows, every) for key, rows in every.items() if key not in cells]
    order = [(one.data, one.model) for one in own]
    return sorted(own, key=lambda one: order.index((one.data, one.model)))


def _own(key: str, rows: Mapping[int, Row], every: Mapping[str, Mapping[int, Row]]) -> Own:
    one = next(iter(rows.values()))
    metric = next(
        (name for name in FIGURES if any(row.metric(f"test_{name}") is not None for row in rows.values())), ""
    )
    base = identity(replace(one.recipe, method="base", level=None, settings={}))
    ours, theirs = (figures(of, f"test_{metric}") for of in (rows, every.get(base, {})))
    return Own(
        one["experiment"],
        one["model"],
        one["data"],
        " then ".join(dict.fromkeys(phase.label for phase in one.recipe.schedule.phases)),
        metric if metric in ("", "perplexity") else f"{metric}, %",
        sample(ours.values()) if ours else None,
        paired(ours, theirs) if base != key else None,
        tuple(seed for seed, row in rows.items() if row.diverged),
    )
