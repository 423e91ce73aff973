"""SWA and EMA: an average of the weights beside the training, by torch's own swa_utils."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

from ..core.parallel import bare, is_sharded
from ..core.point_optimizer import PointOptimizer
from .plain import CleanPoints

Tensors = tuple[Tensor, ...] | list[Tensor]


@dataclass(frozen=True)
class AverageStep:
    """torch's own, which are functions that cannot be pickled: made where they are called."""

    kind: str
    decay: float

    def __call__(self, averaged: Tensors, current: Tensors, count: Tensor | int) -> None:
        rule = get_swa_multi_avg_fn() if self.kind == "swa" else get_ema_multi_avg_fn(self.decay)  # type: ignore[no-untyped-call]
        rule(averaged, current, count)


class Averaging(PointOptimizer):
    """Stochastic weight averaging (Izmailov et al., arXiv:1803.05407), or an exponential moving average.

    Trains as the base does; after every ``every``-th step from step ``start`` on, the weights enter the average, which
    is ``opt.averaged``, a ``torch.optim.swa_utils.AveragedModel``: evaluate that one, after
    ``ssgd.recompute_bn(opt.averaged.module, loader)`` where there is batch-norm. ``kind="swa"`` is the plain mean,
    ``"ema"`` decays with ``decay``. The average and its counters are in ``state_dict()`` under the key ``"averaging"``.
    """

    def __init__(
        self,
        base: Optimizer,
        *,
        model: nn.Module,
        kind: str = "swa",
        decay: float = 0.999,
        start: int = 0,
        every: int = 1,
        nonfinite: str = "step",
    ) -> None:
        if kind not in ("swa", "ema"):
            raise ValueError(f"kind must be 'swa' or 'ema', not {kind!r}")
        if not 0 <= decay < 1 or start < 0 or every < 1:
            raise ValueError(
                f"decay must be in [0, 1), start at least 0 and every at least 1, not {decay}, {start}, {every}"
            )
        if any(map(is_sharded, model.parameters())):
            raise ValueError("averages of sharded models are not served: torch's AveragedModel cannot copy them")
        super().__init__(base, CleanPointsWithAverage(start, every), model=model, nonfinite=nonfinite)
        self.steps = 0
        self.trained = bare(model)
        self.averaged = AveragedModel(self.trained, multi_avg_fn=AverageStep(kind, decay))


class CleanPointsWithAverage(CleanPoints):
    """One pass at w; after the step the weights enter the average."""

    saved_as = "averaging"
    not_capturable = "the average is counted on the host"

    def __init__(self, start: int, every: int) -> None:
        self.start, self.every = start, every

    def after_step(self, opt: PointOptimizer, found_inf: Tensor | None) -> None:
        assert isinstance(opt, Averaging)
        opt.steps += 1
        if opt.steps > self.start and (opt.steps - self.start - 1) % self.every == 0:
            opt.averaged.update_parameters(opt.trained)

    def state(self, opt: PointOptimizer) -> dict[str, Any]:
        assert isinstance(opt, Averaging)
        return {"steps": opt.steps, "averaged": opt.averaged.state_dict()}

    def load(self, opt: PointOptimizer, state: Mapping[str, Any] | None) -> None:
        """From a checkpoint without an average, it starts again."""
        assert isinstance(opt, Averaging)
        opt.steps = state["steps"] if state else 0
        if state:
            opt.averaged.load_state_dict(copy.deepcopy(state["averaged"]))
        else:
            opt.averaged.n_averaged.zero_()  # the next weights are then all there is to average
