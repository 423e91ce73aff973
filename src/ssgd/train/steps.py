"""One step of any method: the passes over a batch, and the update."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ..core.wrapper import Wrapper
from ..methods.registry import Method
from .counters import BatchCounters
from .kinds import Autocast, Objective


class Step:
    """Forward and backward at every point of the method, then the base's update.

    ``sums`` gathers what the objective counts over all passes, on the device: nobody waits for a number. A model with
    ``carry()`` keeps a state between steps; every pass begins at that of the step before. ``clip`` bounds the norm of
    the mean gradient.
    """

    def __init__(
        self,
        method: Method,
        opt: Wrapper,
        model: nn.Module,
        objective: Objective,
        autocast: Autocast,
        sums: Tensor,
        clip: float | None = None,
    ) -> None:
        self.method = method
        self.opt = opt
        self.model = model
        self.objective = objective
        self.autocast = autocast
        self.sums = sums
        self.clip = clip
        self.counters = BatchCounters(model)
        self.carry: Any = getattr(getattr(model, "module", model), "carry", None)

    def __call__(self, *batch: Tensor) -> None:
        passes = 0
        with self.counters.held():
            for point, part in self.method.batches(self.opt, *batch):
                with point:
                    with self.autocast():
                        loss, counted = self.objective(self.model, *part)
                    loss.backward()  # type: ignore[no-untyped-call]
                self.sums += counted
                passes += 1
        self.counters.add({"once": 1, "first": 1, "none": 0}.get(getattr(self.opt, "bn_stats", "both"), passes))
        if self.carry is not None:
            self.carry()
        self._update()

    def _update(self) -> None:
        if self.clip is not None:
            clip_grad_norm_([p for group in self.opt.param_groups for p in group["params"]], self.clip, foreach=True)
        self.opt.step()
        self.opt.zero_grad()
