"""Mean and spread of a few seeds, and the difference of two methods over the seeds that both have."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Sample:
    """A mean over ``count`` values; ``sd`` is nan for a single one."""

    mean: float
    sd: float
    count: int


@dataclass(frozen=True)
class Difference:
    """Of two methods, seed by seed, with the 95 % interval of Student's t (nan for a single seed)."""

    mean: float
    sd: float
    count: int
    low: float
    high: float
    gained: int  # seeds that are better than the base's


def sample(values: Iterable[float]) -> Sample:
    found = list(values)
    if not found:
        raise ValueError("there is no mean of no values")
    mean = math.fsum(found) / len(found)
    squares = math.fsum((value - mean) ** 2 for value in found)
    return Sample(mean, math.sqrt(squares / (len(found) - 1)) if len(found) > 1 else math.nan, len(found))


def paired(ours: Mapping[int, float], base: Mapping[int, float], less_is_better: bool = False) -> Difference | None:
    """``ours`` minus ``base`` over common seeds; None where there is no such seed."""
    differences = [ours[seed] - base[seed] for seed in sorted(ours.keys() & base.keys())]
    if not differences:
        return None
    found = sample(differences)
    reach = math.nan
    if found.count > 1:
        reach = t_quantile(0.975, found.count - 1) * found.sd / math.sqrt(found.count)
    gained = sum(difference < 0 if less_is_better else difference > 0 for difference in differences)
    return Difference(found.mean, found.sd, found.count, found.mean - reach, found.mean + reach, gained)


def t_quantile(share: float, freedom: float) -> float:
    """Of Student's t: with t = √ν tan θ its density is that of cos^(ν−1) θ, which is summed over a fine grid."""
    angle = np.linspace(0.0, math.pi / 2, 100_001)
    density = np.cos(angle) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum(density[1:] + density[:-1])])
    at = np.interp(abs(2 * share - 1), below / below[-1], angle)
    return math.copysign(math.sqrt(freedom) * math.tan(float(at)), share - 0.5)
