"""The weights that get noise: w → w + sign · n, in place; ``moving.py`` has the way back, bit for bit."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from . import random_state
from .moving import Bucket, Chosen, MovingWeights, Pieces, as_real, drop_stale_copies
from .noise import Distribution, mix
from .parallel import part_here

Level = float | Tensor
Values = dict[Tensor, Tensor]
Numbers = tuple[int, int, int]  # seed, step and rank, which the noise of a batch is a function of


class NoisyWeights(MovingWeights):
    """Weights that move to w + sign · n, where n is a pure function of numbers, draw and tensor.

    The numbers are seed, step and rank. Each tensor has a generator, seeded by the numbers, the draw and the tensor's
    position among the optimizer's parameters. It always draws the whole tensor, of which a shard takes its part, so n
    depends on no neighbour and on no sharding.
    """

    stream = "torch"  # whose random numbers n is made of: kept in checkpoints

    def __init__(self, chosen: Sequence[Chosen], distribution: Distribution) -> None:
        super().__init__(chosen)
        self.distribution = distribution
        self._generators: dict[tuple[torch.device, int, int, int], torch.Generator] = {}
        self._noise: Pieces = []
        self._noise_of: tuple[Numbers, int] | None = None

    @torch.no_grad()
    def move(self, sign: int, numbers: Numbers, draw: int, levels: Sequence[Level], again: bool = False) -> None:
        """Move the weights from w to w + sign · n; ``levels`` has one for each parameter group.

        n is drawn unless it is there already, and stays for another move with this draw if there is one ``again``.
        """
        if self._noise_of != (numbers, draw):
            self._noise = []  # first, so that two are never held
            self._noise, self._noise_of = self.noise(numbers, draw, levels), (numbers, draw)
        self.keep()
        for bucket, noise in zip(self.buckets, self._noise, strict=True):
            (torch._foreach_add_ if sign > 0 else torch._foreach_sub_)(bucket.tensors, noise)
        drop_stale_copies()
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
            for i, shift in enumerate((torch._foreach_add_, torch._foreach_sub_)):
                found[i].update({p: torch.empty_like(p) if out is None else out[i][p] for p in bucket.parameters})
                values = [as_real(found[i][p]) for p in bucket.parameters]
                torch._foreach_copy_(values, bucket.tensors)
                shift(values, noise)
        return found

    @torch.no_grad()
    def noise(self, numbers: Numbers, draw: int, levels: Sequence[Level]) -> Pieces:
        """Return n, drawn afresh."""
        found = []
        for bucket in self.buckets:
            drawn = self._drawn(bucket, numbers, draw)
            scales = self._scales(bucket, drawn, [levels[group] for group in bucket.groups])
            if type(scales[0]) is Tensor:
                torch._foreach_mul_(drawn, scales)
            else:  # weights whose values lie in tensors inside them: so do those of their noise
                drawn = [z * scale for z, scale in zip(drawn, scales, strict=True)]
            found.append(drawn)
        return found

    @torch.no_grad()
    def ratios(self) -> list[Tensor]:
        """Return ‖n‖ / ‖w‖ as realised, for each tensor; 0 where the weights are at w."""
        found = []
        for bucket, kept in zip(self.buckets, self.kept or [bucket.tensors for bucket in self.buckets], strict=True):
            noise = norms(bucket, torch._foreach_sub(bucket.tensors, kept))
            weight = norms(bucket, kept)
            found += [torch.where(w > 0, n / w, torch.zeros_like(n)) for n, w in zip(noise, weight, strict=True)]
        return found

    def seed(self, numbers: Numbers, draws: int) -> None:
        """Make what draws these numbers' noise, and seed it: before a CUDA graph is captured or replayed."""
        for bucket in self.buckets:
            for draw in range(draws):
                for position in bucket.positions:
                    self._generator(bucket.tensors[0].device, numbers, draw, position, seeded=True)

    def register(self, graph: torch.cuda.CUDAGraph) -> None:
        """Let the graph know every generator there is."""
        for generator in self._generators.values():
            graph.register_generator_state(generator)

    def _generator(
        self, device: torch.device, numbers: Numbers, draw: int, position: int, seeded: bool
    ) -> torch.Generator:
        rank = numbers[2]  # seed and step enter below; a CUDA graph needs a generator for each noise that it holds
        key = device, rank, draw, position
        generator = self._generators.get(key)
        if generator is None:
            generator = self._generators[key] = torch.Generator(key[0])
        if seeded:
            generator.manual_seed(mix(*numbers, draw, position))
        return generator

    def _drawn(self, bucket: Bucket, numbers: Numbers, draw: int) -> list[Tensor]:
        """Return z for each tensor, in its shape."""
        seeded = not random_state.capturing()  # seed() has done it before a graph is captured
        like = bucket.tensors[0]
        if bucket.sharding is None:
            flat = torch.empty(sum(bucket.numels), dtype=like.dtype, device=like.device)
            rooms: Iterable[Tensor] = torch.split(flat, bucket.numels)
        else:  # one whole tensor at a time, of which a part stays
            rooms = (torch.empty(n, dtype=like.dtype, device=like.device) for n in bucket.numels)
        found = []
        for parameter, position, z in zip(bucket.parameters, bucket.positions, rooms, strict=True):
            filled = self.distribution.fill(z, self._generator(z.device, numbers, draw, position, seeded))
            if isinstance(filled, Tensor) and filled.data_ptr() != z.data_ptr():
                raise TypeError(
                    f"the distribution {self.distribution.name!r} returned a tensor of its own: fill(z, generator) "
                    "fills z in place"
                )
            found.append(part_here(parameter, z))
        return found

    def _scales(self, bucket: Bucket, drawn: list[Tensor], levels: list[Level]) -> list[Tensor]:
        """Return the factor of each drawn tensor. A layer of zeros gets zero noise."""
        unit = self.distribution.unit
        if unit == "one":
            scales = list(torch.ones(len(levels), dtype=bucket.wide, device=bucket.tensors[0].device).unbind())
        else:
            scales = norms(bucket, bucket.tensors)
        times_levels(scales, levels)
        if unit == "norm":
            lengths = norms(bucket, drawn)
            torch._foreach_clamp_min_(lengths, torch.finfo(bucket.wide).tiny)
            torch._foreach_div_(scales, lengths)
        elif unit == "rms":
            torch._foreach_div_(scales, [math.sqrt(n) for n in bucket.numels])
        return scales


def norms(bucket: Bucket, tensors: Any) -> list[Tensor]:
    """The norm of each whole tensor, in single precision at least."""
    found = list(torch._foreach_norm(tensors, 2, dtype=bucket.wide))
    if bucket.sharding is None:
        return found
    return list(bucket.sharding.sum(torch.stack(found).square_()).sqrt_().unbind())


def times_levels(scales: list[Tensor], levels: list[Any]) -> None:
    """Multiply in place; a number becomes a tensor without a copy from the host, which a CUDA graph could not hold."""
    if any([isinstance(level, Tensor) for level in levels]):
        pairs = zip(levels, scales, strict=True)
        levels = [level.to(s) if isinstance(level, Tensor) else s.new_full((), level) for level, s in pairs]
    torch._foreach_mul_(scales, levels)
