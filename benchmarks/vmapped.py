"""S-SGD's two passes as one vmapped pass over stacked weights, to be measured against two streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad_and_value, vmap

from ssgd.core.halves import halves
from ssgd.lab.train.steps import PairStep


class VmappedStep(PairStep):
    """A Step whose passes are one: every weight has a leading dimension of two."""

    def __init__(self, *arguments: Any, compiled: bool = False) -> None:
        super().__init__(*arguments)
        self.trained = [name for name, p in self.model.named_parameters() if p.requires_grad]
        self.vmapped = torch.compile(self._vmapped, dynamic=False) if compiled else self._vmapped

    def __call__(self, *batch: Tensor) -> None:
        parts: Sequence[tuple[Any, float]] = halves(batch) if self.method.halves else [(batch, 0.5)] * 2
        plus, minus = (self._leaves(moved) for moved in self.opt.both_points())
        with torch.no_grad():
            weights = {name: torch.stack([plus[name].detach(), minus[name].detach()]) for name in plus}
            statistics = {name: torch.stack([t, t]) for name, t in self.statistics.items()}
            xs, ys = (torch.stack([parts[i][0][k] for i in (0, 1)]) for k in (0, 1))
        with self.counters.held():
            grads, sums = self.vmapped(weights, statistics, xs, ys)
        with torch.no_grad():
            pairs = [[grads[name][i] for name in self.trained] for i in (0, 1)]
            self._leave_gradients(pairs, [share for _, share in parts])
            for i in (0, 1):
                torch._foreach_copy_(list(self.moved[i].values()), [t[i] for t in statistics.values()])
                self.sums += sums[i]
            self._apply_statistics()
        self.counters.add(2)
        self._update()

    def _vmapped(self, weights: Any, statistics: Any, xs: Tensor, ys: Tensor) -> Any:
        def loss(weights: Any, statistics: Any, x: Tensor, y: Tensor) -> Any:
            with self.autocast():
                return self.objective(
                    lambda inputs: functional_call(self.model, {**weights, **statistics}, inputs), x, y
                )

        gradients, (_, counted) = vmap(grad_and_value(loss, has_aux=True), randomness="different")(
            weights, statistics, xs, ys
        )
        return gradients, counted
