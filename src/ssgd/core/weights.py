"""The weights that get noise: w → w + sign · n, in place; ``buckets.py`` has the way back, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from . import random_state, stale
from .buckets import Bucket, Chosen, MovingWeights, Pieces
from .noise import Distribution, mix
from .parallel import part_here

Level = float | Tensor
Damping = Callable[[Tensor], Tensor]
Values = dict[Tensor, Tensor]
Numbers = tuple[int, int, int]  # seed, step and rank, which the noise of a batch is a function of


class NoisyWeights(MovingWeights):
    """Weights that move to w + sign · n, where n is a pure function of numbers, draw and tensor.

    The numbers are seed, step and rank. Each tensor has a generator, seeded by the numbers, the draw and the tensor's
    position among the optimizer's parameters. It always draws the whole tensor, of which a shard takes its part, so n
    depends on no neighbour and on no sharding.
    """

    stream = "torch"

    def __init__(
        self,
        chosen: Sequence[Chosen],
        distribution: Distribution,
        foreach: bool = True,
        damping: Damping | None = None,  # what a parameter's noise is divided by
        generators: dict[Any, Any] | None = None,  # filled with those used, for CUDA graphs to know
        flat: bool = True,  # False where the caller needs the tensors in the shape of their gradients
    ) -> None:
        super().__init__(chosen, foreach, flat=flat and distribution.unit != "filter" and damping is None)
        self.distribution = distribution
        self.damping = damping
        self.generators = {} if generators is None else generators
        self._noise: Pieces = []
        self._noise_of: tuple[Numbers, int] | None = None

    @torch.no_grad()
    def move(self, sign: int, numbers: Numbers, draw: int, levels: Sequence[Level], again: bool = False) -> None:
        """Move the weights from w to w + sign · n; ``levels`` has one for each parameter group.

        n is drawn unless it is there already, and stays for another move with this draw if there is one ``again``.
        """
        if self._noise_of != (numbers, draw):
            self.release()
            self._noise, self._noise_of = self.noise(numbers, draw, levels), (numbers, draw)
        self.keep()
        for bucket, noise in zip(self.buckets, self._noise, strict=True):
            bucket.follow()
            self.each("add_" if sign > 0 else "sub_", bucket.tensors, noise)
        stale.forget()
        if not again:
            self.release()

    def release(self) -> None:
        """Drop n."""
        self._noise, self._noise_of = [], None

    @torch.no_grad()
    def both(
        self, numbers: Numbers, levels: Sequence[Level], out: Sequence[Mapping[Tensor, Tensor]] | None
    ) -> tuple[Values, Values]:
        """Return w + n and w − n by parameter, in tensors of their own or in those of ``out``; w stays."""
        found: tuple[Values, Values] = ({}, {})
        for bucket, noise in zip(self.buckets, self.noise(numbers, 0, levels), strict=True):
            for i, op in enumerate(("add_", "sub_")):
                pieces = bucket.copy() if out is None else bucket.aliases_of(out[i])
                if out is not None:
                    self.each("copy_", pieces, bucket.tensors)
                self.each(op, pieces, noise)
                found[i].update(
                    bucket.by_parameter(pieces) if out is None else {p: out[i][p] for p in bucket.parameters}
                )
        return found

    @torch.no_grad()
    def noise(self, numbers: Numbers, draw: int, levels: Sequence[Level]) -> Pieces:
        """Return n, drawn afresh and laid out as the tensors are."""
        found = []
        for bucket in self.buckets:
            drawn = self._drawn(bucket, numbers, draw)
            if self.damping is not None:
                self.each("div_", drawn, [self.damping(p) for p in bucket.parameters])
            scales = self._scales(bucket, drawn, [levels[group] for group in bucket.groups])
            if type(scales[0]) is Tensor:
                self.each("mul_", drawn, scales)
            else:  # weights whose values lie in tensors inside them: so do those of their noise
                drawn = [z * scale for z, scale in zip(drawn, scales, strict=True)]
            found.append(drawn)
        return found

    @torch.no_grad()
    def ratios(self) -> list[Tensor]:
        """Return ‖n‖ / ‖w‖ as realised, for each tensor; 0 where the weights are at w."""
        found = []
        for bucket, kept in zip(self.buckets, self.kept or [bucket.tensors for bucket in self.buckets], strict=True):
            noise = self._norms(bucket, [t - k for t, k in zip(bucket.tensors, kept, strict=True)])
            weight = self._norms(bucket, kept)
            found += [torch.where(w > 0, n / w, torch.zeros_like(n)) for n, w in zip(noise, weight, strict=True)]
        return found

    def seed(self, numbers: Numbers, draws: int) -> None:
        """Make what draws these numbers' noise, and seed it: before a CUDA graph is captured or replayed."""
        for bucket in self.buckets:
            for draw in range(draws):
                for position in bucket.positions:
                    self._generator(bucket, numbers, draw, position, seeded=True)

    def register(self, graph: torch.cuda.CUDAGraph) -> None:
        """Let the graph know every generator there is."""
        for generator in self.generators.values():
            if isinstance(generator, torch.Generator):
                graph.register_generator_state(generator)

    def _generator(self, bucket: Bucket, numbers: Numbers, draw: int, position: int, seeded: bool) -> torch.Generator:
        key = bucket.tensors[0].device, numbers[2], draw, position
        generator = self.generators.get(key)
        if generator is None:
            generator = self.generators[key] = torch.Generator(key[0])
        if seeded:
            generator.manual_seed(mix(*numbers, draw, position))
        return generator

    def _drawn(self, bucket: Bucket, numbers: Numbers, draw: int) -> list[Tensor]:
        """Return z for each tensor, in one allocation."""
        seeded = not random_state.capturing()
        pieces = bucket.cut(bucket.empty())
        for i, (piece, position) in enumerate(zip(pieces, bucket.positions, strict=True)):
            generator = self._generator(bucket, numbers, draw, position, seeded)
            in_order = bucket.in_order(i)
            z = piece.view(-1) if in_order else torch.empty(bucket.numels[i], dtype=piece.dtype, device=piece.device)
            filled = self.distribution.fill(z, generator)
            if isinstance(filled, Tensor) and filled.data_ptr() != z.data_ptr():
                raise TypeError(
                    f"the distribution {self.distribution.name!r} returned a tensor of its own: fill(z, generator) "
                    "fills z in place"
                )
            if not in_order:
                bucket.laid_out(i, piece).copy_(part_here(bucket.parameters[i], z))
        return pieces

    def _scales(self, bucket: Bucket, drawn: list[Tensor], levels: list[Level]) -> list[Tensor]:
        """Return the factor of each drawn tensor. A layer of zeros gets zero noise."""
        unit = self.distribution.unit
        if unit == "filter":
            scales = [_filter_norms(bucket, t) for t in bucket.tensors]
        elif unit == "one":
            first = bucket.tensors[0]
            scales = list(torch.ones(len(bucket.tensors), dtype=bucket.wide, device=first.device).unbind())
        else:
            scales = self._norms(bucket, bucket.tensors)
        if any([isinstance(level, Tensor) for level in levels]):
            levels = [_on_device(a, s) for a, s in zip(levels, scales, strict=True)]
        self.each("mul_", scales, levels)
        if unit == "norm":
            lengths = self._norms(bucket, drawn)
            self.each("clamp_min_", lengths, [torch.finfo(bucket.wide).tiny] * len(lengths))
            self.each("div_", scales, lengths)
        elif unit == "rms":
            self.each("div_", scales, [math.sqrt(n) for n in bucket.numels])
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
