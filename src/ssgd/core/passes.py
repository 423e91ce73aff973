"""One batch's passes, in order: all that must happen around each backward()."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from enum import Enum
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch._C._autograd import _get_sequence_nr

from . import random_state
from .batchnorm import RunningStatistics
from .gradients import MeanGradient, clear, version_of
from .moving import MovingWeights
from .parallel import no_sync, reduce_gradients, reshard, sharded_modules, unwrap_ddp

if TYPE_CHECKING:
    from torch.nn.parallel import DistributedDataParallel

LATE = (
    "a backward() ran after its point was left, or gradients were changed there: call backward() inside `with point:`"
)
NOTHING = "step() after points without a gradient: run loss.backward() inside `with point:`, outside of torch.no_grad()"
EARLY = "the forward pass ran before its point was entered, at other weights: run it inside `with point:`"
NO_GRAD = "there are no gradients under torch.no_grad() or inference_mode(): take the points outside of it"
IN_ANOTHER = "another optimizer is inside a point and averages the same gradients: leave out model= of both optimizers"
MODE = "the model went from train() to eval(), or back, inside a point: evaluate at clean weights, after the last point"
STRANGERS = (
    "another optimizer updates parameters whose gradients came at several points and are their sum, not their mean: "
    "pass model=... to the optimizer that takes the points, which then averages the gradients of the whole model"
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


_inside: dict[int, weakref.ref[Passes]] = {}  # the batches that are inside a point, of whatever optimizer


def _gradients_of(parameters: Sequence[Tensor]) -> list[tuple[int, int]]:
    """The place and the version of each gradient, which show whether a backward() has added to it."""
    return [(0, 0) if p.grad is None else (id(p.grad), version_of(p.grad)) for p in parameters]


def _was_made(loss: object, since: int, until: int) -> bool:
    """Whether autograd met the loss, or one of the operations right before it, between these two places."""
    node: Any = getattr(loss, "grad_fn", None)
    for _ in range(4):
        if node is None or since <= node._sequence_nr() < until:
            return node is not None
        node = next((before for before, _ in node.next_functions if before is not None), None)
    return False


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
        strangers: Sequence[Tensor] = (),  # that another optimizer updates, in a model that is not known
    ) -> None:
        self.route = route
        self.stage = Stage.READY
        self.done = 0
        self.by_closure = False  # then every backward() runs inside its point
        self.points = [Point(self, i) for i in range(len(route.signs))]
        self.gradients = MeanGradient(parameters, others, route.shares)
        self._parameters = parameters
        self._model = model
        self._watched: tuple[Tensor, int] | None = None  # a trained weight and its version after the last point
        self._left = _get_sequence_nr()  # where autograd had come when the last point was left
        self._statistics = statistics
        self._same_rng = same_rng
        self._strangers = strangers
        self._strange_passes = 0  # in how many points a gradient of theirs came
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
        if not point.index:
            self._check_alone()
        try:
            self.stage = Stage.INSIDE
            _inside[id(self)] = weakref.ref(self)
            if point.index == 0:
                self._statistics.begin()
            if self._sharded:
                reshard(self._sharded)  # gathered weights left over from before would hide the change
                reduce_gradients(self._sharded)
            self.route.enter(point.index)
            self._written = self._weights.writes() if self._weights is not None else ()
            self._trains = self._model is not None and self._model.training
            self._entered = _get_sequence_nr()
            if self._strangers:
                self._strange = _gradients_of(self._strangers)
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
            _inside.pop(id(self), None)
            if failed:
                return self.drop()
            self._warn_of_writes()
            if self._model is not None and self._model.training != self._trains:
                warnings.warn(MODE, stacklevel=3)
            if point.sign and point.loss is not None and _was_made(point.loss, self._left, self._entered):
                warnings.warn(EARLY, stacklevel=3)
            if self._weights is not None:
                self._weights.restore()
            self.route.leave(point.index)
            if self._sharded:
                reshard(self._sharded)
            self.gradients.end(point.index, moved=point.sign != 0)
            self._statistics.after(point.index, len(self.points))
            self._left = _get_sequence_nr()
            last = point is self.points[-1]
            if self._strangers:
                self._strange_passes += self._strange != _gradients_of(self._strangers)
            if last:
                self._check_arrival()
                if self._strange_passes > 1:
                    warnings.warn(STRANGERS, stacklevel=3)
                self._watched = next(((p, version_of(p)) for p in self._parameters if p.grad is not None), None)
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

    def stepped(self) -> bool:
        """Whether the weights were written to since the last point, as ``base.step()`` does."""
        return self._watched is not None and version_of(self._watched[0]) != self._watched[1]

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

    def _check_alone(self) -> None:
        others = [other for ref in list(_inside.values()) if (other := ref()) and other.stage is Stage.INSIDE]
        own = set(map(id, self.gradients.all)) if others else set()
        if any(id(p) in own for other in others for p in other.gradients.all):
            raise RuntimeError(IN_ANOTHER)

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
