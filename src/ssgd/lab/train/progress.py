"""What a training shows while it runs: one bar over all its runs, and a line where something is worth saying."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .kinds import SAMPLES, judged

if TYPE_CHECKING:
    from .job import Job


LONG = 5.0  # seconds


class Progress:
    """A tqdm bar in samples passed forward and backward, with rate and time left; without tqdm a line an epoch."""

    def __init__(self, shown: bool = True, tensorboard: bool = False) -> None:
        self.shown = shown
        self.tensorboard = tensorboard
        self._tqdm: Any = None
        self._bar: Any = None  # from the first run on that begins
        self._writers: dict[str, Any] = {}
        self._epochs: dict[str, int] = {}
        self._to_come: dict[str, float] = {}
        self._waiting: dict[str, float] = {}  # the passes of runs that have not begun
        self._known = self._a_pass = 0.0  # samples: of runs that have begun, and of one pass over the data

    def __enter__(self) -> Progress:
        if self.tensorboard:
            self._writer = _summary_writer()  # if it is not there, better now than after an epoch
        if self.shown:
            try:
                from tqdm import tqdm

                self._tqdm = tqdm
            except ImportError:
                self.say("without tqdm there is no progress bar: pip install tqdm")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
        for writer in self._writers.values():
            writer.close()

    def say(self, text: str) -> None:
        """A line of its own, above the bar."""
        if self._bar is not None:
            self._bar.write(text, file=sys.stderr)
        else:
            print(text, file=sys.stderr, flush=True)

    def expect(self, jobs: Sequence[Job]) -> None:
        """All that will run, so that the bar goes to its end once."""
        self._waiting = {job.label: job.recipe.schedule.passes for job in jobs}

    def begin(self, job: Job) -> None:
        self._waiting.pop(job.label, None)
        if job.result is not None:
            self._say_of(job, f"finished before, test {judged(job.result)}")
        elif job.run is not None:
            if job.run.position:
                self._say_of(job, f"goes on in epoch {job.run.epoch + 1} of {job.run.schedule.epochs}")
            self._epochs[job.label] = len(job.run.history)
            if self._bar is None and self._tqdm is not None:
                self._bar = self._tqdm(
                    total=job.samples_to_come,
                    unit=f" {SAMPLES[job.run.source.kind]}",
                    unit_scale=True,
                    file=sys.stderr,
                    dynamic_ncols=True,
                )
            if self._bar is not None:
                self._bar.unit = f" {SAMPLES[job.run.source.kind]}"
                self._known += job.samples_to_come - self._to_come.get(job.label, 0.0)  # it may begin again
                self._to_come[job.label] = job.samples_to_come
                self._a_pass = job.run.steps * job.recipe.batch
        if self._bar is not None and self._a_pass:
            self._bar.total = self._known + self._a_pass * sum(self._waiting.values())
            self._bar.refresh()

    @contextmanager
    def waiting_for(self, job: Job) -> Iterator[None]:
        """A step, which may have to be compiled first: said before, and afterwards where it took long."""
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
        if job.last is not None and job.last["epoch"] > self._epochs[job.label]:
            self._epochs[job.label] = job.last["epoch"]
            self._show_epoch(job, job.last)

    def end(self, job: Job) -> None:
        if job.failure is not None:
            self._say_of(job, f"failed: {job.failure}")
        elif job.result is not None:
            train = judged(job.result, "train")
            beside = f", training {train}" if train else ""
            self._say_of(job, f"test {judged(job.result)}{beside} (last epoch, clean weights)")

    def _show_epoch(self, job: Job, row: dict[str, Any]) -> None:
        test = f", test {judged(row)}" if judged(row) else ""
        right = f", {row['accuracy']:.1f} %" if "accuracy" in row else ""
        text = f"epoch {row['epoch']}: loss {row['loss']:.3f}{right}{test}"
        if self._bar is not None:
            self._bar.set_postfix_str(f"{job.label} {text}", refresh=False)
        elif self.shown:
            self._say_of(job, text)
        if self.tensorboard:
            self._write_events(job, row)

    def _say_of(self, job: Job, text: str) -> None:
        if job.ranks.first:
            self.say(f"{job.label}: {text}")

    def _write_events(self, job: Job, row: dict[str, Any]) -> None:
        if job.label not in self._writers:
            self._writers[job.label] = self._writer(str(job.folder / "tensorboard"))
        for key, value in row.items():
            if isinstance(value, float):
                self._writers[job.label].add_scalar(key, value, row["epoch"])


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("tensorboard=true needs the package: pip install tensorboard") from None
    return SummaryWriter
