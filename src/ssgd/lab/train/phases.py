"""Phases as the paper writes them: ``75-25S-25S``; the learning rate at any moment, and what it all costs."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property

from ...methods import registry

NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
STEP = re.compile(rf"(\d+)(?:(S)|\(([a-z0-9-]+)(?::({NUMBER}))?\))?")
MOST_EPOCHS = 10**6
RESTARTS = re.compile(r"(\d+)\*(\d+)S?")


@dataclass(frozen=True)
class Phase:
    """A stretch of epochs under one method. ``period`` is the length of the cosine it follows; 0: a constant rate."""

    epochs: int
    lr: float
    method: str
    level: float | None = None
    period: int = 0

    @property
    def passes(self) -> float:
        """Forward and backward passes over the data."""
        return self.epochs * self.passes_a_step

    @cached_property
    def passes_a_step(self) -> float:
        method = registry.get(self.method)
        return 1.0 if self.level == 0 and method.off_at_zero else method.passes

    @property
    def label(self) -> str:
        return self.method if self.level is None else f"{self.method}({self.level:.3g})"

    def lr_at(self, epoch: float) -> float:
        """The learning rate ``epoch`` epochs into this phase."""
        if not self.period:
            return self.lr
        return self.lr * (1 + math.cos(math.pi * epoch / self.period)) / 2


@dataclass(frozen=True)
class Schedule:
    """All phases of a training, with a linear warm-up over the first ``warm_up`` epochs.

    With ``peak`` the rate is one cosine from there to 0 over the whole training, whatever the phases' own rates. It is
    divided by ``decay`` once more in every epoch after ``decay_after``.
    """

    phases: tuple[Phase, ...]
    warm_up: float = 0.0
    peak: float | None = None
    decay: float = 1.0
    decay_after: int = 0

    @cached_property
    def epochs(self) -> int:
        return sum(phase.epochs for phase in self.phases)

    @property
    def passes(self) -> float:
        """The whole cost, in passes over the data: as many epochs of plain SGD would cost the same."""
        return sum(phase.passes for phase in self.phases)

    def index(self, epoch: int) -> int:
        """Which phase epoch ``epoch`` (from 0) belongs to."""
        for i, phase in enumerate(self.phases):
            if epoch < phase.epochs:
                return i
            epoch -= phase.epochs
        raise ValueError("there is no such epoch")

    def lr(self, epoch: float) -> float:
        """The learning rate at a moment, in epochs from the start."""
        if self.peak is not None:
            rate = Phase(self.epochs, self.peak, "base", period=self.epochs).lr_at(epoch)
        else:
            at = self.index(math.floor(epoch))
            rate = self.phases[at].lr_at(epoch - sum(phase.epochs for phase in self.phases[:at]))
        rate /= self.decay ** max(0, math.floor(epoch) + 1 - self.decay_after)
        return rate * min(1.0, epoch / self.warm_up) if self.warm_up else rate

    def __str__(self) -> str:
        def text(phase: Phase) -> str:
            rate = f"{phase.lr:g}" + (f" falling by a cosine of {phase.period} epochs" if phase.period else "")
            length = f"{phase.epochs} epoch{'s' * (phase.epochs != 1)}"
            return f"{length} of {phase.label}" + (f" at {rate}" if self.peak is None else "")

        decay = f"; divided by {self.decay:g} every epoch after {self.decay_after}" if self.decay != 1 else ""
        cosine = "" if self.peak is None else f"; the rate falls from {self.peak:g} by one cosine"
        return "; ".join(map(text, self.phases)) + cosine + decay


def parse(
    text: str,
    lr: tuple[float, ...],
    method: str,
    level: float | None = None,
    *,
    epochs: int | None = None,
    anneal: str = "steps",
    warm_up: float = 0.0,
    decay: float = 1.0,
    decay_after: int = 0,
) -> Schedule:
    """The schedule that ``text`` says.

    ``75-25S-25S``: S marks the phases under ``method``, the others are plain SGD; without any mark ``method`` trains
    them all. ``75-25(split:0.15)-25`` names method and level of one phase. ``10*2`` is SGDR: cosines of 10, 20, 40, …
    epochs, cut at ``epochs``; ``10*2S`` the same under ``method``. ``lr`` has one rate for all phases or one for each;
    with ``anneal="cosine"`` the first of them falls to 0 over the whole training.
    """
    times, text = registry.get(method).epochs, text.replace(" ", "")
    if times != 1 and decay != 1:
        raise ValueError(
            f"{method} has more epochs, in which decay={decay:g} would take the rate to nothing: give method=base with"
            " phases, decay and decay_after for a longer training"
        )
    if restarts := RESTARTS.fullmatch(text):
        first, factor = restarts.groups()
        if epochs is None:
            raise ValueError(f"phases={text} has no end of its own: give epochs=300, say")
        if anneal != "steps":
            raise ValueError(f"phases={text} anneals by cosines of its own: leave out anneal={anneal}")
        if len(lr) > 1:
            raise ValueError(f"phases={text} begins every cosine at one rate: give lr={lr[0]:g}, not {len(lr)} rates")
        found = _cycles(int(first), int(factor), round(epochs * times), lr[0], method, level)
        return Schedule(found, warm_up, None, decay, decay_after)
    if registry.get(method).warm_restarts:
        raise ValueError(f"{method} trains under warm restarts: give phases=10*2 and epochs=300, say, not {text}")
    if epochs is not None:
        raise ValueError(f"epochs={epochs} goes with restarts such as phases=10*2; here phases={text} says how long")
    parts = [STEP.fullmatch(part) for part in _cut(text)]
    if not all(parts):
        raise ValueError(f"cannot read phases={text!r}: write them as 75-50-50, 75-25S-25S, 75-50(split:0.15) or 10*2")
    read = [part.groups() for part in parts if part]
    if len(lr) not in (1, len(read)):
        raise ValueError(f"phases={text} needs one lr for all or one for each of {len(read)} phases, not {len(lr)}")
    rates = lr * len(read) if len(lr) == 1 else lr
    marked = any(mark or name for _, mark, name, _ in read)
    phases = []
    for (count, mark, name, of_phase), rate in zip(read, rates, strict=True):
        if name:
            named = registry.get(name)
            if named.warm_restarts:
                raise ValueError(f"{name} trains under warm restarts: give method={name} and phases=10*2, not {text}")
            phases.append(Phase(round(int(count) * named.epochs), rate, name, float(of_phase) if of_phase else None))
        elif mark or not marked:
            phases.append(Phase(round(int(count) * times), rate, method, level))
        else:
            phases.append(Phase(int(count), rate, "base"))
    if not any(phase.epochs for phase in phases):
        raise ValueError(f"phases={text} has no epoch to train")
    kept = tuple(phase for phase in phases if phase.epochs)
    if sum(phase.epochs for phase in kept) > MOST_EPOCHS:
        raise ValueError(f"phases={text} is longer than a million epochs")
    return Schedule(kept, warm_up, rates[0] if anneal == "cosine" else None, decay, decay_after)


def _cut(text: str) -> list[str]:
    """At the hyphens between phases, not those in names of methods."""
    return re.split(r"-(?![^(]*\))", text)


def _cycles(first: int, factor: int, epochs: int, lr: float, method: str, level: float | None) -> tuple[Phase, ...]:
    if epochs > MOST_EPOCHS:
        raise ValueError(f"epochs={epochs} is more than a million")
    if first < 1 or factor < 1 or epochs < 1:
        raise ValueError(f"restarts need positive numbers, not {first}*{factor} over {epochs} epochs")
    found, period, left = [], first, epochs
    while left:
        length = min(period, left)
        found.append(Phase(length, lr, method, level, period))
        left -= length
        period *= factor
    return tuple(found)
