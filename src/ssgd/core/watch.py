"""What is noticed of the model while it is at a point, and told where it would go wrong without a word."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch._C._autograd import _get_sequence_nr
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.optim.swa_utils import AveragedModel

from .gradients import apart, version_of
from .moving import MovingWeights
from .parallel import bare

if TYPE_CHECKING:
    from .passes import Point

NO_BACKWARD = (
    "a forward pass ran inside a point, and no gradient came before it was left: call backward() inside `with point:`. "
    "Afterwards the weights are w again, and autograd finds them 'modified by an inplace operation'"
)
EARLY = "the forward pass ran before its point was entered, at other weights: run it inside `with point:`"
MODE = "the model went from train() to eval(), or back, inside a point: evaluate at clean weights, after the last point"
AVERAGED = "AveragedModel.update_parameters() inside a point would average moved weights: call it after opt.step()"
STRANGERS = (
    "another optimizer updates parameters whose gradients came at several points and are their sum, not their mean: "
    "pass model=... to the optimizer that takes the points, which then averages the gradients of the whole model"
)
UNDONE = (
    "something wrote to the weights inside a point, such as a layer that sets them from its first batch, "
    "Embedding(max_norm=...) or load_state_dict(): it is undone when they return to w. Let it write outside the "
    "points, or leave these weights without noise by perturb="
)


class Watch:
    """Tells of a forward at other weights, a write that is undone, an evaluation, an average, and strange gradients."""

    def __init__(self, model: nn.Module | None, own: Sequence[Tensor]) -> None:
        self._strangers = _updated_elsewhere(own) if model is None and _stepped else []
        self._gradients: list[tuple[int, int]] = []  # theirs, when the point was entered
        self._strange_points = 0  # where some came
        self.modules = [] if model is None else [model, bare(model)]
        self.moving = MovingWeights([])
        self._written: Sequence[tuple[int, int]] = ()
        self._entered = self._left = _get_sequence_nr()  # where autograd was when the last point was entered, and left

    def begin(self, moving: MovingWeights) -> None:
        """A point is entered. While weights are away from w, train() and update_parameters() are ours."""
        self.moving, self._written = moving, moving.writes()
        self._entered = _get_sequence_nr()
        if self._strangers:
            self._gradients = _marks(self._strangers)
        if moving.kept:
            _open.add(self)
            AveragedModel.update_parameters = _average  # type: ignore[assignment, method-assign]
            for module in self.modules:
                module.__dict__.setdefault("train", _Train(module))

    def end(self, point: Point) -> bool:
        """The point is about to be left; return whether a forward pass ran that autograd took note of."""
        for (place, version), (now, latest) in zip(self._written, self.moving.writes(), strict=False):
            if place == now and version != latest:  # with other memory, as after flatten_parameters(), nobody can tell
                warnings.warn(UNDONE, stacklevel=4)
                break
        if point.sign and point.loss is not None and _was_made(point.loss, self._left, self._entered):
            warnings.warn(EARLY, stacklevel=4)
        if self._strangers:
            self._strange_points += self._gradients != _marks(self._strangers)
            if self._strange_points == 2:
                warnings.warn(STRANGERS, stacklevel=4)
                self._strangers = []
        self._left = _get_sequence_nr()
        return self._left > self._entered

    def close(self) -> None:
        """The point is left, by an exception too."""
        _open.discard(self)
        if not _open:
            AveragedModel.update_parameters = _update  # type: ignore[method-assign]
        for module in self.modules:
            if type(module.__dict__.get("train")) is _Train:
                del module.__dict__["train"]


_open: weakref.WeakSet[Watch] = weakref.WeakSet()  # of the points that somebody is inside
_update = AveragedModel.update_parameters


def _average(average: AveragedModel, model: nn.Module) -> None:
    away = [watch.moving for watch in _open if watch.moving.kept]
    moved = {id(p) for moving in away for bucket in moving.buckets for p in bucket.parameters}
    if any(id(p) in moved for p in model.parameters()):
        raise RuntimeError(AVERAGED)
    _update(average, model)


class _Train:
    """A module's own train(), which eval() calls too; inside a point a change of mode is told."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def __call__(self, mode: bool = True) -> nn.Module:
        if mode is not self.module.training and _open:  # a copy of the module keeps it
            warnings.warn(MODE, stacklevel=2 if mode else 3)
        return type(self.module).train(self.module, mode)


_stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # optimizers that take no points, and are in none that does


def _note_step(opt: Optimizer, *_: object) -> None:
    if not hasattr(opt, "points") and "_wrapped_by" not in opt.__dict__:
        _stepped.add(opt)


register_optimizer_step_post_hook(_note_step)


def _updated_elsewhere(own: Sequence[Tensor]) -> list[Tensor]:
    """What those optimizers update, beside ``own``: it may lie in the same model."""
    groups = [group for opt in _stepped if "_wrapped_by" not in opt.__dict__ for group in opt.param_groups]
    return apart([p for group in groups for p in group["params"]], own)


def _marks(parameters: Sequence[Tensor]) -> list[tuple[int, int]]:
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
