"""One batch's way through its points: all that must happen around each backward()."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol

from torch import Tensor, nn

from . import random_state
from .batchnorm import RunningStatistics
from .gradients import Gradients, MeanGradient, clear
from .parallel import no_sync, reduce_gradients, reshard, sharded_modules, unwrap_ddp

LATE = (
    "a backward() ran after its point was left, or gradients were changed there: call backward() inside `with point:`"
)

UNDONE = (
    "something wrote to the weights inside the points, such as a layer that sets them from its first batch, "
    "Embedding(max_norm=...) or load_state_dict(): it is undone when they return to w. Let it write before or after "
    "the points, or leave these weights without noise by perturb="
)


class Point:
    """A place to take a gradient at: ``with point:`` puts the weights there, and back.

    ``sign`` is +1, −1, or 0 for the clean weights. Assign the loss to ``point.loss`` to have it logged.
    """

    loss: Tensor | float | None = None

    def __init__(self, walk: Walk, index: int, sign: int) -> None:
        self.index = index
        self.sign = sign
        self.walk = walk

    def __enter__(self) -> Point:
        self.walk.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.walk.leave(self, failed=kind is not None)

    def __repr__(self) -> str:
        return f"Point({'clean' if self.sign == 0 else 'w + n' if self.sign > 0 else 'w − n'})"


class Moves(Protocol):
    """What a method does to the weights at the points of a walk."""

    @property
    def signs(self) -> Sequence[int]:
        """A label for each point: 1, −1, or 0 for w itself."""

    def go(self, index: int) -> None:
        """w → point ``index``."""

    def come_back(self, index: int) -> None:
        """Point ``index`` → w, its gradient taken."""

    def restore(self) -> None:
        """Wherever the weights are → w."""

    def writes(self) -> Sequence[tuple[int, int]]:
        """Place and version of every tensor that restore() would overwrite."""


@dataclass
class Walk:
    """The points of one batch, in order."""

    moves: Moves
    shares: Sequence[float]  # of each point's gradient in the mean
    parameters: Sequence[Tensor]  # all that the base updates
    model: nn.Module | None
    statistics: RunningStatistics
    same_rng: bool = False
    reduce_every_pass: bool = False  # under DDP: all-reduce each pass's gradient, not only the sum

    def __post_init__(self) -> None:
        self.points = [Point(self, i, sign) for i, sign in enumerate(self.moves.signs)]
        self.done = 0
        self.inside = False
        self.cut_short = False
        self.over = False
        self.by_closure = False  # then every backward() runs inside its point
        self._seen = Gradients(())  # when last looked at
        self._written: Sequence[tuple[int, int]] = ()  # the weights, after the last move
        self._arrivals: list[bool] = []  # whether a gradient came inside each point
        self.gradients = MeanGradient(self.parameters)
        self._sharded = sharded_modules(self.model)  # found once: a large model takes long to go through
        self._cleanup = ExitStack()

    @property
    def complete(self) -> bool:
        return self.done == len(self.points)

    @property
    def untouched(self) -> bool:
        return not (self.cut_short or self.inside or self.done)

    @property
    def half_way(self) -> bool:
        return not self.cut_short and (self.inside or 0 < self.done < len(self.points))

    @property
    def came_late(self) -> bool:
        """Whether the gradients came when all points had been left, and none before: they are not the points'."""
        without = self._arrivals == [False] * len(self.points)
        return without and not self._seen and bool(Gradients(self.parameters))

    def __iter__(self) -> Iterator[Point]:
        try:
            for point in self.points:
                yield point
                if self.done <= point.index:
                    raise RuntimeError("a point was passed over: wrap the passes in `with point:`")
        finally:
            if self.inside:  # interrupted on the threshold of a `with`
                self.abandon()
            else:
                self._go_home()

    def enter(self, point: Point) -> None:
        if self.inside:
            raise RuntimeError("points cannot be nested: leave the `with point:` you are in first")
        if self.over and point.index == self.done:
            raise RuntimeError("zero_grad(), or a new points(), has ended this batch: call it before or after them")
        if self.cut_short or point.index != self.done:
            raise RuntimeError("this point is over: take points in order, each once, from a new points() or split()")
        if point.index and self._seen.changed(self.parameters):
            raise RuntimeError(LATE)
        self._check_writes()
        try:
            self.inside = True
            self.gradients.before(self.shares[point.index])
            if point.index == 0:
                self.statistics.begin()
            reshard(self._sharded)  # gathered weights left over from before would hide the change
            reduce_gradients(self._sharded)
            self.moves.go(point.index)
            self._written = self.moves.writes()
            if self.same_rng:
                self._share_random_state(point.index)
            ddp = unwrap_ddp(self.model)
            if ddp is not None and point is not self.points[-1] and not self.reduce_every_pass:
                self._cleanup.enter_context(no_sync(ddp))  # one all-reduce a step: the last pass carries the sum
            self._seen = Gradients(self.parameters)
        except BaseException:
            self.abandon()
            raise

    def leave(self, point: Point, failed: bool) -> None:
        try:
            self._cleanup.close()
            if failed:
                return self.abandon()
            self._check_arrival(point)
            self._check_writes()
            self.moves.come_back(point.index)
            self._written = self.moves.writes()
            reshard(self._sharded)
            self.gradients.after(self.shares[point.index])
            self.statistics.after(point.index, len(self.points))
            if point is self.points[-1]:
                self.gradients.end()
            self._seen = Gradients(self.parameters)
            self.done += 1
            self.inside = False
        except BaseException:
            self.abandon()
            raise

    def close(self) -> None:
        """No point follows. An iterator that is dropped later finds nothing left to do, and disturbs no other walk."""
        self._go_home()
        self.over = True

    def abandon(self) -> None:
        """Weights as before the batch, its gradients dropped: it can be skipped."""
        self.moves.restore()
        reshard(self._sharded)
        self._cleanup.close()
        self.statistics.undo()
        clear(self.gradients.all)
        self.inside = False
        self.cut_short = True

    def _go_home(self) -> None:
        if not (self.over or self.complete or self.cut_short):
            self.moves.restore()

    def _check_arrival(self, point: Point) -> None:
        """A last pass without a backward() after passes with one: it is still to come, and would come too late."""
        self._arrivals.append(self._seen.changed(self.parameters))
        last = point is self.points[-1] and not self.by_closure
        if last and any(self._arrivals) and not self._arrivals[-1]:
            raise RuntimeError("no gradient came inside the last point: call backward() inside `with point:`")

    def _check_writes(self) -> None:
        """Where a tensor got other memory, as an LSTM's do from flatten_parameters(), there is no telling."""
        for (place, version), (now, latest) in zip(self._written, self.moves.writes(), strict=False):
            if place == now and version != latest:
                warnings.warn(UNDONE, stacklevel=4)
                return

    def _share_random_state(self, index: int) -> None:
        if index == 0:
            self._random = random_state.snapshot({p.device for p in self.parameters})
        else:
            random_state.put_back(self._random)
