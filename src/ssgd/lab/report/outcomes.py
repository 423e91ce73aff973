"""What became of a cell: our figures beside the paper's, and what that says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from ..experiments.cells import Cell, Experiment
from ..experiments.rows import AGAIN, Results, Row, is_number
from ..experiments.statistics import Difference, Sample, paired, sample

REPRODUCED, NOT_REPRODUCED, NOT_RUN = "reproduced", "not reproduced", "not run"
UNDECIDED = "undecided"  # what it is compared with was not run
OURS_ALONE = "ours alone"  # the paper has no such number

UNSTATED = 0.01  # of the paper's number: its spread, where it states none

RULE = (
    "Reproduced: our mean lies no further from the paper's than the two spreads together, and the gain over SGD has "
    "the paper's sign. A spread is a standard deviation over seeds; the paper's is that of its tables A1 and A2, for "
    "table 1 too, of the bars of its figure 3 or of figure 4's five runs, and where it states none, 1 % of its number. "
    "A single seed of ours adds no spread. Undecided: our SGD has not been run, so the gain is not known. Ours alone: "
    "the paper has no number. Diverged: the loss became nan or infinite, and there is no figure; where all seeds did, "
    "that is not reproduced."
)


@dataclass(frozen=True)
class Outcome:
    """Our figures of a cell by seed, and their differences to those of its base over common seeds.

    ``again`` is the test accuracy with batch-norm's statistics gathered again for the clean weights. ``noise`` is what
    the noise brings beyond the same training without it.
    """

    cell: Cell
    verdict: str
    ours: Mapping[int, float]
    sample: Sample | None = None
    gain: float | None = None
    difference: Difference | None = None
    noise: Difference | None = None
    again: Sample | None = None
    again_difference: Difference | None = None
    again_verdict: str | None = None
    passes: float | None = None
    diverged: tuple[int, ...] = ()  # the seeds whose loss became nan or infinite, and which have no figure
    small: bool = False  # of less than the paper's


def outcomes(experiment: Experiment, results: Results) -> list[Outcome]:
    """Returns the outcome of every cell; a control that the paper does not have only once it has been run."""
    found = [outcome(cell, results, experiment.unseen) for cell in experiment.cells]
    return [one for one in found if not (one.cell.ours and one.verdict == NOT_RUN)]


def outcome(cell: Cell, results: Results, unseen: bool = False) -> Outcome:
    """Joins a cell to its rows."""
    rows, base, control = (results.of(one, unseen) if one else {} for one in (cell, cell.base, cell.control))
    ours, theirs = figures(rows, cell.metric), figures(base, cell.metric)
    found = sample(ours.values()) if ours else None
    less_is_better = not cell.metric.endswith("accuracy")
    gain = gain_over(theirs, ours) if theirs and ours else None
    diverged = tuple(seed for seed, row in rows.items() if row.diverged)
    said = verdict(cell, found, gain)
    if diverged and not ours:
        said = OURS_ALONE if cell.paper is None else NOT_REPRODUCED
    first = next(iter(rows.values()), None)
    plain = Outcome(
        cell,
        said,
        ours,
        found,
        gain,
        paired(ours, theirs, less_is_better),
        paired(ours, figures(control, cell.metric), less_is_better),
        passes=None if first is None else passes(first),
        diverged=diverged,
    )
    again, base_again = figures(rows, AGAIN), figures(base, AGAIN)
    if cell.metric != "test_accuracy" or not again:
        return plain
    gained = gain_over(base_again, again) if base_again else None
    spread = sample(again.values())
    judged = verdict(cell, spread, gained)
    return replace(plain, again=spread, again_difference=paired(again, base_again), again_verdict=judged)


def figures(rows: Mapping[int, Row], metric: str) -> dict[int, float]:
    """Returns a figure by seed, of the rows that have it."""
    found = {seed: row.metric(metric) for seed, row in rows.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def gain_over(base: Mapping[int, float], ours: Mapping[int, float]) -> float:
    """Returns the mean gain, seed by seed where there are common seeds, else from mean to mean."""
    if common := base.keys() & ours.keys():
        return mean([ours[seed] - base[seed] for seed in common])
    return mean(ours.values()) - mean(base.values())


def passes(row: Row) -> float | None:
    """Returns the passes of the whole training; the oldest rows have those of a step."""
    found, epochs = row.get("passes"), row.get("epochs")
    if not is_number(found) or not is_number(epochs) or found <= 0 or epochs <= 0:
        return None
    return float(found if found >= epochs else found * epochs)


def verdict(cell: Cell, ours: Sample | None, gain: float | None) -> str:
    """Judges by the rule that the page states, ``RULE``."""
    if ours is None:
        return NOT_RUN
    if cell.paper is None:
        return OURS_ALONE
    theirs = abs(cell.paper) * UNSTATED if cell.spread is None else cell.spread
    reach = theirs + (0.0 if math.isnan(ours.sd) else ours.sd)
    near = abs(ours.mean - cell.paper) <= reach + 1e-9
    if cell.gain is None:
        return REPRODUCED if near else NOT_REPRODUCED
    if gain is None:
        return UNDECIDED if near else NOT_REPRODUCED
    alike = gain * cell.gain > 0 or cell.gain == 0
    return REPRODUCED if near and alike else NOT_REPRODUCED


def tally(found: Sequence[Outcome]) -> dict[str, int]:
    """Returns how many cells have each verdict, of those that occur."""
    names = (REPRODUCED, NOT_REPRODUCED, UNDECIDED, OURS_ALONE, NOT_RUN)
    counts = {name: sum(one.verdict == name for one in found) for name in names}
    return {name: count for name, count in counts.items() if count}


def compared(found: Sequence[Outcome]) -> list[Outcome]:
    """Returns the outcomes that have figures; a base only where something is compared with it, if anything is."""
    ran = [one for one in found if one.sample]
    bases = {id(one.cell.base) for one in ran if one.cell.base}
    any_base = any(one.cell.base for one in found)
    return [one for one in ran if one.cell.base or id(one.cell) in bases or not any_base]
