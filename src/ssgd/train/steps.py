"""One step of any method: the passes over a batch, and the update."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from ..core.wrapper import Wrapper
from ..methods.registry import Method
from .counters import BatchCounters

Objective = Callable[[Callable[[Tensor], Tensor], Tensor, Tensor], tuple[Tensor, Tensor]]


class Step:
    """Forward and backward at every point of the method, then the base's update.

    ``sums`` gathers loss, right answers and images over all passes, on the device: nobody waits for a number.
    """

    def __init__(
        self,
        method: Method,
        opt: Wrapper,
        model: nn.Module,
        objective: Objective,
        autocast: Callable[[], AbstractContextManager[None]],
        sums: Tensor,
    ) -> None:
        self.method = method
        self.opt = opt
        self.model = model
        self.objective = objective
        self.autocast = autocast
        self.sums = sums
        self.counters = BatchCounters(model)

    def __call__(self, x: Tensor, y: Tensor) -> None:
        passes = 0
        with self.counters.held():
            for point, (xb, yb) in self.method.batches(self.opt, x, y):
                with point:
                    with self.autocast():
                        loss, right = self.objective(self.model, xb, yb)
                    loss.backward()  # type: ignore[no-untyped-call]
                self.sums += counted(loss, right, yb)
                passes += 1
        self.counters.add({"once": 1, "first": 1, "none": 0}.get(getattr(self.opt, "bn_stats", "both"), passes))
        self.opt.step()
        self.opt.zero_grad()


@torch.no_grad()
def counted(loss: Tensor, right: Tensor, y: Tensor) -> Tensor:
    """What a pass adds to the sums."""
    return torch.stack([loss.detach() * len(y), right.to(loss), torch.full_like(loss, len(y))])
