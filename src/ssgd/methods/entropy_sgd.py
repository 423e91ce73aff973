"""Entropy-SGD: descend the local entropy, estimated by Langevin steps around w."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..core.batchnorm import RunningStatistics
from ..core.buckets import as_real
from ..core.checks import check_count
from ..core.gradients import clear
from ..core.noisy import Noisy
from ..core.parallel import local, several_processes, unwrap_ddp
from ..core.points import Level, TwoPoints
from ..core.walk import Point, Walk
from ..core.wrapper import capturing


class EntropySGD(Noisy):
    """Entropy-SGD (Chaudhari et al., arXiv:1611.01838).

    L Langevin steps x′ ← x′ − η′ ( ∇f(x′) − γ (w − x′) ) + √η′ ε N(0, 1) from x′ = w, their running mean
    μ ← (1 − α) μ + α x′, and then the base's step with w − μ, the gradient of the local entropy divided by γ: as in the
    authors' program, so that rates are of the usual size. ε is the group key ``noise``; ``inner_steps`` is L, the
    passes of one step.

    The paper takes each inner step on a new batch: a closure that fetches one each time it is called does that, while
    ``points()`` runs the batch at hand at every inner step. There is no split(). Gradients are not accumulated over
    batches: a step is one walk. Options not named here are those of :class:`ssgd.SSGD`; distribution and
    ``perturb`` are fixed.
    """

    every_tensor = True
    flat_aliases = False

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
        super().__init__(base, noise, distribution="gaussian", **options)

    def _settle(self) -> None:
        if several_processes() and self.model is None and not self._seed_given:
            raise ValueError(
                "among several processes Entropy-SGD must know with whom it shares its noise: pass model=..., or seed="
            )
        super()._settle()

    def points(self) -> Iterator[Point]:
        """The inner iterates x′."""
        if self._walk is not None and self._walk.complete and any(p.grad is not None for p in self._parameters()):
            raise RuntimeError("Entropy-SGD does not accumulate: call step() and zero_grad() after each walk")
        weights = self._moving_weights()  # checks the levels too
        yield from self._begin(lambda: self._langevin(weights))

    def _langevin(self, weights: TwoPoints) -> Walk:
        if not capturing():
            self._seed_generators(weights)
        return Walk(
            moves=Langevin(self, weights),
            shares=[0.0] * (self.inner_steps - 1) + [1.0],  # the last leaves the entropy's gradient
            parameters=self._parameters(),
            model=self.model,
            statistics=RunningStatistics(self.model, self.bn_stats),
            same_rng=self.rng == "same",
            reduce_every_pass=unwrap_ddp(self.model) is not None,
        )

    @property
    def _step_supports_amp_scaling(self) -> bool:
        return True  # so that a GradScaler makes itself known

    def _step_base(self) -> bool:
        if "found_inf" in self.__dict__:
            raise RuntimeError("Entropy-SGD cannot be used with a GradScaler: train in bfloat16, which needs none")
        return super()._step_base()

    def _active(self) -> list[bool]:
        return [True] * len(self.param_groups)  # without thermal noise the inner steps are taken all the same


class Langevin:
    """The inner loop: x′ lives in the weights during a pass and in a copy between passes."""

    def __init__(self, opt: EntropySGD, weights: TwoPoints) -> None:
        self.opt = opt
        self.weights = weights
        self.signs = [1] * opt.inner_steps
        self._inner: list[list[Tensor]] = []  # x′
        self._mean: list[list[Tensor]] = []  # μ

    @torch.no_grad()
    def go(self, index: int) -> None:
        clear(self.opt._parameters())
        self.weights.keep()
        if index == 0:
            self._inner = [bucket.copy() for bucket in self.weights.buckets]
            self._mean = [bucket.copy() for bucket in self.weights.buckets]
        self.weights.set_to(self._inner)

    @torch.no_grad()
    def come_back(self, index: int) -> None:
        self.weights.restore()
        levels = self.opt._levels()
        for i, bucket in enumerate(self.weights.buckets):
            flat = bucket.empty()
            self.weights.distribution.fill(flat, self.opt._generator(self.weights, bucket))
            rows = zip(
                bucket.tensors,
                bucket.parameters,
                bucket.groups,
                bucket.cut(flat),
                self._inner[i],
                self._mean[i],
                strict=True,
            )
            for w, p, group, z, x, mean in rows:
                slope = self.opt.gamma * (x - w)
                if p.grad is not None:
                    slope += as_real(local(p.grad))
                x.sub_(slope, alpha=self.opt.inner_lr)
                x.add_(z * levels[group], alpha=math.sqrt(self.opt.inner_lr))
                mean.lerp_(x, self.opt.alpha)
        if index == self.opt.inner_steps - 1:
            self._leave_gradient()

    def restore(self) -> None:
        self.weights.restore()
        self._inner, self._mean = [], []

    def writes(self) -> list[tuple[int, int]]:
        return self.weights.writes()

    def _leave_gradient(self) -> None:
        """p.grad = w − μ."""
        clear(self.opt._parameters())
        for bucket, means in zip(self.weights.buckets, self._mean, strict=True):
            for p, w, mean in zip(bucket.parameters, bucket.tensors, means, strict=True):
                p.grad = torch.zeros_like(p, dtype=getattr(p, "grad_dtype", None) or p.dtype)
                as_real(local(p.grad)).copy_(w - mean)
        self._inner, self._mean = [], []
