"""What became of a cell: our figures beside the paper's, and what that says."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import mean

from ..experiments.catalogue import experiments
from ..experiments.cells import AGAIN, Cell, Experiment
from ..experiments.questions import fitted
from ..experiments.rows import Results, Row, is_number
from ..experiments.statistics import Difference, Sample, paired, sample
from . import verdicts
from .verdicts import CALIBRATED, FAILED, NOT_RUN, OURS_ALONE, Interval, Spread, combined, pooled, welch

RUNS = 5  # of the paper on CIFAR, where it does not list them


@dataclass(frozen=True)
class Outcome:
    """Our figures of a cell by seed, and their differences to those of its base over common seeds.

    The figures are test accuracies with batch-norm's statistics gathered again, where ``again`` is set, else the runs'
    own; of the former ``own`` has the latter. ``noise`` is what the noise brings beyond the same training without it.
    """

    cell: Cell
    verdict: str
    ours: Mapping[int, float]
    sample: Sample | None = None
    gain: float | None = None
    gain_verdict: str | None = None  # None: the paper has no gain here
    interval: Interval | None = None  # of ours minus the paper's
    gain_interval: Interval | None = None
    difference: Difference | None = None
    noise: Difference | None = None
    again: bool = False
    own: Sample | None = None
    own_difference: Difference | None = None
    passes: float | None = None
    diverged: tuple[int, ...] = ()  # the seeds whose loss became nan or infinite, and which have no figure
    small: bool = False  # of less than the paper's


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
        again = cell.metric == "test_accuracy" and any(AGAIN in row for row in rows.values())
        metric = AGAIN if again else cell.metric
        ours = figures(rows, metric)
        less_is_better = not cell.metric.endswith("accuracy")
        both = metric if figures(base, metric) else cell.metric  # of a gain both sides have the same figure
        gained, theirs = figures(rows, both), figures(base, both)
        first = next(iter(rows.values()), None)
        found = Outcome(
            cell,
            NOT_RUN,
            ours,
            sample(ours.values()) if ours else None,
            gain_over(theirs, gained) if gained and theirs else None,
            difference=paired(gained, theirs, less_is_better),
            noise=paired(ours, figures(control, metric), less_is_better),
            again=again,
            own=sample(figures(rows, cell.metric).values()) if again else None,
            own_difference=paired(figures(rows, cell.metric), figures(base, cell.metric)) if again else None,
            passes=None if first is None else passes(first),
            diverged=tuple(seed for seed, row in rows.items() if row.diverged),
        )
        return self._judged(found, metric, len(theirs))

    def _judged(self, found: Outcome, metric: str, base_seeds: int) -> Outcome:
        cell, ours = found.cell, found.sample
        if cell.paper is None or ours is None:
            said = NOT_RUN if not (ours or found.diverged) else OURS_ALONE if cell.paper is None else FAILED
            return replace(found, verdict=said)
        mine, theirs, runs = self._spreads(cell, metric)
        single = ours.count == 1
        of_gain = None
        if cell.gain is not None and found.gain is not None and cell.base and mine and theirs:
            _, of_base, _ = self._spreads(cell.base, metric)
            both = combined(theirs, of_base) if cell.spread and cell.base.spread and of_base else theirs
            share = 1 / (found.difference.count if found.difference else ours.count) + 1 / base_seeds
            of_gain = welch(found.gain - cell.gain, mine, share, both, 2 / runs)
        interval = welch(ours.mean - cell.paper, mine, 1 / ours.count, theirs, 1 / runs) if mine and theirs else None
        measure = cell.gain if cell.gain is not None else self._largest_gain.get((cell.identity, cell.metric))
        said = verdicts.judge(interval, measure, single)
        of_gain_said = None if cell.gain is None else verdicts.judge(_gained(cell, of_gain), cell.gain, single)
        if cell.identity in self._fitted and cell.metric.startswith("test"):
            said, of_gain_said = CALIBRATED, of_gain_said and CALIBRATED
        return replace(found, verdict=said, gain_verdict=of_gain_said, interval=interval, gain_interval=of_gain)

    def _spreads(self, cell: Cell, metric: str) -> tuple[Spread | None, Spread | None, int]:
        """Ours, the paper's, and over how many of its runs."""
        net = cell.unnamed.model, cell.unnamed.data
        mine = self._ours.get((*net, metric)) or self._ours.get((*net, cell.metric))
        runs = len(cell.runs) or (RUNS if "cifar" in net[1] else 1)
        if cell.spread is not None:
            theirs: Spread | None = Spread(cell.spread, runs - 1) if runs > 1 else None
        else:
            theirs = self._theirs.get(net) if cell.metric == "test_accuracy" else None
        return mine or theirs, theirs or mine, runs

    @cached_property
    def _ours(self) -> dict[tuple[str, str, str], Spread]:
        """By net, data and figure, over all trainings that were judged on the test part."""
        known: defaultdict[tuple[str, str, str], dict[str, list[float]]] = defaultdict(dict)
        for one in experiments():
            for cell in one.cells:
                rows = self.results.of(cell) if cell.make else {}
                if len(rows) < 2 or cell.unnamed.held_out:
                    continue
                for metric in (cell.metric, AGAIN):
                    values = list(figures(rows, metric).values())
                    known[cell.unnamed.model, cell.unnamed.data, metric][cell.identity] = values
        found = {key: pooled(groups.values()) for key, groups in known.items()}
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
    def _largest_gain(self) -> dict[tuple[str, str], float]:
        """Of the paper, counted from a training."""
        found: dict[tuple[str, str], float] = {}
        for one in experiments():
            for cell in one.cells:
                if cell.gain is not None and cell.base is not None:
                    key = cell.base.identity, cell.base.metric
                    found[key] = max(found.get(key, 0.0), abs(cell.gain))
        return found

    @cached_property
    def _fitted(self) -> set[str]:
        return {cell.identity for cell in fitted()}


def _gained(cell: Cell, interval: Interval | None) -> Interval | None:
    """Of perplexities and errors less is better, and a smaller fall is a gain below the paper's."""
    falling = not cell.metric.endswith("accuracy")
    return Interval(-interval.middle, interval.reach) if interval and falling else interval


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


def tally(said: Sequence[str | None]) -> dict[str, int]:
    """Returns how many have each verdict, of those that occur."""
    names = (verdicts.REPRODUCED, verdicts.BELOW, verdicts.ABOVE, verdicts.UNDECIDED, FAILED, CALIBRATED, OURS_ALONE)
    counts = {name: said.count(name) for name in (*names, NOT_RUN)}
    return {name: count for name, count in counts.items() if count}


def compared(found: Sequence[Outcome]) -> list[Outcome]:
    """Returns the outcomes that have figures; a base only where something is compared with it, if anything is."""
    ran = [one for one in found if one.sample]
    bases = {id(one.cell.base) for one in ran if one.cell.base}
    any_base = any(one.cell.base for one in found)
    return [one for one in ran if one.cell.base or id(one.cell) in bases or not any_base]
