"""What became of a cell: our figures beside the paper's, and what that says."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import mean

from ..experiments.catalogue import experiments
from ..experiments.cells import AGAIN, Cell, Experiment
from ..experiments.questions import fitted
from ..experiments.rows import Results, Row, is_number
from ..experiments.statistics import Sample, sample
from . import verdicts
from .verdicts import CALIBRATED, FAILED, NOT_RUN, OURS_ALONE, Interval, Spread, combined, pooled, spanned, welch

RUNS = 5  # of the paper on CIFAR, where it does not list them


@dataclass(frozen=True)
class Reading:
    """What the rows of a cell say by one figure: its values by seed, and their differences to those of the base.

    ``gain`` is the mean difference, from mean to mean where no seed is common; a single seed has no interval.
    ``share`` is the sum of 1 / n of either side.
    """

    values: Mapping[int, float]
    sample: Sample | None = None
    differences: Mapping[int, float] = field(default_factory=dict)
    gain: Interval | None = None
    share: float = 0.0


@dataclass(frozen=True)
class Outcome:
    """A cell joined to its rows, and judged.

    ``ours`` goes by test accuracies with batch-norm's statistics gathered again where rows have them, and ``own`` has
    the training's own then. ``noise`` is what the noise brings beyond the same training without it.
    """

    cell: Cell
    verdict: str
    ours: Reading
    own: Reading | None = None
    noise: Interval | None = None
    gain_verdict: str | None = None  # None: the paper has no gain here
    interval: Interval | None = None  # of ours minus the paper's
    gain_interval: Interval | None = None
    paper_gain: float | None = None  # wherever in the paper this training stands
    passes: float | None = None
    cost: float | None = None  # its passes divided by those of its base
    diverged: tuple[int, ...] = ()  # the seeds whose loss became nan or infinite, and which have no figure
    small: bool = False  # of less than the paper's

    @property
    def sign(self) -> int:
        """1 where more is better, −1 of perplexities and errors."""
        return 1 if self.cell.metric.endswith("accuracy") else -1


class Judge:
    """Joins cells to rows, and judges by spreads that are pooled over all of the rows."""

    def __init__(self, results: Results) -> None:
        self.results = results

    def outcomes(self, experiment: Experiment) -> list[Outcome]:
        """Returns the outcome of every cell; a control that the paper does not have only once it has been run."""
        found = [self.outcome(cell, experiment.unseen) for cell in experiment.cells]
        return [one for one in found if not (one.cell.ours and one.verdict == NOT_RUN)]

    def outcome(self, cell: Cell, unseen: bool = False) -> Outcome:
        """Joins a cell to its rows, and judges it."""
        rows, base, control = (self.results.of(one, unseen) if one else {} for one in (cell, cell.base, cell.control))
        own = self._reading(rows, base, cell.metric, cell.base)
        again = cell.metric == "test_accuracy" and any(AGAIN in row for row in rows.values())
        metric = AGAIN if again else cell.metric
        ours = self._reading(rows, base, metric, cell.base)
        if ours.gain is None:  # of a gain both sides have the same figure
            ours = replace(ours, differences=own.differences, gain=own.gain, share=own.share)
        mine, theirs = (next(map(passes, of.values()), None) for of in (rows, base))
        found = Outcome(
            cell,
            NOT_RUN,
            ours,
            own if again else None,
            self._reading(rows, control, metric, cell.control).gain,
            paper_gain=self._gain(cell) if cell.base else None,
            passes=mine,
            cost=mine / theirs if mine and theirs else None,
            diverged=tuple(seed for seed, row in rows.items() if row.diverged),
        )
        return self._judged(found, metric)

    def _reading(self, rows: Mapping[int, Row], base: Mapping[int, Row], metric: str, of: Cell | None) -> Reading:
        ours, theirs = figures(rows, metric), figures(base, metric)
        found = Reading(ours, sample(ours.values()) if ours else None)
        if not ours or not theirs or of is None:
            return found
        differences = _differences(ours, theirs)
        if not differences:
            middle, share = mean(ours.values()) - mean(theirs.values()), 1 / len(ours) + 1 / len(theirs)
            return replace(found, gain=Interval(middle, math.nan), share=share)
        spread = self._paired.get((of.identity, metric)) or pooled([[*differences.values()]])
        gain = spanned(mean(differences.values()), spread if len(differences) > 1 else None, 1 / len(differences))
        return replace(found, differences=differences, gain=gain, share=2 / len(differences))

    def _judged(self, found: Outcome, metric: str) -> Outcome:
        cell, ours, gain = found.cell, found.ours.sample, found.ours.gain
        if cell.paper is None or ours is None:
            said = NOT_RUN if not (ours or found.diverged) else OURS_ALONE if cell.paper is None else FAILED
            return replace(found, verdict=said)
        mine, theirs, runs = self._spreads(cell, metric)
        single = ours.count == 1
        of_gain = None
        if cell.gain is not None and gain is not None and cell.base and mine and theirs:
            _, of_base, _ = self._spreads(cell.base, metric)
            both = combined(theirs, of_base) if cell.spread and cell.base.spread and of_base else theirs
            of_gain = welch(gain.middle - cell.gain, mine, found.ours.share, both, 2 / runs)
        interval = welch(ours.mean - cell.paper, mine, 1 / ours.count, theirs, 1 / runs) if mine and theirs else None
        said = verdicts.judge(interval, self._gain(cell), single)
        gained = of_gain and Interval(found.sign * of_gain.middle, of_gain.reach)  # a smaller fall is a gain below
        of_gain_said = None if cell.gain is None else verdicts.judge(gained, cell.gain, single)
        if cell.identity in self._fitted and cell.metric.startswith("test"):
            said, of_gain_said = CALIBRATED, of_gain_said and CALIBRATED
        return replace(found, verdict=said, gain_verdict=of_gain_said, interval=interval, gain_interval=of_gain)

    def _gain(self, cell: Cell) -> float | None:
        return cell.gain if cell.gain is not None else self._gains.get((cell.identity, cell.metric))

    def _spreads(self, cell: Cell, metric: str) -> tuple[Spread | None, Spread | None, int]:
        """Ours, the paper's, and over how many of its runs."""
        net = cell.unnamed.model, cell.unnamed.data
        mine = self._ours.get((*net, False, metric)) or self._ours.get((*net, False, cell.metric))
        runs = len(cell.runs) or (RUNS if "cifar" in net[1] else 1)
        if cell.spread is not None:
            theirs: Spread | None = Spread(cell.spread, runs - 1) if runs > 1 else None
        else:
            theirs = self._theirs.get(net) if cell.metric == "test_accuracy" else None
        return mine or theirs, theirs or mine, runs

    @cached_property
    def _paired(self) -> dict[tuple[str, str], Spread]:
        """Of all differences seed by seed from a base or a control: by what they are counted from, and by figure."""
        known: dict[tuple[str, str], dict[str, list[float]]] = {}
        for cell in (cell for one in experiments() for cell in one.cells):
            for base in filter(None, (cell.base, cell.control)):
                for metric in {cell.metric, AGAIN}:
                    ours, theirs = (figures(self.results.of(of), metric) for of in (cell, base))
                    if differences := _differences(ours, theirs):
                        known.setdefault((base.identity, metric), {})[cell.identity] = [*differences.values()]
        found = {key: pooled(groups.values()) for key, groups in known.items()}
        return {key: spread for key, spread in found.items() if spread}

    @cached_property
    def _ours(self) -> dict[tuple[str, str, bool, str], Spread]:
        """By net, data, whether images are held out, and figure: over all trainings of several seeds."""
        known: defaultdict[tuple[str, str, bool, str], list[list[float]]] = defaultdict(list)
        for rows in self.results.trainings():
            first = next(iter(rows.values()))
            for metric in {*first, AGAIN} if len(rows) > 1 else ():
                if metric.startswith(("test_", "train_", "valid_")):
                    key = (*net_of(first), metric)
                    known[key].append([*figures(rows, metric).values()])
        found = {key: pooled(groups) for key, groups in known.items()}
        return {key: spread for key, spread in found.items() if spread}

    @cached_property
    def _theirs(self) -> dict[tuple[str, str], Spread]:
        """By net and data, of tables A1 and A2."""
        known: defaultdict[tuple[str, str], list[tuple[float, ...]]] = defaultdict(list)
        for one in experiments():
            if one.name in ("tableA1", "tableA2"):
                for cell in one.cells:
                    known[cell.unnamed.model, cell.unnamed.data].append(cell.runs)
        return {key: spread for key, groups in known.items() if (spread := pooled(groups))}

    @cached_property
    def _gains(self) -> dict[tuple[str, str], float]:
        """The paper's, by training: that of table 2, or else where it stands first; of a base the largest from it."""
        found: dict[tuple[str, str], float] = {}
        largest: dict[tuple[str, str], float] = {}
        for one in sorted(experiments(), key=lambda one: one.name != "table2"):
            for cell in one.cells:
                if cell.gain is not None and cell.base is not None:
                    found.setdefault((cell.identity, cell.metric), cell.gain)
                    base = cell.base.identity, cell.base.metric
                    largest[base] = max(largest.get(base, 0.0), abs(cell.gain))
        return largest | found

    @cached_property
    def _fitted(self) -> set[str]:
        return {cell.identity for cell in fitted()}


def net_of(row: Row) -> tuple[str, str, bool]:
    """Returns what trainings of one spread have in common: net, data, and whether it is judged on held-out images."""
    return row["model"], row["data"], bool((row.get("recipe") or {}).get("held_out"))


def _differences(ours: Mapping[int, float], theirs: Mapping[int, float]) -> dict[int, float]:
    return {seed: ours[seed] - theirs[seed] for seed in ours if seed in theirs}


def figures(rows: Mapping[int, Row], metric: str) -> dict[int, float]:
    """Returns a figure by seed, of the rows that have it."""
    found = {seed: row.metric(metric) for seed, row in rows.items()}
    return {seed: value for seed, value in found.items() if value is not None}


def passes(row: Row) -> float | None:
    """Returns the passes of the whole training; the oldest rows have those of a step."""
    found, epochs = row.get("passes"), row.get("epochs")
    if not is_number(found) or not is_number(epochs) or found <= 0 or epochs <= 0:
        return None
    return float(found if found >= epochs else found * epochs)


def tally(said: Sequence[str | None]) -> dict[str, int]:
    """Returns how many have each verdict, of those that occur."""
    names = (verdicts.REPRODUCED, verdicts.BELOW, verdicts.ABOVE, verdicts.UNDECIDED, FAILED, CALIBRATED, OURS_ALONE)
    counts = {name: said.count(name) for name in (*names, NOT_RUN)}
    return {name: count for name, count in counts.items() if count}


def compared(found: Sequence[Outcome]) -> list[Outcome]:
    """Returns the outcomes that have figures; a base only where something is compared with it, if anything is."""
    ran = [one for one in found if one.ours.sample]
    bases = {id(one.cell.base) for one in ran if one.cell.base}
    any_base = any(one.cell.base for one in found)
    return [one for one in ran if one.cell.base or id(one.cell) in bases or not any_base]
