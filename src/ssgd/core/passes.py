"""One batch's passes, in order: all that must happen around each backward()."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING

from torch import Tensor, nn

from . import random_state
from .batchnorm import RunningStatistics
from .buckets import MovingWeights
from .gradients import MeanGradient, clear
from .parallel import no_sync, reduce_gradients, reshard, sharded_modules, unwrap_ddp

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

LATE = (
    "a backward() ran after its point was left, or gradients were changed there: call backward() inside `with point:`"
)
UNDONE = (
    "something wrote to the weights inside a point, such as a layer that sets them from its first batch, "
    "Embedding(max_norm=...) or load_state_dict(): it is undone when they return to w. Let it write outside the "
    "points, or leave these weights without noise by perturb="
)


class Route:
    """Where a batch's gradients are taken, and their shares in the mean. This one stays at w; methods derive theirs.

    Args:
        signs: a label for each pass: 1 or −1 for a point beside w, 0 for w itself.
        shares: of each pass's gradient in the mean, alike by default.
        weights: what moves, for the way back to be the same for all methods.
    """

    reduce_every_pass = False  # under DDP: each pass's gradient is needed reduced, not only the sum

    def __init__(
        self, signs: Sequence[int], shares: Sequence[float] | None = None, weights: MovingWeights | None = None
    ) -> None:
        self.signs = signs
        self.shares = shares or [1 / len(signs)] * len(signs)
        self.moving = weights

    def enter(self, index: int) -> None:
        """Move from w to point ``index``."""

    def leave(self, index: int) -> None:
        """Use what is in ``p.grad``; the weights are back at w."""

    def release(self) -> None:
        """Drop every copy: no point follows."""


class Point:
    """A place to take a gradient at: ``with point:`` puts the weights there, and back.

    ``sign`` is +1, −1, or 0 for the clean weights; ``index`` counts the batch's points; ``share`` is the weight of its
    gradient in the mean. Assign the loss to ``point.loss`` to have it logged.
    """

    loss: Tensor | float | None = None

    def __init__(self, passes: Passes, index: int) -> None:
        self.passes = passes
        self.index = index
        self.sign = passes.route.signs[index]
        self.share = passes.route.shares[index]

    def __enter__(self) -> Point:
        self.passes.enter(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.passes.leave(self, failed=kind is not None)

    def __repr__(self) -> str:
        return f"Point({'clean' if self.sign == 0 else 'w + n' if self.sign > 0 else 'w − n'})"


class Stage(Enum):
    """How far a batch has come."""

    READY = "no point was entered yet"
    INSIDE = "inside a point"
    BETWEEN = "between two points"
    DONE = "after the last point"
    DROPPED = "an exception cut it short"
    CLOSED = "zero_grad(), step() or the next batch ended it"


class Passes:
    """The points of one batch, taken in order."""

    def __init__(
        self,
        route: Route,
        parameters: Sequence[Tensor],  # that the base updates
        others: Sequence[Tensor],  # of the model, that another optimizer updates
        model: nn.Module | None,
        statistics: RunningStatistics,
        same_rng: bool,
    ) -> None:
        self.route = route
        self.stage = Stage.READY
        self.done = 0
        self.by_closure = False  # then every backward() runs inside its point
        self.points = [Point(self, i) for i in range(len(route.signs))]
        self.gradients = MeanGradient(parameters, others, route.shares)
        self._parameters = parameters
        self._statistics = statistics
        self._same_rng = same_rng
        self._ddp = unwrap_ddp(model)
        self._sharded = sharded_modules(model)  # found once: a large model takes long to go through
        self._weights = route.moving
        self._written: Sequence[tuple[int, int]] = ()  # the weights, at the point entered
        self._cleanup = ExitStack()

    def __iter__(self) -> Iterator[Point]:
        try:
            for point in self.points:
                yield point
                if self.done <= point.index:
                    raise RuntimeError("a point was passed over: wrap the passes in `with point:`")
        finally:
            if self.stage is Stage.INSIDE:  # interrupted on the threshold of a `with`
                self.drop()

    def enter(self, point: Point) -> None:
        if self.stage is Stage.INSIDE:
            raise RuntimeError("points cannot be nested: leave the `with point:` you are in first")
        if self.stage is Stage.CLOSED and point.index == self.done:
            raise RuntimeError("zero_grad(), or a new points(), has ended this batch: call it before or after them")
        if self.stage not in (Stage.READY, Stage.BETWEEN) or point.index != self.done:
            raise RuntimeError("this point is over: take points in order, each once, from a new points() or split()")
        if point.index and self.gradients.changed():
            raise RuntimeError(LATE)
        try:
            self.stage = Stage.INSIDE
            if point.index == 0:
                self._statistics.begin()
            if self._sharded:
                reshard(self._sharded)  # gathered weights left over from before would hide the change
                reduce_gradients(self._sharded)
            self.route.enter(point.index)
            self._written = self._weights.writes() if self._weights is not None else ()
            if self._same_rng:
                self._repeat_random_state(point.index)
            if self._ddp is None or self.route.reduce_every_pass:
                self.gradients.begin(point.index)
            else:
                self._begin_under_ddp(self._ddp, point)
        except BaseException:
            self.drop()
            raise

    def leave(self, point: Point, failed: bool) -> None:
        try:
            self._cleanup.close()
            if failed:
                return self.drop()
            self._warn_of_writes()
            if self._weights is not None:
                self._weights.restore()
            self.route.leave(point.index)
            if self._sharded:
                reshard(self._sharded)
            self.gradients.end(point.index, moved=point.sign != 0)
            self._statistics.after(point.index, len(self.points))
            last = point is self.points[-1]
            if last:
                self._check_arrival()
                self.route.release()
            self.done += 1
            self.stage = Stage.DONE if last else Stage.BETWEEN
        except BaseException:
            self.drop()
            raise

    def finish(self) -> None:
        """Take all points for taken, where another way than `with point:` leads through them."""
        self.done, self.stage = len(self.points), Stage.DONE
        self.gradients.arrivals = [True] * self.done

    def close(self) -> None:
        """End the batch. An iterator that is dropped later finds nothing left to do, and disturbs no other batch."""
        if self.stage is Stage.BETWEEN:
            self.route.release()
        self.stage = Stage.CLOSED

    def drop(self) -> None:
        """Weights as before the batch, its gradients dropped: it can be skipped."""
        if self._weights is not None:
            self._weights.restore()
        self.route.release()
        reshard(self._sharded)
        self._cleanup.close()
        self._statistics.undo()
        self.gradients.close()
        clear(self.gradients.all)
        self.stage = Stage.DROPPED

    def _begin_under_ddp(self, ddp: DistributedDataParallel, point: Point) -> None:
        """The last pass reduces the sum of all: one all-reduce a step."""
        last = point is self.points[-1]
        if not last:
            self._cleanup.enter_context(no_sync(ddp))
        self.gradients.begin(point.index, last, ddp.find_unused_parameters and not self.by_closure)

    def _check_arrival(self) -> None:
        """A last pass without a backward() after passes with one: it is still to come, and would come too late."""
        arrivals = self.gradients.arrivals
        if not self.by_closure and any(arrivals) and not arrivals[-1]:
            raise RuntimeError("no gradient came inside the last point: call backward() inside `with point:`")

    def _warn_of_writes(self) -> None:
        """Where a tensor got other memory, as an LSTM's do from flatten_parameters(), there is no telling."""
        if self._weights is None or not self._written:
            return
        for (place, version), (now, latest) in zip(self._written, self._weights.writes(), strict=False):
            if place == now and version != latest:
                warnings.warn(UNDONE, stacklevel=4)
                return

    def _repeat_random_state(self, index: int) -> None:
        if index == 0:
            self._random = random_state.snapshot({p.device for p in self._parameters})
        else:
            random_state.put_back(self._random)
