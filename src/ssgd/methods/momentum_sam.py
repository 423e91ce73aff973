"""Momentum-SAM: the gradient up the slope that past steps came down, in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..core.moving import Chosen, MovingWeights, as_real
from ..core.parallel import local
from ..core.passes import Route
from ..core.point_optimizer import PointOptimizer
from ..core.weights import Level
from .sam import Climb, SteepestPoint

MOMENTUM = ("momentum_buffer", "exp_avg")  # what torch's optimizers call theirs


class MomentumSAM(PointOptimizer):
    """Momentum-SAM (Becker et al., arXiv:2401.12033).

    g = ∇L(w − ρ v / ‖v‖), where v is the base's momentum, SGD's or Adam's, over all trainable weights: it points down
    where past gradients were, so −v points up. One pass. ρ is the group key ``rho``; at 0 it is the base optimizer, and
    so is the first step, before which there is no momentum.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: Level = 0.3,
        *,
        model: nn.Module | None = None,
        perturb: Iterable[Tensor] | None = None,
        bn_stats: str = "both",
        nonfinite: str = "step",
    ) -> None:
        rule = PointUpThePast(rho, False, perturb, False)
        super().__init__(base, rule, model=model, bn_stats=bn_stats, nonfinite=nonfinite)


class PointUpThePast(SteepestPoint):
    """w − ρ v / ‖v‖."""

    no_split = "MomentumSAM has no split(): one pass takes the whole batch; use points()"

    def check(self, opt: PointOptimizer) -> None:
        super().check(opt)
        if not any(group.get("momentum") or "betas" in group for group in opt.param_groups):
            raise ValueError(f"momentum-SAM climbs by the base's momentum, and this {type(opt.base).__name__} has none")

    def route(self, opt: PointOptimizer, halve: Callable[[], Sequence[float]] | None) -> Route:
        states = [(p, opt.state.get(p, {})) for p in self.selected(opt)]
        past = {p: state[key] for p, state in states for key in MOMENTUM if state.get(key) is not None}
        if self.is_off(opt) or not past:
            return Route([0])
        group_of = {id(p): i for i, group in enumerate(opt.param_groups) for p in group["params"]}
        weights = MovingWeights([Chosen(p, group_of[id(p)], 0) for p in past])
        return ClimbByMomentum(weights, opt._levels(), past)


class ClimbByMomentum(Climb):
    """One pass, at w − ρ v / ‖v‖."""

    def __init__(self, weights: MovingWeights, levels: list[Level], past: dict[Tensor, Tensor]) -> None:
        super().__init__(weights, levels, adaptive=False, reduce_every_pass=False)
        self.signs, self.shares = [1], [1.0]
        self._past = past

    @torch.no_grad()
    def enter(self, index: int) -> None:
        self._slopes = [[-as_real(local(self._past[p])) for p in bucket.parameters] for bucket in self.weights.buckets]
        self._climb()

    def leave(self, index: int) -> None:
        """There is nothing to learn from the gradient."""
