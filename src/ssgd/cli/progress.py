"""The progress of a training at the terminal: one bar over all its runs, or a line an epoch."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from ..lab.train.engine import Listener, explain
from ..lab.train.job import Job
from ..lab.train.kinds import figure_in_words

LONG = 5.0  # seconds


class Progress(Listener):
    """A tqdm bar in samples passed forward and backward, with rate and time left.

    Where tqdm is missing, or the output is no terminal, there is a line for each epoch instead. Not ``shown``, both
    stay away, and only the ends of runs are told.
    """

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown
        self._bar: Any = None  # from the first run on that begins
        self._tqdm = _tqdm() if shown and sys.stderr is not None and sys.stderr.isatty() else None
        self._to_come: dict[str, float] = {}
        self._waiting: dict[str, float] = {}  # the passes of runs that have not begun
        self._known = self._a_pass = 0.0  # samples: of runs that have begun, and of one pass over the data
        self._first = True

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def say(self, text: str) -> None:
        """Prints a line of its own, above the bar."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            super().say(text)

    def expect(self, jobs: Sequence[Job]) -> None:
        self._first = all(job.ranks.first for job in jobs)
        self._waiting = {job.label: job.recipe.schedule.passes for job in jobs}

    def begin(self, job: Job) -> None:
        self._waiting.pop(job.label, None)
        if job.result is not None:
            self._say_of(job, f"finished before, {_judged(job, job.result)}")
        elif job.run is not None:
            if job.run.position:
                self._say_of(job, f"goes on in epoch {job.run.epoch + 1} of {job.run.schedule.epochs}")
            unit = f" {job.run.kind.samples}"
            if self._bar is None and self._tqdm is not None and self._first:
                self._bar = self._tqdm(
                    total=job.samples_to_come, unit=unit, unit_scale=True, file=sys.stderr, dynamic_ncols=True
                )
            if self._bar is not None:
                self._bar.unit = unit
                self._known += job.samples_to_come - self._to_come.get(job.label, 0.0)  # it may begin again
                self._to_come[job.label] = job.samples_to_come
                self._a_pass = job.run.steps * job.recipe.batch
        if self._bar is not None and self._a_pass:
            self._bar.total = self._known + self._a_pass * sum(self._waiting.values())
            self._bar.refresh()

    @contextmanager
    def step(self, job: Job) -> Iterator[None]:
        """Tells of a compilation before it begins, and afterwards where it took long."""
        if job.run is None or not job.run.compiles_next:
            yield
            return
        if self._bar is not None:
            self._bar.set_postfix_str(f"{job.label}: compiling, a minute at most and kept for the next time")
        began = time.perf_counter()
        yield
        if (took := time.perf_counter() - began) > LONG:
            self._say_of(job, f"compiled in {took:.0f} s")

    def passed(self, job: Job, samples: float) -> None:
        if self._bar is not None:
            self._bar.update(samples)
            self._to_come[job.label] -= samples

    def epoch(self, job: Job, row: dict[str, Any]) -> None:
        test = f", {_judged(job, row)}" if figure_in_words(row) else ""
        right = f", {row['accuracy']:.1f} %" if "accuracy" in row else ""
        text = f"epoch {row['epoch']}: loss {row['loss']:.3f}{right}{test}"
        if self._bar is not None:
            self._bar.set_postfix_str(f"{job.label} {text}", refresh=False)
        elif self.shown:
            self._say_of(job, text)

    def end(self, job: Job) -> None:
        if job.failure is not None:
            self._say_of(job, f"failed: {explain(job.failure)}")
        elif job.result is not None:
            train = figure_in_words(job.result, "train")
            also = f", training {train}" if train else ""
            self._say_of(job, f"{_judged(job, job.result)}{also} (last epoch, clean weights)")

    def _say_of(self, job: Job, text: str) -> None:
        if job.ranks.first:
            self.say(f"{job.label}: {text}")


def _judged(job: Job, row: Mapping[str, Any]) -> str:
    return f"{'held-out' if job.recipe.held_out else 'test'} {figure_in_words(row)}"


def _tqdm() -> Any:
    """tqdm's bar, or None where it is not installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm
