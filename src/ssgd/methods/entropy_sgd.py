"""Entropy-SGD: descend the local entropy, estimated by Langevin steps around w."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from ..core.checks import check_count
from ..core.gradients import clear
from ..core.moving import Chosen, Pieces, as_real
from ..core.noise_points import NoisePoints, NoisyOptimizer
from ..core.parallel import local, unwrap_ddp
from ..core.passes import Route
from ..core.point_optimizer import PointOptimizer
from ..core.weights import Level, NoisyWeights


class EntropySGD(NoisyOptimizer):
    """Entropy-SGD (Chaudhari et al., arXiv:1611.01838).

    L Langevin steps x′ ← x′ − η′ ( ∇f(x′) − γ (w − x′) ) + √η′ ε N(0, 1) from x′ = w, their running mean
    μ ← (1 − α) μ + α x′, and then the base's step with w − μ, the gradient of the local entropy divided by γ: as in the
    authors' program, so that rates are of the usual size. ε is the group key ``noise``; ``inner_steps`` is L, the
    passes of one step.

    The paper takes each inner step on a new batch: a closure that fetches one each time it is called does that, while
    ``points()`` runs the batch at hand at every inner step. There is no split(). Gradients are not accumulated over
    batches: a step is one loop of inner steps. Options not named here are those of :class:`ssgd.SSGD`; distribution and
    ``perturb`` are fixed.
    """

    def __init__(
        self,
        base: Optimizer,
        noise: Level = 1e-4,
        *,
        inner_steps: int = 20,
        inner_lr: float = 0.1,
        gamma: float = 1e-2,
        alpha: float = 0.75,
        **options: Any,
    ) -> None:
        check_count("inner_steps", inner_steps)
        if not inner_lr > 0 or not gamma > 0 or not 0 < alpha <= 1:
            raise ValueError(
                f"inner_lr and gamma must be above 0 and alpha in (0, 1], not {inner_lr!r}, {gamma!r} and {alpha!r}"
            )
        if options.setdefault("per_rank", False):
            raise ValueError("per_rank=True would lead the ranks' inner steps apart: Entropy-SGD needs shared noise")
        if options.get("perturb") is not None:
            raise ValueError("Entropy-SGD moves every trained weight: leave out perturb, or freeze the others")
        self.inner_steps, self.inner_lr, self.gamma, self.alpha = inner_steps, inner_lr, gamma, alpha
        super().__init__(base, LangevinPoints(noise, inner_steps, options), **options)


class LangevinPoints(NoisePoints):
    """The inner iterates x′."""

    no_scaler = "Entropy-SGD cannot be used with a GradScaler: train in bfloat16, which needs none"
    off_without_level = False  # without thermal noise the inner steps are taken all the same

    def __init__(self, noise: Level, inner_steps: int, options: dict[str, Any]) -> None:
        super().__init__(
            noise,
            [(1, draw) for draw in range(inner_steps)],
            options,
            distribution="gaussian",
            no_split="Entropy-SGD has no split(): its points follow from each other; use points()",
            every_tensor=True,
        )

    def check(self, opt: PointOptimizer) -> None:
        several = dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1
        if several and opt.model is None and not self.seed_given:
            raise ValueError(
                "among several processes Entropy-SGD must know with whom it shares its noise: pass model=..., or seed="
            )
        super().check(opt)

    def route(self, opt: PointOptimizer, halve: Callable[[], Sequence[float]] | None) -> Route:
        if opt.batches and any(p.grad is not None for p in opt.all_parameters):
            raise RuntimeError("Entropy-SGD does not accumulate: call step() and zero_grad() after each batch")
        assert isinstance(opt, EntropySGD)
        return Langevin(opt, self, self.weights(opt))

    def make_weights(self, opt: PointOptimizer, chosen: list[Chosen]) -> NoisyWeights:
        return NoisyWeights(chosen, self.distribution)  # kernels keep no noise that could be added to x′


class Langevin(Route):
    """The inner loop: x′ lives in the weights during a pass and in a copy between passes."""

    weights: NoisyWeights

    def __init__(self, opt: EntropySGD, rule: LangevinPoints, weights: NoisyWeights) -> None:
        steps = opt.inner_steps
        super().__init__([1] * steps, [0.0] * (steps - 1) + [1.0], weights)  # the last leaves the entropy's gradient
        self.opt = opt
        self.numbers = rule.numbers(opt, 0)
        self.reduce_every_pass = unwrap_ddp(opt.model) is not None
        self._inner: Pieces = []  # x′
        self._mean: Pieces = []  # μ

    @torch.no_grad()
    def enter(self, index: int) -> None:
        clear(self.opt.all_parameters)
        self.weights.keep()
        if index == 0:
            self._inner, self._mean = self.weights.copies(), self.weights.copies()
        self.weights.set_to(self._inner)

    @torch.no_grad()
    def leave(self, index: int) -> None:
        noise = self.weights.noise(self.numbers, index, self.opt._levels())
        for bucket, *pieces in zip(self.weights.buckets, noise, self._inner, self._mean, strict=True):
            for w, p, n, x, mean in zip(bucket.tensors, bucket.parameters, *pieces, strict=True):
                slope = self.opt.gamma * (x - w)
                if p.grad is not None:
                    slope += as_real(local(p.grad))
                x.sub_(slope, alpha=self.opt.inner_lr)
                x.add_(n, alpha=math.sqrt(self.opt.inner_lr))
                mean.lerp_(x, self.opt.alpha)
        if index == self.opt.inner_steps - 1:
            self._leave_gradient()

    def release(self) -> None:
        self._inner, self._mean = [], []

    def _leave_gradient(self) -> None:
        """p.grad = w − μ."""
        clear(self.opt.all_parameters)
        for bucket, means in zip(self.weights.buckets, self._mean, strict=True):
            for p, w, mean in zip(bucket.parameters, bucket.tensors, means, strict=True):
                p.grad = torch.zeros_like(p, dtype=getattr(p, "grad_dtype", None) or p.dtype)
                as_real(local(p.grad)).copy_(w - mean)
