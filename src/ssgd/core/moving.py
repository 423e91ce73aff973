"""Weights that move, and the copy of w that takes them back bit for bit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from .parallel import Sharding, local, sharding

Pieces = list[list[Tensor]]  # a list for each bucket, with one for each of its tensors


class Chosen(NamedTuple):
    """A tensor that moves, its parameter group, and its position among all parameters, which its noise depends on."""

    parameter: Tensor
    group: int
    position: int


@dataclass
class Bucket:
    """Parameters of one device, dtype and sharding, which one foreach call can serve."""

    sharding: Sharding | None
    parameters: list[Tensor] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    numels: list[int] = field(default_factory=list)  # elements of the whole tensor, over all shards

    @property
    def tensors(self) -> list[Tensor]:
        """The parameters as they lie here now: of a sharded one its part, complex numbers as pairs of reals."""
        return self.parameters if self._are_plain else [as_real(local(p)) for p in self.parameters]

    @cached_property
    def _are_plain(self) -> bool:
        return self.sharding is None and not self.parameters[0].is_complex()

    @cached_property
    def wide(self) -> torch.dtype:
        """Single precision at least: what norms are taken in."""
        return torch.promote_types(self.tensors[0].dtype, torch.float32)


class MovingWeights:
    """Weights, and a copy of w for as long as they may be elsewhere.

    ``keep()`` copies w before anything changes it, and ``restore()`` copies it back: whatever happens while they are
    away, w returns bit for bit, also where a pass has given a parameter other memory.
    """

    def __init__(self, chosen: Sequence[Chosen]) -> None:
        self.buckets = make_buckets(chosen)
        self.kept: Pieces = []  # w

    @torch.no_grad()
    def keep(self) -> None:
        self.kept = self.copies()

    @torch.no_grad()
    def restore(self) -> None:
        """Wherever the weights are → w, and the copy is dropped. Does nothing where they are at w."""
        if self.kept:
            self.set_to(self.kept)
            self.kept = []

    def copies(self) -> Pieces:
        """Return the weights as they are now, in memory of their own: times one is exact, and one call for all."""
        return [list(torch._foreach_mul(bucket.tensors, 1)) for bucket in self.buckets]

    @torch.no_grad()
    def set_to(self, values: Pieces) -> None:
        """The weights become ``values``."""
        for bucket, value in zip(self.buckets, values, strict=True):
            torch._foreach_copy_(bucket.tensors, value)
        drop_stale_copies()

    def writes(self) -> list[tuple[int, int]]:
        """Address and version of every tensor while a copy is kept: what restore() will undo shows in it."""
        return [(t.data_ptr(), t._version) for bucket in self.buckets for t in bucket.tensors] if self.kept else []


def make_buckets(chosen: Sequence[Chosen]) -> list[Bucket]:
    """Buckets of what is chosen; memory that is there twice (tied weights) enters once."""
    buckets: dict[tuple[Any, ...], Bucket] = {}
    taken: set[tuple[int, int]] = set()
    for parameter, group, position in chosen:
        tensor = local(parameter)
        span = _span(tensor)
        if tensor.numel() and span in taken:
            continue
        taken.add(span)
        cut = sharding(parameter)
        bucket = buckets.setdefault((tensor.device, tensor.dtype, cut), Bucket(cut))
        bucket.parameters.append(parameter)
        bucket.groups.append(group)
        bucket.positions.append(position)
        bucket.numels.append(math.prod(parameter.shape) * (2 if parameter.is_complex() else 1))
    if any(start < end for (_, end), (start, _) in pairwise(sorted(taken))):
        raise ValueError(
            "two of the selected parameters overlap or interleave in memory without being the same tensor; "
            "leave one of them out with perturb=select(model, where=...)"
        )
    return list(buckets.values())


def drop_stale_copies() -> None:
    """Weights have moved: drop autocast's casts and what ``parametrize.cached()`` computed, which outlive a pass."""
    torch.clear_autocast_cache()
    parametrize._cache.clear()


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of reals, any other as it is: the same memory."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _span(tensor: Tensor) -> tuple[int, int]:
    """The first and last address of a tensor: the same for a tied weight, also when one of the two is transposed."""
    if tensor.numel() and not tensor.data_ptr():  # its values lie in tensors inside it: known by its id, an empty span
        return -id(tensor), -id(tensor)
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size() * bool(tensor.numel())
