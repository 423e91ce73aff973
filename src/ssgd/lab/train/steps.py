"""One step of any method: the passes over a batch, and the update."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import clip_grad_norm_

from ...core.batchnorm import RunningStatistics
from ...core.gradients import present
from ...core.point_optimizer import PointOptimizer
from ...methods.registry import Method
from ...optimizer import SSGD
from .kinds import Autocast, Objective


class Step:
    """Forward and backward at every point of the method, then the base's update.

    ``sums`` gathers what the objective counts over all passes, on the device: nobody waits for a number. A model with
    ``carry()`` keeps a state between steps; every pass begins at that of the step before. ``clip`` bounds the norm of
    the mean gradient.

    With ``devices`` the batch is divided as if so many shared it: each part has its own batch-norm statistics and its
    own noise, gradients are averaged, and the running statistics are the first part's, as under DDP with a rank each.

    ``eager`` is the objective before it was compiled, which a dry run of one_pass() cannot look into.
    """

    def __init__(
        self,
        method: Method,
        opt: PointOptimizer,
        model: nn.Module,
        objective: Objective,
        autocast: Autocast,
        sums: Tensor,
        clip: float | None = None,
        devices: int = 1,
        eager: Objective | None = None,
    ) -> None:
        self.method = method
        self.opt = opt
        self.model = model
        self.objective = objective
        self.autocast = autocast
        self.sums = sums
        self.clip = clip
        self.devices = devices
        self.to_dry_run = eager if method.one_pass is not None else None
        self.of_first = RunningStatistics(model if devices > 1 else None, "none")
        self.counters = BatchCounters(model)
        self.carry: Any = getattr(getattr(model, "module", model), "carry", None)

    def __call__(self, *batch: Tensor) -> None:
        first, *others = self._parts(batch)
        if self.to_dry_run is not None:
            self._dry_run(self.to_dry_run, first)
        with self.counters.held():
            passes = self._passes(first)
            self.of_first.begin()
            for part in others:
                self._passes(part)
            self.of_first.undo()
        if others:
            torch._foreach_mul_(present(self._parameters()), 1 / self.devices)
        self.counters.add({"once": 1, "first": 1, "none": 0}.get(getattr(self.opt, "bn_stats", "both"), passes))
        if self.carry is not None:
            self.carry()
        self._update()

    def _dry_run(self, eager: Objective, batch: tuple[Tensor, ...]) -> None:
        """Lets one_pass() see the objective once, as it is called later."""
        assert isinstance(self.opt, SSGD)
        with self.autocast():
            self.opt.dry_run(lambda *part: eager(self.model, *part), *batch)
        self.to_dry_run = None

    def _parts(self, batch: tuple[Tensor, ...]) -> Iterable[tuple[Tensor, ...]]:
        return [batch] if self.devices == 1 else zip(*(tensor.chunk(self.devices) for tensor in batch), strict=True)

    def _passes(self, batch: tuple[Tensor, ...]) -> int:
        """Forward and backward at every point, and how many they were."""
        passes = 0
        for point, part in self.method.batches(self.opt, *batch):
            with point:
                with self.autocast():
                    loss, counted = self.objective(self.model, *part)
                loss.backward()  # type: ignore[no-untyped-call]
            self.sums += counted
            passes += 1
        return passes

    def _update(self) -> None:
        if self.clip is not None:
            clip_grad_norm_(self._parameters(), self.clip, foreach=True)
        self.opt.step()
        self.opt.zero_grad()

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.opt.param_groups for p in group["params"]]


class BatchCounters:
    """Batch-norm counts its batches in a tensor a layer, a kernel each; this advances all of them in one kernel.

    It holds the ``num_batches_tracked`` of all layers that average with a fixed momentum, and so never read it.
    SyncBatchNorm insists on having its own.
    """

    def __init__(self, net: nn.Module) -> None:
        norms = [m for m in net.modules() if isinstance(m, _NormBase) and not isinstance(m, nn.SyncBatchNorm)]
        self._counters: list[tuple[_NormBase, Tensor]] = []
        for norm in norms:
            if norm.momentum is not None and norm.num_batches_tracked is not None:
                self._counters.append((norm, norm.num_batches_tracked))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Passes inside count nothing."""
        for norm, _ in self._counters:
            norm.num_batches_tracked = None
        try:
            yield
        finally:
            for norm, counter in self._counters:
                norm.num_batches_tracked = counter

    def add(self, passes: int) -> None:
        if self._counters:
            torch._foreach_add_([counter for _, counter in self._counters], passes)
