"""The weights that move, as flat aliases: one bucket for each device, dtype and sharding, and a copy of w."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import stale
from .parallel import Sharding, local, sharding

Pieces = list[list[Tensor]]  # a list for each bucket, with one for each of its tensors


class Chosen(NamedTuple):
    """A tensor that moves, its parameter group, and its position among all parameters, which its noise depends on."""

    parameter: Tensor
    group: int
    position: int


@dataclass
class Bucket:
    """Tensors that one foreach call can serve. They alias the parameters: same storage, one dimension if possible."""

    sharding: Sharding | None
    flat: bool
    parameters: list[Tensor] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    numels: list[int] = field(default_factory=list)  # elements of the whole tensor, over all shards
    addresses: list[int] = field(default_factory=list)

    @cached_property
    def wide(self) -> torch.dtype:
        """Single precision at least: what norms are taken in."""
        return torch.promote_types(self.tensors[0].dtype, torch.float32)

    def here(self) -> list[Tensor]:
        """The parameters, as far as they lie here."""
        return self.parameters if self.sharding is None else [local(p) for p in self.parameters]

    def follow(self) -> bool:
        """Alias again what has got other memory, as an LSTM's weights do; say whether there was any."""
        parameters = self.parameters if self.sharding is None else self.here()
        addresses = [p.data_ptr() for p in parameters]
        if addresses == self.addresses:
            return False
        self.tensors = [alias(p, self.flat) for p in self.parameters]
        self.addresses = addresses
        return True

    def copy(self) -> list[Tensor]:
        """A copy of the tensors, in one allocation."""
        self.follow()
        return self.cut(torch.cat([t if t.dim() == 1 else t.reshape(-1) for t in self.tensors]))

    def empty(self) -> Tensor:
        """Room for all elements, flat."""
        first = self.tensors[0]
        return torch.empty(sum([t.numel() for t in self.tensors]), dtype=first.dtype, device=first.device)

    def cut(self, flat: Tensor) -> list[Tensor]:
        """``flat`` in pieces shaped like the tensors."""
        pieces = torch.split(flat, [t.numel() for t in self.tensors])
        return [c if t.dim() == 1 else c.view(t.shape) for c, t in zip(pieces, self.tensors, strict=True)]

    def in_order(self, i: int) -> bool:
        """Whether the elements of a piece for tensor ``i`` are those of the whole tensor, row by row."""
        return self.sharding is None and (self.parameters[i].is_contiguous() or not self.tensors[i].is_contiguous())

    def laid_out(self, i: int, piece: Tensor) -> Tensor:
        """A piece shaped like tensor ``i``, in the shape of the parameter here."""
        real = as_real(local(self.parameters[i]))
        if real.is_contiguous() or not self.tensors[i].is_contiguous():
            return piece.view(real.shape)
        return piece.as_strided(real.shape, real.stride())

    def by_parameter(self, pieces: Sequence[Tensor]) -> dict[Tensor, Tensor]:
        """Pieces shaped like the tensors, each laid out as its parameter is. Not for shards."""
        found = {}
        for p, piece in zip(self.parameters, pieces, strict=True):
            real = as_real(p)
            laid = piece if piece.shape == real.shape else piece.as_strided(real.shape, real.stride())
            found[p] = torch.view_as_complex(laid.clone()) if p.is_complex() else laid  # a clone: pairs must lie evenly
        return found

    def aliases_of(self, values: Mapping[Tensor, Tensor]) -> list[Tensor]:
        """The caller's tensor for each parameter, aliased as the parameter is."""
        found = [values[p] for p in self.parameters]
        for p, value in zip(self.parameters, found, strict=True):
            if (value.shape, value.dtype, value.device, value.stride()) != (p.shape, p.dtype, p.device, p.stride()):
                raise ValueError("a tensor of out= must have its parameter's shape, dtype, device and strides")
        return [alias(value, self.flat) for value in found]


class MovingWeights:
    """Weights, and a copy of w for as long as they may be elsewhere.

    ``keep()`` copies w before anything changes it, and ``restore()`` copies it back: whatever happens while they are
    away, w returns bit for bit, also where a pass has given a parameter other memory.
    """

    def __init__(self, chosen: Sequence[Chosen], foreach: bool = True, flat: bool = False) -> None:
        self.buckets = make_buckets(chosen, flat)
        self.foreach = foreach
        self.kept: Pieces = []  # w

    @torch.no_grad()
    def keep(self) -> None:
        self.kept = [bucket.copy() for bucket in self.buckets]

    @torch.no_grad()
    def restore(self) -> None:
        """Wherever the weights are → w, and the copy is dropped. Does nothing where they are at w."""
        if self.kept:
            self.set_to(self.kept)
            self.kept = []

    def writes(self) -> list[tuple[int, int]]:
        """Address and version of every tensor while a copy is kept: what restore() will undo shows in it."""
        return [(t.data_ptr(), t._version) for bucket in self.buckets for t in bucket.here()] if self.kept else []

    def set_to(self, values: Pieces) -> None:
        """The weights become ``values``."""
        for bucket, value in zip(self.buckets, values, strict=True):
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


def make_buckets(chosen: Sequence[Chosen], flat: bool = True) -> list[Bucket]:
    """Buckets of what is chosen; memory that is there twice (tied weights) enters once."""
    buckets: dict[tuple[Any, ...], Bucket] = {}
    taken: set[tuple[int, int]] = set()
    for parameter, group, position in chosen:
        tensor = alias(parameter, flat)
        span = _span(local(parameter))
        if tensor.numel() and span in taken:
            continue
        taken.add(span)
        cut = sharding(parameter)
        key = (str(tensor.device), str(tensor.dtype), cut and cut.key)
        bucket = buckets.setdefault(key, Bucket(cut, flat))
        bucket.parameters.append(parameter)
        bucket.tensors.append(tensor)
        bucket.addresses.append(local(parameter).data_ptr())
        bucket.groups.append(group)
        bucket.positions.append(position)
        bucket.numels.append(math.prod(parameter.shape) * (2 if parameter.is_complex() else 1))
    if any(start < end for (_, end), (start, _) in pairwise(sorted(taken))):
        raise ValueError(
            "two of the selected parameters overlap or interleave in memory without being the same tensor; "
            "leave one of them out with perturb=select(model, where=...)"
        )
    return list(buckets.values())


def as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as pairs of reals, any other as it is: the same memory."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


@torch.no_grad()
def alias(parameter: Tensor, flat: bool) -> Tensor:
    """An alias that shares storage and version counter, so autograd sees every change; where not flat, the tensor."""
    tensor = as_real(local(parameter))
    if not flat:
        return tensor
    tensor = tensor.detach()
    if tensor.is_contiguous():
        return tensor.view(-1)
    if sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True)) + 1 == tensor.numel():
        return tensor.as_strided((tensor.numel(),), (1,))  # dense in another order, such as channels_last
    return tensor


def _span(tensor: Tensor) -> tuple[int, int]:
    """The first and last address of a tensor: the same for a tied weight, also when one of the two is transposed."""
    if tensor.numel() and not tensor.data_ptr():  # its values lie in tensors inside it: known by its id, an empty span
        return -id(tensor), -id(tensor)
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size() * bool(tensor.numel())
