"""The base alone, and with the batch in two halves: what every other method is measured against."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..core.batchnorm import RunningStatistics
from ..core.halves import halves
from ..core.walk import Point, Walk
from ..core.wrapper import Wrapper


class Plain(Wrapper):
    """The base optimizer, behind the interface of the methods.

    ``points()`` is one clean pass. ``split()`` takes the two halves of the batch one after the other without noise: the
    gradient of the whole batch but for batch-norm, whose statistics are then those of half a batch. That is the control
    for S-SGD's ``split``, which has the same halves.
    """

    def __init__(self, base: Optimizer, *, model: nn.Module | None = None, nonfinite: str = "step") -> None:
        super().__init__(base, {}, model, nonfinite)

    def points(self) -> Iterator[Point]:
        """One clean point."""
        yield from self._stay([1.0])

    def split(self, *batch: Any) -> Iterator[tuple[Point, Any]]:
        """One half of the batch, then the other, both at w."""
        (first, first_share), (second, second_share) = halves(batch[0] if len(batch) == 1 else batch)
        yield from zip(self._stay([first_share, second_share]), (first, second), strict=True)

    def _clean(self) -> bool:
        return True

    def _stay(self, shares: Sequence[float]) -> Walk:
        return self._begin(
            lambda: Walk(
                moves=Stay(len(shares)),
                shares=shares,
                parameters=self._parameters(),
                model=self.model,
                statistics=RunningStatistics(None, "both"),
            )
        )


class Stay:
    """Moves that go nowhere."""

    def __init__(self, passes: int) -> None:
        self.signs = [0] * passes

    def go(self, index: int) -> None:
        pass

    def come_back(self, index: int) -> None:
        pass

    def restore(self) -> None:
        pass

    def writes(self) -> list[tuple[int, int]]:
        return []
