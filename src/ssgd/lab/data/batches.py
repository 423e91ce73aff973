"""Which samples make up a batch, and which of them a rank takes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from ssgd.core.noise import mix


def whole_batches(samples: int, size: int) -> int:
    """How many batches of ``size`` an epoch has; samples that do not fill one are left out of it."""
    if size < 1:
        raise ValueError(f"a batch needs at least 1 sample, not {size}")
    if samples < size:
        raise ValueError(f"a batch of {size} cannot be filled from {samples} training samples: make the batch smaller")
    return samples // size


def part_of_batch(samples: int, step: int, size: int, rank: int, ranks: int) -> slice:
    """Where rank ``rank``'s part of batch ``step`` lies in the epoch."""
    steps = whole_batches(samples, size)
    _check_rank(rank, ranks)
    if not 0 <= step < steps:
        raise ValueError(f"step {step} is not in this epoch: it has the steps 0 to {steps - 1} at batch size {size}")
    if size % ranks:
        raise ValueError(f"a batch of {size} cannot be divided evenly among {ranks} ranks: use a multiple of {ranks}")
    part = size // ranks
    start = step * size + rank * part
    return slice(start, start + part)


def in_order(samples: int, size: int, rank: int, ranks: int) -> Iterator[slice]:
    """Rank ``rank``'s share of all samples, in pieces of at most ``size``: every sample is in one share."""
    if size < 1:
        raise ValueError(f"a batch needs at least 1 sample, not {size}")
    _check_rank(rank, ranks)
    first, end = rank * samples // ranks, (rank + 1) * samples // ranks
    return (slice(start, min(start + size, end)) for start in range(first, end, size))


def generator(seed: int, epoch: int) -> torch.Generator:
    """The CPU generator of an epoch: what it draws is the same whatever device trains."""
    return torch.Generator().manual_seed(mix(seed, epoch, 0xDA7A))


def _check_rank(rank: int, ranks: int) -> None:
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} of {ranks} does not exist: ranks count from 0 to {ranks - 1}")
