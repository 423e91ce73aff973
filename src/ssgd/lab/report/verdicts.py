"""The rule by which a number of ours is judged beside the paper's, and how often it errs.

Both sides have a spread over seeds. A cell's own few seeds tell it badly: with two alone an interval is 2.7 points wide
to either side. So ours is pooled over all trainings of the same net and data, and so is the paper's where it lists no
runs of that very cell. The interval is Welch's, of ours minus the paper's.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ..experiments.statistics import t_quantile

REPRODUCED, BELOW, ABOVE, UNDECIDED = "reproduced", "below the paper", "above the paper", "undecided"
NOT_RUN, OURS_ALONE = "not run", "ours alone"
CALIBRATED = "calibrated"  # the setting was fitted to this very number
FAILED = "failed"  # every seed diverged

RULE = (
    "Each number has two verdicts: its accuracy (or perplexity, or errors), and its gain over SGD. Each goes by the "
    "95 % interval of ours minus the paper's, by Welch, with the spread over seeds on both sides: ours pooled over "
    "all trainings of the same net and data, the paper's that of its tables A1 and A2, of the bars of its figure 3 "
    "or of figure 4's runs, else pooled over the cells of tables A1 and A2 with that net and data; where one side "
    "has none, the other's stands in. The interval excludes 0: below or above the paper; a gain, of perplexity and "
    "errors too, is below where less is gained. It contains 0 and reaches no further than half of the paper's gain: "
    "reproduced. Else, and for a single seed that does not lie outside: undecided. A number without a gain is "
    "measured by the largest gain that the paper counts from it. Test accuracies are those with batch-norm's "
    "statistics gathered again for the clean weights, where a run tells them. Calibrated: what the paper leaves "
    "open (weight decay, dropout, the distribution of the noise) was chosen by this very number, which is not "
    "counted. A training counts once. Failed: the loss became nan or infinite for every seed. The interval of a gain "
    "over our own base has the spread of all differences from that base, seed by seed."
)


@dataclass(frozen=True)
class Spread:
    """A standard deviation over seeds, and the degrees of freedom that it rests on."""

    sd: float
    freedom: float


@dataclass(frozen=True)
class Interval:
    """A difference with its 95 % interval; ``reach`` is nan where nothing tells the spread."""

    middle: float
    reach: float

    @property
    def low(self) -> float:
        return self.middle - self.reach

    @property
    def high(self) -> float:
        return self.middle + self.reach


def pooled(groups: Iterable[Sequence[float]]) -> Spread | None:
    """Returns the common spread of groups whose means may differ; None where no group has two values."""
    squares, freedom = 0.0, 0
    for values in groups:
        if len(values) > 1:
            mean = math.fsum(values) / len(values)
            squares += math.fsum([(value - mean) ** 2 for value in values])
            freedom += len(values) - 1
    return Spread(math.sqrt(squares / freedom), freedom) if freedom else None


def combined(a: Spread, b: Spread) -> Spread:
    """Returns the common spread of two that were found apart."""
    freedom = a.freedom + b.freedom
    return Spread(math.sqrt((a.freedom * a.sd**2 + b.freedom * b.sd**2) / freedom), freedom)


def spanned(difference: float, spread: Spread | None, share: float) -> Interval:
    """Returns the interval of a difference of two means whose spread is one; a share is the sum of their 1 / n."""
    reach = quantile(spread.freedom) * spread.sd * math.sqrt(share) if spread else math.nan
    return Interval(difference, reach)


def welch(difference: float, ours: Spread, share: float, theirs: Spread, their_share: float) -> Interval:
    """Returns the interval of a difference; a share is 1 / n, and that of a gain the sum of two."""
    a, b = share * ours.sd**2, their_share * theirs.sd**2
    if a + b == 0:
        return Interval(difference, 0.0)
    freedom = (a + b) ** 2 / (a * a / ours.freedom + b * b / theirs.freedom)
    return Interval(difference, quantile(round(freedom, 1)) * math.sqrt(a + b))


@cache
def quantile(freedom: float) -> float:
    """Returns the 97.5 % quantile of Student's t."""
    return t_quantile(0.975, freedom)


def judge(found: Interval | None, gain: float | None, single: bool) -> str:
    """Returns the verdict of an interval, beside the gain that the paper reports."""
    if found is None:
        return UNDECIDED
    if found.low > 0:
        return ABOVE
    if found.high < 0:
        return BELOW
    return REPRODUCED if not single and gain is not None and found.reach <= abs(gain) / 2 else UNDECIDED


@cache
def rates() -> list[dict[str, Any]]:
    """Returns how often the rule errs, as ``scripts/simulate_verdicts.py`` has found it."""
    found: list[dict[str, Any]] = json.loads((files(__package__) / "rates.json").read_text(encoding="utf-8"))["rows"]
    return found
