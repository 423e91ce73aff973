"""The loop: trains one recipe or many, each seed a run, several at once on a GPU."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...files import DiskProblem, make_room
from ..compilation import allow_many_compilations, start_compilers
from ..models.registry import MODELS
from .distributed import Ranks, any_rank, by_first, check, joined
from .job import Job, Sources
from .recipe import Execution, Recipe
from .running import Diverged

TIME_IS_UP = -1  # where a signal's number would stand
SIGNAL_TAKES = 1.0  # seconds at most from one process to the next


class Stopped(Exception):
    """Asked to stop, by a signal or because the time is up.

    ``saved``: whether everything is; where the signal ended the loader's workers too, the last checkpoint remains.
    """

    def __init__(self, number: int, saved: bool = True) -> None:
        super().__init__("the time is up" if number == TIME_IS_UP else f"stopped by {signal.Signals(number).name}")
        self.number, self.saved = number, saved

    def __reduce__(self) -> tuple[type[Stopped], tuple[int, bool]]:
        return Stopped, (self.number, self.saved)


class Listener:
    """Is told how trainings go. This one passes on what must be said and ignores the rest; the commands draw a bar."""

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)

    def expect(self, jobs: Sequence[Job]) -> None:
        """All jobs that will run."""

    def begin(self, job: Job) -> None:
        """A job has been opened: it has a run, or a result from before."""

    def step(self, job: Job) -> AbstractContextManager[None]:
        """Entered around a step of a job."""
        return nullcontext()

    def passed(self, job: Job, samples: float) -> None:
        """A job has passed so many samples forward and backward."""

    def epoch(self, job: Job, row: dict[str, Any]) -> None:
        """A job has ended an epoch, with these metrics."""

    def end(self, job: Job) -> None:
        """A job has a result, or a failure."""


def train(recipe: Recipe, execution: Execution | None = None) -> list[dict[str, Any]]:
    """Train a recipe with all its seeds; the result of each run, in their order.

    What is finished is read, not trained again; what was cut goes on from its last checkpoint.
    """
    jobs = compare([recipe], execution)
    if failed := [job for job in jobs if job.failure is not None]:
        assert failed[0].failure is not None
        raise failed[0].failure
    return [job.result for job in jobs if job.result is not None]


def compare(
    recipes: Sequence[Recipe],
    execution: Execution | None = None,
    when_over: Callable[[Job], object] = lambda job: None,
    listener: Listener | None = None,
) -> list[Job]:
    """Train several recipes, side by side on a GPU. A run that fails does so alone: see its job's ``failure``.

    ``when_over`` is called with each job as it ends, while others go on. ``listener`` is told of every step.
    """
    execution = execution or Execution()
    with joined(execution.kind) as ranks:
        return _all_jobs(recipes, execution, ranks, when_over, listener or Listener())


def _all_jobs(
    recipes: Sequence[Recipe],
    execution: Execution,
    ranks: Ranks,
    when_over: Callable[[Job], object],
    listener: Listener,
) -> list[Job]:
    for recipe in recipes:
        by_first(ranks, recipe.check_trainable)
        by_first(ranks, partial(check, recipe, execution, ranks))
    precisions = {recipe.resolved(execution.kind).precision for recipe in recipes}
    if len(precisions) > 1:
        raise ValueError(f"one process trains in one precision, not in {' and '.join(sorted(precisions))}")
    if execution.results is not None:
        by_first(ranks, partial(make_room, Path(execution.results)))
    set_up(recipes[0].resolved(execution.kind), execution, *recipes[1:])
    with listener:
        jobs = [Job(recipe, seed, execution, ranks, listener.say) for recipe in recipes for seed in recipe.seeds]
        if len({job.folder for job in jobs}) < len(jobs):
            raise ValueError("two recipes have the same name and would share a folder: give each a name of its own")
        listener.expect(jobs)
        at_once = execution.at_once if execution.kind == "cuda" and not ranks.several else 1
        with stop_on_signal() as stop:
            drive(jobs, at_once, Sources(execution), listener, within(execution.minutes, stop), when_over)
    return jobs


def set_up(recipe: Recipe, execution: Execution, *others: Recipe) -> None:
    """Sets torch's switches for the whole process, for this recipe and the others that are trained in it."""
    tf32 = recipe.precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    models = (MODELS.get(one.model) for one in (recipe, *others))
    kinds = {"images" if model is None else model.kind for model in models}  # a user's own are for images
    # batches of speech have many lengths
    torch.backends.cudnn.benchmark = not execution.deterministic and "speech" not in kinds
    if execution.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(execution.deterministic)
    if "images" in kinds and execution.decided(alone=os.environ.get("WORLD_SIZE", "1") == "1").compile:
        allow_many_compilations()
        if execution.kind == "cuda":
            start_compilers()


def drive(
    jobs: Sequence[Job],
    at_once: int,
    sources: Sources,
    listener: Listener,
    stop: Callable[[], int | None],
    when_over: Callable[[Job], object] = lambda job: None,
) -> None:
    """A step of each live job in turn, until all are over."""
    waiting, live = deque(jobs), deque[Job]()

    def asked() -> bool:
        return any_rank(stop() is not None, jobs[0].ranks, jobs[0].execution.kind)

    def wait(job: Job) -> None:
        nonlocal at_once
        at_once = len(live)  # no more have room: it begins again when one of them has ended
        waiting.append(job)
        job.say(f"{job.label}: no memory next to the others; it waits until one of them has ended")

    try:
        while waiting or live:
            while waiting and len(live) < at_once and not asked():
                job = waiting.popleft()
                with alone(job, among_others=bool(live)):
                    job.begin(sources)
                    listener.begin(job)
                if job.over:
                    if job.failure is not None:
                        listener.end(job)
                    when_over(job)
                elif job.run is None:
                    wait(job)
                else:
                    live.append(job)
            for job in list(live):
                with alone(job, among_others=len(live) > 1):
                    before = job.last
                    job.stop_asked = job.stop_asked or stop() is not None
                    with listener.step(job), told_apart(stop):
                        samples = job.advance()
                    listener.passed(job, samples)
                    if job.last is not None and job.last is not before:
                        listener.epoch(job, job.last)
                if job.over:
                    live.remove(job)
                    listener.end(job)
                    when_over(job)
                elif job.run is None:
                    live.remove(job)
                    wait(job)
            stopped = all(job.stopped for job in live) if live else bool(waiting) and asked()
            if stopped:
                raise Stopped(stop() or signal.SIGTERM)  # another rank may have had the signal
    finally:
        for job in jobs:
            job.close()


@contextmanager
def alone(job: Job, among_others: bool = False) -> Iterator[None]:
    """Keeps an exception to this job. Where it found no memory next to other jobs, it is closed but not over."""
    try:
        yield
    except Stopped:
        raise
    except Exception as problem:
        if job.ranks.several and not isinstance(problem, Diverged):  # which all ranks see alike
            raise  # the others wait: all must end
        if isinstance(problem, Diverged):
            job.note_divergence(problem)
        job.close()
        let_go(problem)
        if isinstance(problem, torch.cuda.OutOfMemoryError):
            gc.collect()  # a run and its steps know each other
            torch.cuda.empty_cache()
            if among_others:
                return
        job.failure = problem


@contextmanager
def told_apart(stop: Callable[[], int | None]) -> Iterator[None]:
    """Where a signal to all processes ends the workers of a loader first, their end is no failure of the run."""
    try:
        yield
    except RuntimeError as problem:
        if "DataLoader worker" not in str(problem):
            raise
        end = time.monotonic() + SIGNAL_TAKES
        while stop() is None and time.monotonic() < end:
            time.sleep(0.01)
        if (number := stop()) is None:
            raise
        raise Stopped(number, saved=False) from problem


def let_go(problem: BaseException | None) -> None:
    """An exception keeps the frames it passed through, and they the run with all its memory."""
    while problem is not None:
        traceback.clear_frames(problem.__traceback__)
        problem = problem.__context__


def within(minutes: float | None, stop: Callable[[], int | None]) -> Callable[[], int | None]:
    """As ``stop``, and from the end of these minutes on too."""
    if minutes is None:
        return stop
    end = time.monotonic() + 60 * minutes
    return lambda: stop() or (TIME_IS_UP if time.monotonic() >= end else None)


@contextmanager
def stop_on_signal() -> Iterator[Callable[[], int | None]]:
    """SIGINT and SIGTERM are noted, for the loop to end after its step; a second SIGINT ends at once.

    A second SIGTERM does not: a cluster's comes to every process, and then once more from ``torchrun``.
    """
    caught: list[int] = []

    def note(number: int, _: Any) -> None:
        if caught and number == signal.SIGINT:
            raise KeyboardInterrupt
        caught.append(number)

    if threading.current_thread() is not threading.main_thread():  # Python allows handlers there only
        yield lambda: None
        return
    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: caught[0] if caught else None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def explain(problem: BaseException) -> str:
    """Returns what went wrong, as a sentence where it is something that a user can mend."""
    if isinstance(problem, DiskProblem):
        return f"{problem}. What was saved is whole: the same command goes on from there."
    if isinstance(problem, (ValueError, ImportError, OSError, Diverged)):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"
