"""SAM and ASAM: the gradient at the top of the steepest slope nearby."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..core import stale
from ..core.batchnorm import RunningStatistics, check_policy
from ..core.buckets import as_real, make_buckets
from ..core.checks import check_choice, check_chosen, check_level
from ..core.parallel import check_model_known, local, unwrap_ddp
from ..core.points import KeptWeights, Level
from ..core.selection import trainable
from ..core.walk import Point, Walk
from ..core.wrapper import Wrapper


class SAM(Wrapper):
    """Sharpness-aware minimization (Foret et al., arXiv:2010.01412).

    g = ∇L(w + e) with e = ρ ∇L(w) / ‖∇L(w)‖ over all trainable weights; ``adaptive`` (ASAM, Kwon et al.,
    arXiv:2102.11600): e = ρ w² ∇L(w) / ‖|w| ∇L(w)‖. Two passes, the second of which depends on the first. ρ is the
    group key ``rho``; at 0 it is the base optimizer.

    ``points()`` takes any GradScaler: e does not depend on the scale. Under DDP both passes are
    reduced, so that every rank climbs the same slope (``reduce_slope=False``: each rank its own, as in m-SAM, with one
    all-reduce). An accumulated step climbs for each of its batches. There is no split(): the slope needs the batch.
    """

    own_keys = ("rho",)
    level_is = "rho is the length of the climb"

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
        foreach: bool | None = None,
    ) -> None:
        check_level(rho, self.level_is)
        check_policy(bn_stats, model)
        check_choice("rng", rng, ("independent", "same"))
        self.adaptive = adaptive
        self.bn_stats = bn_stats
        self.rng = rng
        self.reduce_slope = reduce_slope
        self.foreach = foreach is not False
        self._perturb = None if perturb is None else list(perturb)
        super().__init__(base, {"rho": rho}, model, nonfinite)

    def _settle(self) -> None:
        check_chosen(self._perturb, self._parameters())
        check_model_known(self.model, self._parameters())

    def points(self) -> Iterator[Point]:
        """w, then w + e; run the same batch at both."""
        climbs = bool(self.selected) and not self._clean()
        yield from self._begin(lambda: self._make_walk(climbs))

    @property
    def selected(self) -> list[Tensor]:
        """The tensors that climb."""
        return trainable(self._parameters() if self._perturb is None else self._perturb)

    def _clean(self) -> bool:
        return not any(isinstance(level, Tensor) or level > 0 for level in self._levels())

    def _make_walk(self, climbs: bool) -> Walk:
        index = {id(p): i for i, group in enumerate(self.param_groups) for p in group["params"]}
        chosen = [(p, index[id(p)]) for p in self.selected]
        weights = KeptWeights(make_buckets(chosen, flat=False), self.foreach)
        return Walk(
            moves=Climb(weights, self._levels(), self.adaptive, alone=not climbs),
            shares=[0.0, 1.0] if climbs else [1.0],
            parameters=self._parameters(),
            model=self.model,
            statistics=RunningStatistics(self.model, self.bn_stats if climbs else "both"),
            same_rng=self.rng == "same",
            reduce_every_pass=self.reduce_slope and unwrap_ddp(self.model) is not None,
        )

    def __repr__(self) -> str:
        return f"SAM(adaptive={self.adaptive}, bn_stats={self.bn_stats!r}, rng={self.rng!r}) around {self.base!r}"


class Climb:
    """w, then w + e, where e comes from the gradient at w."""

    def __init__(self, weights: KeptWeights, levels: list[Level], adaptive: bool, alone: bool) -> None:
        self.weights = weights
        self.levels = levels
        self.adaptive = adaptive
        self.signs = [0] if alone else [0, 1]
        self._slopes: list[list[Tensor]] = []

    def go(self, index: int) -> None:
        if index == 1:
            self._climb()

    @torch.no_grad()
    def come_back(self, index: int) -> None:
        if index == 0 and len(self.signs) > 1:
            self._slopes = [[self._slope(p) for p in bucket.parameters] for bucket in self.weights.buckets]
        else:
            self.restore()

    def restore(self) -> None:
        self.weights.restore()
        self._slopes = []

    def writes(self) -> list[tuple[int, int]]:
        return self.weights.writes()

    @torch.no_grad()
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
            self.weights.each("addcmul_", bucket.tensors, slope, [scales[group] for group in bucket.groups])
        stale.forget()

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
