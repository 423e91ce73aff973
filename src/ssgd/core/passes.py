"""One batch's passes, in order: all that must happen around each backward()."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from . import random_state
from .batchnorm import RunningStatistics
from .gradients import MeanGradient, apart, version_of
from .moving import MovingWeights
from .parallel import no_sync, reduce_gradients, reshard, sharded_modules, unwrap_ddp
from .watch import EARLY, NO_BACKWARD, Watch

if TYPE_CHECKING:
    from .point_optimizer import PointOptimizer

LATE = (
    "a backward() ran after its point was left, or gradients were changed there: call backward() inside `with point:`"
)
NOTHING = "step() after points without a gradient: run loss.backward() inside `with point:`, outside of torch.no_grad()"
NESTED = "points cannot be nested: leave the `with` block you are in first"
NO_GRAD = "there are no gradients under torch.no_grad() or inference_mode(): take the points outside of it"
IN_ANOTHER = "another optimizer is inside a point and averages the same gradients: leave out model= of both optimizers"


class Route:
    """Where a batch's gradients are taken, and their shares in the mean. This one stays at w.

    ``NoiseRoute`` of noise_points.py goes to w + sign · n; other methods derive theirs.

    Args:
        signs: a label for each pass: 1 or −1 for a point beside w, 0 for w itself.
        shares: of each pass's gradient in the mean, alike by default.
        weights: what enter() moves. Passes itself takes it back to w.
    """

    reduce_every_pass = False  # under DDP: each pass's gradient is needed reduced, not only the sum

    def __init__(
        self, signs: Sequence[int], shares: Sequence[float] | None = None, weights: MovingWeights | None = None
    ) -> None:
        self.signs = signs
        self.moves = any(signs)  # some pass is taken elsewhere than at w
        self.shares = shares or [1 / len(signs)] * len(signs)
        self.weights = weights or MovingWeights([])

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
        if isinstance(error, RuntimeError):
            if "modified by an inplace operation" in str(error):
                raise RuntimeError(f"{error}. If {EARLY}") from error
            if "does not require grad" in str(error) and not torch.is_grad_enabled():
                raise RuntimeError(f"{error}. {NO_GRAD}") from error

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
    """The points of one batch of ``opt``, taken in order along the route."""

    def __init__(self, opt: PointOptimizer, route: Route) -> None:
        self.route = route
        self.stage = Stage.READY
        self.done = 0
        self.by_closure = False  # then every backward() runs inside its point
        self.points = [Point(self, i) for i in range(len(route.signs))]
        self._own = opt.all_parameters
        others = (
            [] if opt.model is None else apart(opt.model.parameters(), self._own)
        )  # of another optimizer, averaged too
        self.gradients = MeanGradient(self._own, others, route.shares)
        self._statistics = RunningStatistics(opt.model, opt.bn_stats if route.moves else "both")
        self._watch = Watch(opt.model, self._own)
        self._ddp = unwrap_ddp(opt.model)
        self._sharded = sharded_modules(opt.model)  # found once: a large model takes long to go through
        self._same_rng = opt.rng == "same" and len(route.signs) > 1
        self._random: random_state.Snapshot = {}  # before the first pass
        self._witness: tuple[Tensor, int] | None = (
            None  # a weight and its version after the last point: a newer one means a step
        )
        self._cleanup = ExitStack()

    def __iter__(self) -> Iterator[Point]:
        try:
            for point in self.points:
                yield point
                if self.stage is Stage.DROPPED:
                    raise RuntimeError("an exception cut the batch short: catch it outside of the loop over the points")
                if self.done <= point.index:
                    raise RuntimeError("a point was passed over: wrap the passes in `with point:`")
        finally:
            if self.stage is Stage.INSIDE:  # interrupted on the threshold of a `with`
                self.drop()

    # --- there and back ---------------------------------------------------------------------------------------------

    def enter(self, point: Point) -> None:
        index, last = point.index, point is self.points[-1]
        if self.stage is Stage.INSIDE:
            raise RuntimeError(NESTED)
        if self.stage is Stage.CLOSED and index == self.done:
            raise RuntimeError("zero_grad(), or a new points(), has ended this batch: call it before or after them")
        if self.stage not in (Stage.READY, Stage.BETWEEN) or index != self.done:
            raise RuntimeError("this point is over: take points in order, each once, from a new points() or split()")
        if index and self.gradients.changed():
            raise RuntimeError(LATE)
        for other in list(_inside) if not index else ():
            if other.stage is Stage.INSIDE and not {*self.gradients.all}.isdisjoint(other.gradients.all):
                raise RuntimeError(IN_ANOTHER)
        try:
            self.stage = Stage.INSIDE
            self._cleanup.callback(_inside.discard, self)
            self._cleanup.callback(self._watch.close)
            _inside.add(self)
            if index == 0:
                self._statistics.begin()
            if self._sharded:
                reshard(self._sharded)  # gathered weights left over from before would hide the change
                reduce_gradients(self._sharded)
            self.route.enter(index)
            if self._same_rng and index:
                random_state.put_back(self._random)
            elif self._same_rng:
                self._random = random_state.snapshot({p.device for p in self._own})
            self._watch.begin(self.route.weights)
            if self._ddp is None or (self.route.reduce_every_pass and not last):
                self.gradients.begin(index)
            else:  # the last pass reduces the sum of all: one all-reduce a step
                if not last:
                    self._cleanup.enter_context(no_sync(self._ddp))
                self.gradients.begin(index, last, self._ddp.find_unused_parameters and not self.by_closure)
        except BaseException:
            self.drop()
            raise

    def leave(self, point: Point, failed: bool) -> None:
        try:
            ran = not failed and self._watch.end(point)
            self._cleanup.close()
            if failed:
                return self.drop()
            self.route.weights.restore()
            self.route.leave(point.index)
            if self._sharded:
                reshard(self._sharded)
            came = self.gradients.end(point.index, moved=point.sign != 0)
            self._statistics.after(point.index, len(self.points))
            self.done, self.stage = point.index + 1, Stage.BETWEEN
            if self.done == len(self.points):
                if any(self.gradients.arrivals) and not came and not self.by_closure:
                    raise RuntimeError("no gradient came inside the last point: call backward() inside `with point:`")
                self.finish()
            if ran and not came and self.route.moves:
                warnings.warn(NO_BACKWARD, stacklevel=3)
        except BaseException:
            self.drop()
            raise

    def finish(self, came: bool = True) -> None:
        """All points are taken. Where another way led through them, ``came`` says whether gradients did."""
        self.done, self.stage = len(self.points), Stage.DONE
        self.gradients.arrivals = self.gradients.arrivals or [came]
        self._witness = next(((p, version_of(p)) for p in self._own if p.grad is not None), None)
        self.route.release()

    def drop(self) -> None:
        """Weights as before the batch, and no gradient left, of the step's earlier batches neither: skip the step."""
        self.route.weights.restore()
        self.route.release()
        reshard(self._sharded)
        self._cleanup.close()
        self._statistics.undo()
        self.gradients.drop()
        self.stage = Stage.DROPPED

    def close(self) -> None:
        """End the batch. An iterator that is dropped later finds nothing left to do, and disturbs no other batch."""
        if self.stage is Stage.BETWEEN:
            self.route.release()
        self.stage = Stage.CLOSED

    # --- what may follow --------------------------------------------------------------------------------------------

    def check_complete(self) -> None:
        """Raise where step() would not take the mean over all points."""
        if self.stage is Stage.BETWEEN:
            raise RuntimeError(
                f"step() after {self.done} of {len(self.points)} points: run all that points() or split() gives "
                "before step(), or call zero_grad() to drop the batch"
            )
        if self.stage is Stage.DROPPED:
            raise RuntimeError("an exception cut the batch short and its gradients were dropped: skip this step()")
        if self.route.moves and self.gradients.came_late:
            raise RuntimeError(LATE)
        if self.route.moves and not any(self.gradients.arrivals) and not self.gradients.there:
            warnings.warn(NOTHING, stacklevel=3)

    def check_followed(self) -> bool:
        """Raise where the next batch of the step cannot begin; return whether the step itself is over.

        It is over after an exception, where no gradient is left, as after model.zero_grad(), and where the base stepped
        without us.
        """
        if self.stage is Stage.INSIDE:
            raise RuntimeError(NESTED)
        if self.stage is Stage.BETWEEN:
            raise RuntimeError(
                f"the last batch was left after {self.done} of {len(self.points)} points: call zero_grad() to drop it"
            )
        if self.stage is Stage.DONE and self.route.moves and self.gradients.came_late:
            raise RuntimeError(LATE)
        stepped = self._witness is not None and version_of(self._witness[0]) != self._witness[1]
        return self.stage is Stage.DROPPED or not self.gradients.there or stepped


_inside: weakref.WeakSet[Passes] = weakref.WeakSet()  # those that are inside a point, of whatever optimizer
