"""A number of the paper, ours beside it, and what that says: reproduced, not reproduced, not run."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import mean

from .matching import Wanted, joined_phases, matching
from .runs import ANEW, Run
from .statistics import Sample, sample

REPRODUCED, NOT_REPRODUCED, NOT_RUN = "reproduced", "not reproduced", "not run"
UNDECIDED = "undecided"  # the method was run shortened, or what it is compared with was not run
OURS_ALONE = "ours alone"  # the paper has no such number

UNSTATED = 0.01  # of the paper's number: its spread, where it states none

RULE = (
    "Reproduced: our mean lies no further from the paper's than the two spreads together, and the gain over SGD has "
    "the paper's sign. A spread is a standard deviation over seeds; the paper's is that of its tables A1 and A2, for "
    "table 1 too, of the bars of its figure 3 or of figure 4's five runs, and where it states none, 1 % of its number. "
    "A single seed of ours adds no spread. Undecided: our SGD has not been run, so the gain is not known; or our runs "
    "were shortened, which is marked: small. Ours alone: the paper has no number. Diverged: the loss became nan or "
    "infinite, and there is no figure; where all seeds did, that is not reproduced."
)


@dataclass(frozen=True, eq=False)
class Cell:
    """``wanted`` says which runs are its counterpart."""

    row: str
    column: str
    paper: float | None
    spread: float | None = None
    wanted: Wanted | None = None
    metric: str = "test_accuracy"
    base: Cell | None = None  # what the gain is counted from
    runs: tuple[float, ...] = ()  # the paper's, where it lists them
    x: float | None = None  # where it stands in a chart
    ours: bool = False  # a control that the paper has not: shown once it was run

    @property
    def gain(self) -> float | None:
        """The paper's."""
        if self.paper is None or self.base is None or self.base.paper is None:
            return None
        return self.paper - self.base.paper


@dataclass(frozen=True)
class Outcome:
    """What became of a cell. ``ours`` maps seeds to values, ``small`` says that they are of shortened runs."""

    cell: Cell
    ours: Mapping[int, float]
    sample: Sample | None
    small: bool
    verdict: str
    gain: float | None
    anew: Sample | None = None  # with batch-norm's statistics gathered again: told, and no part of the verdict
    anew_verdict: str | None = None  # what it would be by those
    diverged: int = 0  # seeds whose loss became nan or infinite, and which have no figure


def outcome(cell: Cell, part: str, runs: list[Run]) -> Outcome:
    ours, small = values(cell, part, runs)
    based, shortened = values(cell.base, part, runs) if cell.base else ({}, False)
    found = sample(ours.values()) if ours else None
    alike = shortened == small  # a whole run gains nothing over a short one
    gain = gain_over(based, ours) if ours and based and alike else None
    said = UNDECIDED if small and cell.paper is not None else verdict(cell, found, gain)
    diverged = sum(run.diverged for run in matching(runs, cell.wanted, part)) if cell.wanted else 0
    if diverged and not ours and not small:
        said = OURS_ALONE if cell.paper is None else NOT_REPRODUCED
    again = outcome(_anew(cell), part, runs) if cell.metric == "test_accuracy" else None
    if again is None or again.sample is None:
        return Outcome(cell, ours, found, small, said, gain, diverged=diverged)
    return Outcome(cell, ours, found, small, said, gain, again.sample, again.verdict, diverged)


def _anew(cell: Cell) -> Cell:
    return replace(cell, metric=ANEW, base=None if cell.base is None else _anew(cell.base))


def gain_over(base: Mapping[int, float], ours: Mapping[int, float]) -> float:
    """Seed by seed where they have seeds in common, else from mean to mean."""
    common = base.keys() & ours.keys()
    if common:
        return mean(ours[seed] - base[seed] for seed in common)
    return mean(ours.values()) - mean(base.values())


def values(cell: Cell, part: str, runs: list[Run]) -> tuple[dict[int, float], bool]:
    """Ours by seed, and whether they are of shortened runs."""
    if cell.wanted is None:
        return {}, False
    found = [r for r in matching(runs, cell.wanted, part) if r.metric(cell.metric) is not None or r.diverged]
    course = joined_phases(cell.wanted["phases"], cell.wanted)
    small = any(joined_phases(run.phases, cell.wanted) != course for run in found)
    return {run.seed: value for run in found if (value := run.metric(cell.metric)) is not None}, small


def verdict(cell: Cell, ours: Sample | None, gain: float | None) -> str:
    """The rule that the page states, in ``RULE``."""
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


def tally(outcomes: list[Outcome]) -> dict[str, int]:
    """How many cells of each verdict, those that occur."""
    names = (REPRODUCED, NOT_REPRODUCED, UNDECIDED, OURS_ALONE, NOT_RUN)
    counts = {name: sum(o.verdict == name for o in outcomes) for name in names}
    return {name: count for name, count in counts.items() if count}
