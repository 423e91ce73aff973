"""RWP and m-ARWP: random weight perturbation mixed with the clean gradient."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..core.gradients import present
from ..core.moving import Bucket, Chosen, as_real
from ..core.noise import DISTRIBUTIONS
from ..core.noise_points import NoisePoints, NoisyOptimizer
from ..core.parallel import local
from ..core.point_optimizer import PointOptimizer
from ..core.weights import Level, NoisyWeights, norms, times_levels


class RWP(NoisyOptimizer):
    """Random weight perturbation (Li et al., arXiv:2211.11489 and arXiv:2404.00357).

    g = λ ∇L(w + ε) + (1 − λ) ∇L(w), with ε ~ N(0, (γ‖w_f‖)²) in each filter f of every trainable weight. γ is the group
    key ``noise``; λ is ``share``: 1 is plain RWP (one pass), ½ the papers' mixture, m-RWP (two passes). With
    ``adaptive`` (ARWP) a filter's noise is divided by √(1 + η F_f), where F sums its past squared gradients,
    F ← β F + g², so that noise is smaller where the loss is curved (g as above, not the noisy one alone).

    The papers take the two gradients on different batches: ``split()`` does, on the halves of one.
    Options not named here are those of :class:`ssgd.SSGD`; the distribution is fixed.
    """

    def __init__(
        self,
        base: Optimizer,
        noise: Level,
        *,
        share: float = 0.5,
        adaptive: bool = False,
        eta: float = 1.0,
        beta: float = 0.99,
        **options: Any,
    ) -> None:
        if not 0 < share <= 1:
            raise ValueError(f"share is that of the noisy gradient: above 0 and at most 1, not {share!r}")
        if not eta >= 0 or not 0 <= beta < 1:
            raise ValueError(f"eta must be at least 0 and beta in [0, 1), not {eta!r} and {beta!r}")
        super().__init__(base, FilterNoise(noise, share, adaptive, eta, beta, options), **options)


class FilterNoise(NoisePoints):
    """w, then w + ε; with a memory of squared gradients where it is adaptive."""

    def __init__(
        self, noise: Level, share: float, adaptive: bool, eta: float, beta: float, options: dict[str, Any]
    ) -> None:
        mixed = [(0, 0), (1, 0)]
        super().__init__(
            noise,
            mixed if share < 1 else mixed[1:],
            options,
            distribution="gaussian",
            halves=mixed if share < 1 else None,
            no_split="split() takes a clean and a noisy gradient: use a share below 1, or points()",
            shares=[1 - share, share] if share < 1 else None,
            every_tensor=True,
        )
        self.adaptive, self.eta, self.beta = adaptive, eta, beta

    def make_weights(self, opt: PointOptimizer, chosen: list[Chosen]) -> NoisyWeights:
        return FilterWeights(chosen, self, opt)

    @torch.no_grad()
    def after_step(self, opt: PointOptimizer, found_inf: Tensor | None) -> None:
        for p in self.selected(opt) if self.adaptive else []:
            if p.grad is not None:
                (gradient,) = map(as_real, present([p]))
                past = local(opt.state[p].setdefault("squared_gradients", torch.zeros_like(as_real(p))))
                new = past * self.beta + gradient.square()
                past.copy_(new if found_inf is None else torch.where(found_inf > 0, past, new))


class FilterWeights(NoisyWeights):
    """Weights whose noise is scaled by the norm of each filter: a row of the tensor, or a whole vector."""

    def __init__(self, chosen: list[Chosen], rule: FilterNoise, opt: PointOptimizer) -> None:
        super().__init__(chosen, DISTRIBUTIONS["gaussian"])
        self.rule, self.opt = rule, opt

    def _scales(self, bucket: Bucket, drawn: list[Tensor], levels: list[Level]) -> list[Tensor]:
        if bucket.sharding is not None and not bucket.sharding.rows_are_whole:
            raise ValueError("noise by filter needs whole rows: shard over dimension 0, or use another method")
        by_row = partial(torch.linalg.vector_norm, keepdim=True, dtype=bucket.wide)
        whole = zip(bucket.tensors, norms(bucket, bucket.tensors), strict=True)
        scales = [by_row(t, dim=_row(t)) if t.dim() > 1 else norm for t, norm in whole]
        if self.rule.adaptive:
            scales = list(torch._foreach_div(scales, [self._damping(p) for p in bucket.parameters]))
        times_levels(scales, levels)
        return scales

    def _damping(self, p: Tensor) -> Tensor:
        """√(1 + η F_f) of each filter f, of a vector's elements each by itself."""
        past = self.opt.state[p].get("squared_gradients")
        if past is None:
            return torch.ones((), dtype=as_real(p).dtype, device=p.device)
        past = local(past)
        return (1 + self.rule.eta * (past.sum(_row(past), keepdim=True) if past.dim() > 1 else past)).sqrt_()


def _row(tensor: Tensor) -> tuple[int, ...]:
    """The dimensions of a filter."""
    return tuple(range(1, tensor.dim()))
