"""Noise levels that change while training: per phase, linearly, along a cosine."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from .core.checks import check_count

Course = Callable[[int], float]


class NoiseSchedule:
    """Sets every group's noise level to its first value times ``course(t)``; call ``step()`` as for an LR scheduler.

    ::

        schedule = NoiseSchedule(opt, linear(0.0, 1.0, steps=10))   # from nothing to the full level in 10 epochs
        for epoch in range(epochs):
            train(...)
            schedule.step()
    """

    def __init__(self, optimizer: Optimizer, course: Course) -> None:
        if any("noise" not in group for group in optimizer.param_groups):
            raise TypeError(f"{type(optimizer).__name__} has no noise level: schedule an SSGD optimizer")
        if not callable(course):
            raise TypeError(f"a course says the level's factor at each step, such as linear(0, 1, 10), not {course!r}")
        self.optimizer = optimizer
        self.course = course
        self.t = 0
        self.full = [float(group["noise"]) for group in optimizer.param_groups]
        self._set()

    def step(self) -> None:
        self.t += 1
        self._set()

    @property
    def levels(self) -> list[float]:
        """The level of each group now."""
        return [float(level * self.course(self.t)) for level in self.full]

    def state_dict(self) -> dict[str, Any]:
        return {"t": self.t, "full": list(self.full)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.t, self.full = state["t"], list(state["full"])
        self._set()

    def _set(self) -> None:
        if len(self.optimizer.param_groups) != len(self.full):
            raise RuntimeError(
                f"the optimizer has {len(self.optimizer.param_groups)} parameter groups, the schedule began with "
                f"{len(self.full)}: make a new NoiseSchedule after add_param_group()"
            )
        for group, level in zip(self.optimizer.param_groups, self.levels, strict=True):
            if isinstance(group["noise"], Tensor):
                group["noise"].fill_(level)  # in place: a CUDA graph may be reading it
            else:
                group["noise"] = level


def linear(start: float, end: float, steps: int) -> Course:
    """From ``start`` to ``end`` in ``steps``, then constant."""
    check_count("steps", steps)
    return lambda t: start + (end - start) * min(t / steps, 1.0)


def cosine(start: float, end: float, steps: int) -> Course:
    """From ``start`` to ``end`` along half a cosine in ``steps``, then constant."""
    check_count("steps", steps)
    return lambda t: end + (start - end) * (1 + math.cos(math.pi * min(t / steps, 1.0))) / 2


def phases(factors: Mapping[int, float]) -> Course:
    """Piecewise constant: ``{0: 0.0, 75: 1.0}`` is none before step 75, then the full level."""
    if 0 not in factors:
        raise ValueError("phases() needs the factor to begin with, at key 0")
    starts = sorted(factors)
    return lambda t: factors[starts[bisect.bisect_right(starts, t) - 1]]
