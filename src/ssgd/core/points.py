"""Moving weights from w to w + n, back, to w − n and back: in place, and back bitwise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from . import stale
from .buckets import Bucket
from .building import has_kernels
from .noise import Distribution
from .parallel import local

Level = float | Tensor
Damping = Callable[[Tensor], Tensor]
Values = dict[Tensor, Tensor]


class KeptWeights:
    """The weights of some buckets, and a copy of w for as long as they are elsewhere.

    ``keep()`` copies w before anything changes it, and ``restore()`` copies it back: whatever happens while they are
    away, w returns bit for bit, also where a pass has given a parameter other memory.
    """

    def __init__(self, buckets: list[Bucket], foreach: bool = True) -> None:
        self.buckets = buckets
        self.foreach = foreach
        self.kept: list[list[Tensor]] = []  # w, for each bucket

    @torch.no_grad()
    def keep(self) -> None:
        self.kept = [bucket.copy() for bucket in self.buckets]

    @torch.no_grad()
    def restore(self) -> None:
        """Wherever the weights are → w. Does nothing when they were never moved."""
        self.set_to(self.kept)
        self.kept = []

    def writes(self) -> list[tuple[int, int]]:
        """The place and version of every tensor while a copy is kept: what restore() will undo shows in it."""
        tensors = [local(p) for bucket in self.buckets if self.kept for p in bucket.parameters]
        return [(t.data_ptr(), t._version) for t in tensors]

    def values(self) -> Values:
        """A copy of each parameter as it is now, laid out as the parameter is."""
        found: Values = {}
        for bucket in self.buckets:
            found |= bucket.by_parameter(bucket.copy())
        return found

    @torch.no_grad()
    def set_to(self, values: Sequence[Sequence[Tensor]]) -> None:
        """The weights become ``values``, a list for each bucket."""
        for bucket, value in zip(self.buckets, values, strict=False):
            bucket.follow()
            self.each("copy_", bucket.tensors, value)
        stale.forget()

    def each(self, op: str, tensors: Sequence[Tensor], *others: Sequence[Any]) -> None:
        """``t.op(o, …)`` for every tensor: one foreach call, or a loop of the same operations."""
        if self.foreach:
            getattr(torch, f"_foreach_{op}")(tensors, *others)
        else:
            for tensor, *arguments in zip(tensors, *others, strict=True):
                getattr(tensor, op)(*arguments)


class TwoPoints(KeptWeights):
    """w + n and w − n. The latter is 2w − (w + n), so no pass holds more than the one copy of w."""

    def __init__(
        self, buckets: list[Bucket], distribution: Distribution, foreach: bool = True, damping: Damping | None = None
    ) -> None:
        super().__init__(buckets, foreach)
        self.distribution = distribution
        self.damping = damping  # what a parameter's noise is divided by
        self.resting = False  # at w, between rest() and minus()
        self._mirror: list[list[Tensor]] = []  # w + n, meanwhile

    @torch.no_grad()
    def plus(self, levels: Sequence[Level], generators: Sequence[torch.Generator], draw: int = 0) -> None:
        """w → w + n, with the noise level of each parameter group and a generator for each bucket.

        ``draw`` tells the draws of one walk apart where the generators, being mere seeds, do not.
        """
        self.resting = False
        self.keep()
        for bucket, generator in zip(self.buckets, generators, strict=True):
            flat = bucket.empty()
            filled = self.distribution.fill(flat, generator)
            if isinstance(filled, Tensor) and filled.data_ptr() != flat.data_ptr():
                raise TypeError(
                    f"the distribution {self.distribution.name!r} returned a tensor of its own: fill(z, generator) "
                    "fills z in place"
                )
            drawn = bucket.cut(flat)
            if self.damping is not None:
                self.each("div_", drawn, [self.damping(p) for p in bucket.parameters])
            scales = self._scales(bucket, drawn, [levels[g] for g in bucket.groups])
            self.each("addcmul_", bucket.tensors, drawn, scales)
        stale.forget()

    @torch.no_grad()
    def rest(self) -> None:
        """w + n → w, for minus() to follow."""
        mirror = [bucket.copy() for bucket in self.buckets]
        self.set_to(self.kept)
        self._mirror = mirror
        self.resting = True

    @torch.no_grad()
    def minus(self) -> None:
        """w → w − n, after rest()."""
        self.resting = False
        mirror, self._mirror = self._mirror, []
        for bucket, reflected in zip(self.buckets, mirror, strict=True):
            bucket.follow()
            self.each("mul_", bucket.tensors, [2] * len(reflected))
            self.each("sub_", bucket.tensors, reflected)
        stale.forget()

    def restore(self) -> None:
        if self.resting:
            self.kept = []
        super().restore()
        self.resting = False
        self._mirror = []

    @torch.no_grad()
    def both(self, levels: Sequence[Level], generators: Sequence[torch.Generator]) -> tuple[Values, Values]:
        """w + n and w − n as tensors of their own, by parameter; w stays."""
        try:
            self.plus(levels, generators)
            plus = self.values()
            self.rest()
            self.minus()
            return plus, self.values()
        finally:
            self.restore()

    @torch.no_grad()
    def ratios(self) -> list[Tensor]:
        """‖n‖ / ‖w‖ as realised, for each tensor; 0 where the weights are at w."""
        found = []
        for bucket, kept in zip(self.buckets, self._clean(), strict=True):
            noise = self._norms(bucket, [t - k for t, k in zip(bucket.tensors, kept, strict=True)])
            weight = self._norms(bucket, kept)
            found += [torch.where(w > 0, n / w, torch.zeros_like(n)) for n, w in zip(noise, weight, strict=True)]
        return found

    def _clean(self) -> list[list[Tensor]]:
        """w, tensor by tensor."""
        return self.kept or [bucket.tensors for bucket in self.buckets]

    def _scales(self, bucket: Bucket, drawn: list[Tensor], levels: list[Level]) -> list[Tensor]:
        """What the drawn tensors must be multiplied with. A layer of zeros gets zero noise."""
        if self.distribution.unit == "filter":
            scales = [_filter_norms(bucket, t) for t in bucket.tensors]
        elif self.distribution.unit == "one":
            first = bucket.tensors[0]
            scales = list(torch.ones(len(bucket.tensors), dtype=bucket.wide, device=first.device).unbind())
        else:
            scales = self._norms(bucket, bucket.tensors)
        if self.distribution.unit == "norm":
            lengths = self._norms(bucket, drawn)
            self.each("clamp_min_", lengths, [torch.finfo(lengths[0].dtype).tiny] * len(lengths))
            self.each("div_", scales, lengths)
        elif self.distribution.unit == "rms":
            self.each("div_", scales, [math.sqrt(n) for n in bucket.numels])
        if any(isinstance(level, Tensor) for level in levels):
            levels = [_on_device(a, s) for a, s in zip(levels, scales, strict=True)]
        self.each("mul_", scales, levels)
        return scales

    def _norms(self, bucket: Bucket, tensors: list[Tensor]) -> list[Tensor]:
        """The norm of each whole tensor, in single precision at least."""
        if self.foreach:
            norms = list(torch._foreach_norm(tensors, 2, dtype=bucket.wide))
        else:
            norms = [torch.linalg.vector_norm(t, 2, dtype=bucket.wide) for t in tensors]
        if bucket.sharding is None:
            return norms
        return list(bucket.sharding.sum(torch.stack(norms).square_()).sqrt_().unbind())


def _on_device(level: Level, like: Tensor) -> Tensor:
    """The level as a tensor, made without a copy from the host, which a CUDA graph could not hold."""
    if isinstance(level, Tensor):
        return level.to(like)
    return torch.full((), level, dtype=like.dtype, device=like.device)


def _filter_norms(bucket: Bucket, tensor: Tensor) -> Tensor:
    """The norm of each row, or of a whole vector, in a shape that multiplies the tensor."""
    if bucket.sharding is not None and not bucket.sharding.rows_are_whole:
        raise ValueError("noise by filter needs whole rows: shard over dimension 0, or use another distribution")
    rows = tuple(range(1, tensor.dim())) or None
    norms: Tensor = torch.linalg.vector_norm(tensor, dim=rows, keepdim=True, dtype=bucket.wide)
    return norms


class FusedTwoPoints(TwoPoints):
    """The same with kernels of our own: n is drawn anew wherever it is needed, so one copy of w is all that is held."""

    def __init__(self, buckets: list[Bucket], distribution: Distribution) -> None:
        super().__init__(buckets, distribution)
        from .kernels import BucketKernels

        self._kernels = [BucketKernels(bucket, distribution) for bucket in buckets]
        self._seeds: list[Tensor] = []
        self._draw = 0

    @torch.no_grad()
    def plus(self, levels: Sequence[Level], generators: Sequence[torch.Generator], draw: int = 0) -> None:
        self.resting = False
        self._seeds = [g.number for g in generators if isinstance(g, DeviceSeed)]
        self._draw = draw
        self.keep()
        for kernels, (kept,), seed in zip(self._kernels, self.kept, self._seeds, strict=True):
            kernels.plus(kept, seed, draw, levels)
        stale.forget()

    @torch.no_grad()
    def keep(self) -> None:
        pairs = zip(self._kernels, self._seeds, strict=True)
        self.kept = [[kernels.keep(seed, self._draw)] for kernels, seed in pairs]

    @torch.no_grad()
    def rest(self) -> None:
        self.set_to(self.kept)
        self.resting = True

    @torch.no_grad()
    def minus(self) -> None:
        self.resting = False
        for kernels, (kept,), seed in zip(self._kernels, self.kept, self._seeds, strict=True):
            kernels.minus(kept, seed, self._draw)
        stale.forget()

    @torch.no_grad()
    def both(self, levels: Sequence[Level], generators: Sequence[torch.Generator]) -> tuple[Values, Values]:
        plus: Values = {}
        minus: Values = {}
        for kernels, generator in zip(self._kernels, generators, strict=True):
            assert isinstance(generator, DeviceSeed)
            for found, flat in zip((plus, minus), kernels.both(generator.number, 0, levels), strict=True):
                found |= kernels.bucket.by_parameter(kernels.cut(flat))
        return plus, minus

    @torch.no_grad()
    def set_to(self, values: Sequence[Sequence[Tensor]]) -> None:
        for kernels, (kept,) in zip(self._kernels, values, strict=False):
            kernels.back(kept)
        stale.forget()

    def _clean(self) -> list[list[Tensor]]:
        kept = [kernels.cut(kept) for kernels, (kept,) in zip(self._kernels, self.kept, strict=False)]
        return kept or super()._clean()


class DeviceSeed(torch.Generator):
    """A generator that is its seed alone, on the device: a CUDA graph's replay reads what was put there before it."""

    def __init__(self, device: torch.device) -> None:
        with torch.inference_mode(False):
            self.number = torch.zeros((), dtype=torch.int64, device=device)

    def manual_seed(self, seed: int) -> torch.Generator:
        self.number.fill_(seed)
        return super().manual_seed(seed)


def two_points(buckets: list[Bucket], distribution: Distribution, foreach: bool) -> TwoPoints:
    """With kernels of our own where they serve all buckets, else with torch's operations."""
    devices = {bucket.tensors[0].device for bucket in buckets}
    if foreach and devices and all(map(has_kernels, devices)):
        from .kernels import serve

        if all(serve(bucket, distribution) for bucket in buckets):
            return FusedTwoPoints(buckets, distribution)
    return TwoPoints(buckets, distribution, foreach)


class SignedMoves:
    """A walk through points w + n (sign 1: new noise), w − n (sign −1: the last noise) and w (sign 0)."""

    def __init__(self, weights: TwoPoints, signs: Sequence[int], plus: Callable[[TwoPoints, int], None]) -> None:
        self.weights = weights
        self.signs = signs
        self._plus = plus  # w → w + n, with a noise for each number

    def go(self, index: int) -> None:
        sign = self.signs[index]
        if sign > 0:
            self._plus(self.weights, index)
        elif sign < 0:
            if not self.weights.resting:  # a point −n of its own
                self._plus(self.weights, index)
                self.weights.rest()
            self.weights.minus()

    def come_back(self, index: int) -> None:
        mirrored = self.signs[index] > 0 and index + 1 < len(self.signs) and self.signs[index + 1] < 0
        self.weights.rest() if mirrored else self.restore()

    def restore(self) -> None:
        self.weights.restore()

    def writes(self) -> list[tuple[int, int]]:
        return self.weights.writes()
