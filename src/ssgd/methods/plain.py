"""The base alone, and with the batch in two halves: what every other method is measured against."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn
from torch.optim import Optimizer

from ..core.passes import Route
from ..core.point_optimizer import PointOptimizer, Rule


class CleanPoints(Rule):
    """One pass at w, or two with the halves of the batch."""

    def route(self, opt: PointOptimizer, halve: Callable[[], Sequence[float]] | None) -> Route:
        return Route([0]) if halve is None else Route([0, 0], halve())


class Plain(PointOptimizer):
    """The base optimizer, behind the interface of the methods.

    ``points()`` is one clean pass. ``split()`` takes the two halves of the batch one after the other without noise: the
    gradient of the whole batch but for batch-norm, whose statistics are then those of half a batch. That is the control
    for S-SGD's ``split``, which has the same halves.
    """

    def __init__(self, base: Optimizer, *, model: nn.Module | None = None, nonfinite: str = "step") -> None:
        super().__init__(base, CleanPoints(), model=model, nonfinite=nonfinite)
