"""SWA and EMA: an average of the weights beside the training, by torch's own swa_utils."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, get_swa_multi_avg_fn

from ..core.parallel import bare, is_sharded
from .plain import Plain

Tensors = tuple[Tensor, ...] | list[Tensor]


@dataclass(frozen=True)
class Rule:
    """torch's own, which are functions that cannot be pickled: made where they are called."""

    kind: str
    decay: float

    def __call__(self, averaged: Tensors, current: Tensors, count: Tensor | int) -> None:
        rule = get_swa_multi_avg_fn() if self.kind == "swa" else get_ema_multi_avg_fn(self.decay)  # type: ignore[no-untyped-call]
        rule(averaged, current, count)


class Averaging(Plain):
    """Stochastic weight averaging (Izmailov et al., arXiv:1803.05407), or an exponential moving average.

    Trains as the base does; after every ``every``-th step from step ``start`` on, the weights enter the average, which
    is ``opt.averaged``, a ``torch.optim.swa_utils.AveragedModel``: evaluate that one, after
    ``ssgd.recompute_bn(opt.averaged.module, loader)`` where there is batch-norm. ``kind="swa"`` is the plain mean,
    ``"ema"`` decays with ``decay``. The average and its counters are in ``state_dict()`` under the key ``"averaging"``.
    """

    not_capturable = "the average is counted on the host"

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
        super().__init__(base, model=model, nonfinite=nonfinite)
        self.kind, self.decay, self.start, self.every = kind, decay, start, every
        self.steps = 0
        self._trained = bare(model)
        self.averaged = AveragedModel(self._trained, multi_avg_fn=Rule(kind, decay))

    def state_dict(self) -> dict[str, Any]:
        found = super().state_dict()
        found["averaging"] = {"steps": self.steps, "averaged": self.averaged.state_dict()}
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also takes a checkpoint without an average: the average then starts anew."""
        rest = {key: value for key, value in state_dict.items() if key != "averaging"}  # bases may look at every key
        super().load_state_dict(rest)
        if "averaging" in state_dict:
            self.steps = state_dict["averaging"]["steps"]
            self.averaged.load_state_dict(copy.deepcopy(state_dict["averaging"]["averaged"]))
        else:
            self.steps = 0
            self.averaged.n_averaged.zero_()  # the next weights are then all there is to average

    def _step_base(self) -> bool:
        stepped = super()._step_base()
        if stepped:
            self.steps += 1
            if self.steps > self.start and (self.steps - self.start - 1) % self.every == 0:
                self.averaged.update_parameters(self._trained)
        return stepped
