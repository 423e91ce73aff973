"""The symmetric excess of the loss against the noise level, and a level suggested from it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.checks import check_count
from ..core.noise import Distribution, Fill, as_distribution
from .pictures import COLOURS, empty_figure, saved
from .sharpness import noisy_weights, symmetric_excess
from .task import Task, replayed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARE = 0.05
GREY = "#555555"


@dataclass(frozen=True)
class LevelCurve:
    """The loss at w, with the weights at zero, and at w + n and w − n for each level (rows) and direction (columns)."""

    levels: NDArray[np.float64]
    distribution: str
    seed: int
    mode: str
    samples: int
    clean: float
    blank: float
    plus: NDArray[np.float64]
    minus: NDArray[np.float64]

    @property
    def excess(self) -> NDArray[np.float64]:
        """(L(w+n) + L(w−n)) / 2 − L(w), for each level and direction."""
        return (self.plus + self.minus) / 2 - self.clean

    @property
    def mean(self) -> NDArray[np.float64]:
        return np.asarray(self.excess.mean(axis=1))

    @property
    def sd(self) -> NDArray[np.float64]:
        """Between directions; nan where there is only one."""
        if self.excess.shape[1] == 1:
            return np.full(len(self.levels), math.nan)
        return np.asarray(self.excess.std(axis=1, ddof=1))

    @property
    def target(self) -> float:
        """The excess that the suggestion looks for: a twentieth of what the weights have learnt, ``blank − clean``."""
        return SHARE * (self.blank - self.clean)

    @property
    def suggestion(self) -> float | None:
        """The level at which the noise undoes a twentieth of what the weights have learnt; None where there is none.

        A heuristic, and a place to start a sweep from. It depends on how much noise the function bears, not on whether
        noise helps. Early in training it is lower.
        """
        reached = ~(self.mean < self.target)  # a loss that is not a number counts as too much noise
        if not self.target > 0 or reached[0] or not reached.any():
            return None
        above = int(reached.argmax())
        below = above - 1
        if not math.isfinite(self.mean[above]):
            return float(self.levels[below])
        squares = np.interp(self.target, self.mean[[below, above]], self.levels[[below, above]] ** 2)
        return math.sqrt(squares)

    @property
    def verdict(self) -> str:
        """Tells the suggestion, or why there is none, in a sentence."""
        if self.suggestion is not None:
            return (
                f"suggested level {self.suggestion:.2g} ({self.distribution}): there the noise undoes {SHARE:.0%} of "
                "what the weights have learnt; a rule of thumb, so try half and twice as much too"
            )
        if not self.target > 0:
            return (
                f"no level suggested: the loss, {self.clean:.4g}, is not below that of weights at zero, "
                f"{self.blank:.4g}, so that nothing can be undone; train for a while first"
            )
        low, high = (f"{self.levels[at]:.3g} ({self.distribution})" for at in (0, -1))
        if self.mean[0] < self.target:
            return f"no level suggested: up to {high} the loss rises too little; try larger levels"
        return f"no level suggested: at {low} the loss already rises too much; try smaller levels"

    def draw(self, path: str | Path | None = None) -> Figure:
        """Draws the curve on logarithmic axes and the suggestion; writes a .png, .pdf or .svg where a path is given."""
        figure = empty_figure(6, 4)
        axes = figure.subplots()
        axes.set(xscale="log", yscale="log", xlabel="noise level", ylabel="symmetric excess of the loss")
        axes.set_title(
            f"{self.distribution} noise, {self.excess.shape[1]} directions, {self.samples} samples", fontsize="medium"
        )
        colour = COLOURS[0]
        for sign, face, label in ((1, colour, "mean ± sd between directions"), (-1, "none", "the same, below zero")):
            at = (sign * self.mean > 0) & np.isfinite(self.mean)
            if at.any():
                axes.errorbar(
                    self.levels[at], abs(self.mean[at]), self.sd[at], fmt="o", color=colour, mfc=face, label=label
                )
        if self.mean[0] > 0:
            guide = self.mean[0] * (self.levels / self.levels[0]) ** 2
            axes.plot(self.levels, guide, color=GREY, linestyle="--", linewidth=1, label="level²: the quadratic regime")
        if self.target > 0:
            axes.axhline(self.target, color=GREY, linestyle=":", label=f"{SHARE:.0%} of what was learnt")
        if self.suggestion is not None:
            axes.axvline(self.suggestion, color=COLOURS[1], label=f"suggestion {self.suggestion:.2g}")
        axes.legend(fontsize="small")
        return saved(figure, path)


def find_level(
    task: Task,
    levels: float | Sequence[float] | None = None,
    *,
    distribution: str | Distribution | Fill = "sphere",
    pairs: int = 4,
    batches: int | None = 4,
    seed: int = 0,
    perturb: Iterable[Tensor] | None = None,
    mode: str = "train",
) -> LevelCurve:
    """Measures the symmetric excess at each level, in the spirit of a learning-rate range test.

    Run it with training batches of the size training uses, after some epochs of plain SGD. It takes the first
    ``batches`` of the task (None: all), the same for all levels, and at the same directions. At random weights, where
    the excess may be negative, the curve is drawn and no level suggested.
    """
    tried = np.geomspace(0.01, 1.5, 12) if levels is None else np.array(levels, dtype=np.float64, ndmin=1)
    if tried.ndim > 1 or not tried.size or not (np.diff(tried) > 0).all():
        raise ValueError("levels must be one number or several, each larger than the one before")
    if batches is not None:
        check_count("batches", batches)
    with replayed(task) as same:
        few = replace(task, batches=list(islice(same.batches, batches)))
    perturb = None if perturb is None else list(perturb)
    found = [
        symmetric_excess(
            few, float(level), distribution=distribution, pairs=pairs, seed=seed, perturb=perturb, mode=mode
        )
        for level in tried
    ]
    return LevelCurve(
        levels=tried,
        distribution=found[0].distribution,
        seed=seed,
        mode=mode,
        samples=sum(map(few.size, few.batches)),
        clean=found[0].clean,
        blank=_blank(few, as_distribution(distribution), perturb, mode),
        plus=np.stack([e.plus for e in found]),
        minus=np.stack([e.minus for e in found]),
    )


def _blank(task: Task, distribution: Distribution, perturb: Iterable[Tensor] | None, mode: str) -> float:
    """Returns the loss with all weights that get noise at zero, that of a net that has learnt nothing."""
    with replayed(task, mode) as task:
        weights, _ = noisy_weights(task, distribution, perturb)
        weights.load(torch.zeros_like(weights.now()))
        return task.measure()[0]
