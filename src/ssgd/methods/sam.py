"""SAM and ASAM: the gradient at the top of the steepest slope nearby."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..core.checks import check_chosen, check_level
from ..core.moving import Chosen, MovingWeights, as_real, drop_stale_copies
from ..core.parallel import check_sharded, local, unwrap_ddp
from ..core.passes import Route
from ..core.point_optimizer import PointOptimizer, Rule
from ..core.selection import trainable
from ..core.weights import Level


class SAM(PointOptimizer):
    """Sharpness-aware minimization (Foret et al., arXiv:2010.01412).

    g = ∇L(w + e) with e = ρ ∇L(w) / ‖∇L(w)‖ over all trainable weights; ``adaptive`` (ASAM, Kwon et al.,
    arXiv:2102.11600): e = ρ w² ∇L(w) / ‖|w| ∇L(w)‖. Two passes, the second of which depends on the first. ρ is the
    group key ``rho``; at 0 it is the base optimizer.

    ``points()`` takes any GradScaler: e does not depend on the scale. Under DDP both passes are
    reduced, so that every rank climbs the same slope (``reduce_slope=False``: each rank its own, as in m-SAM, with one
    all-reduce). An accumulated step climbs for each of its batches. There is no split(): the slope needs the batch.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: Level = 0.05,
        *,
        adaptive: bool = False,
        model: nn.Module | None = None,
        perturb: Iterable[Tensor] | None = None,
        bn_stats: str = "both",
        rng: str = "independent",
        reduce_slope: bool = True,
        nonfinite: str = "step",
    ) -> None:
        rule = SteepestPoint(rho, adaptive, perturb, reduce_slope)
        super().__init__(base, rule, model=model, bn_stats=bn_stats, rng=rng, nonfinite=nonfinite)
        self.adaptive = adaptive

    def __repr__(self) -> str:
        return f"SAM(adaptive={self.adaptive}, bn_stats={self.bn_stats!r}, rng={self.rng!r}) around {self.base!r}"


class SteepestPoint(Rule):
    """w, then w + e; the same batch at both."""

    level_is = "rho is the length of the climb"
    no_split = "SAM has no split(): the slope needs the whole batch; use points()"

    def __init__(self, rho: Level, adaptive: bool, perturb: Iterable[Tensor] | None, reduce_slope: bool) -> None:
        check_level(rho, self.level_is)
        self.keys = {"rho": rho}
        self.adaptive, self.reduce_slope = adaptive, reduce_slope
        self.perturb = None if perturb is None else list(perturb)

    def check(self, opt: PointOptimizer) -> None:
        check_sharded(opt.model, opt.all_parameters)
        check_chosen(self.perturb, opt.all_parameters)

    def is_off(self, opt: PointOptimizer) -> bool:
        return not any(isinstance(level, Tensor) or level > 0 for level in opt._levels())

    def selected(self, opt: PointOptimizer) -> list[Tensor]:
        return trainable(opt.all_parameters if self.perturb is None else self.perturb)

    def route(self, opt: PointOptimizer, halve: Callable[[], Sequence[float]] | None) -> Route:
        if self.is_off(opt) or not self.selected(opt):
            return Route([0])
        group_of = {id(p): i for i, group in enumerate(opt.param_groups) for p in group["params"]}
        weights = MovingWeights([Chosen(p, group_of[id(p)], 0) for p in self.selected(opt)])
        reduce = self.reduce_slope and unwrap_ddp(opt.model) is not None
        return Climb(weights, opt._levels(), self.adaptive, reduce)


class Climb(Route):
    """w, then w + e, where e comes from the gradient at w."""

    def __init__(self, weights: MovingWeights, levels: list[Level], adaptive: bool, reduce_every_pass: bool) -> None:
        super().__init__([0, 1], [0.0, 1.0], weights)
        self.levels, self.adaptive = levels, adaptive
        self.reduce_every_pass = reduce_every_pass
        self._slopes: list[list[Tensor]] = []

    @torch.no_grad()
    def enter(self, index: int) -> None:
        if index == 1:
            self._climb()

    @torch.no_grad()
    def leave(self, index: int) -> None:
        if index == 0:
            self._slopes = [[self._slope(p) for p in bucket.parameters] for bucket in self.weights.buckets]

    def release(self) -> None:
        self._slopes = []

    def _climb(self) -> None:
        slopes, self._slopes = self._slopes, []
        norm = self._norm(slopes)
        lost = ~norm.isfinite()  # an overflow, for a GradScaler to find: stay at w, or batch-norm would keep the NaN
        norm.masked_fill_(lost, 1)
        self.weights.keep()
        for bucket, slope in zip(self.weights.buckets, slopes, strict=True):
            if self.adaptive:
                slope = list(torch._foreach_mul(slope, torch._foreach_abs(bucket.tensors)))
            here, lost = (t.to(bucket.tensors[0].device) for t in (norm, lost))
            for s in slope:
                s.masked_fill_(lost, 0)
            scales = {group: self.levels[group] / (here + 1e-12) for group in set(bucket.groups)}
            torch._foreach_addcmul_(bucket.tensors, slope, [scales[group] for group in bucket.groups])
        drop_stale_copies()

    def _slope(self, p: Tensor) -> Tensor:
        """∇L(w), times |w| in ASAM; its norm is what e is scaled by."""
        weight = as_real(local(p))
        if p.grad is None:
            return torch.zeros_like(weight)
        gradient = as_real(local(p.grad))
        return gradient * weight.abs() if self.adaptive else gradient

    def _norm(self, slopes: list[list[Tensor]]) -> Tensor:
        """The norm of the whole gradient, over all buckets and shards."""
        squares: list[Tensor] = []
        for bucket, slope in zip(self.weights.buckets, slopes, strict=True):
            norms = torch._foreach_norm(slope, 2, dtype=bucket.wide)
            square = torch.stack(list(norms)).square_().sum()
            squares.append(square if bucket.sharding is None else bucket.sharding.sum(square))
        return torch.stack([s.to(squares[0].device) for s in squares]).sum().sqrt_()
