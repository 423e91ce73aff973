"""All tensors of a bucket moved in one launch, by Triton kernels that draw the noise anew wherever they need it.

Noise is a function of (seed, draw, block, place in the block), so it is never stored.
"""
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from .buckets import Bucket, make_buckets
from .noise import DISTRIBUTIONS, Distribution

DISTRIBUTIONS_SERVED = tuple(DISTRIBUTIONS[name] for name in ("sphere", "sign", "uniform", "gaussian"))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BLOCK = 2048  # elements at a time: 8 for each thread
WARPS = 8
PIECES = 512  # programs a tensor at most, so that each of them can add up what all have measured


def check(device: torch.device) -> None:
    """Build and run a kernel; raises what Triton raises where it cannot."""
    (bucket,) = make_buckets([(torch.zeros(1, device=device), 0)])
    kernels = BucketKernels(bucket, DISTRIBUTIONS_SERVED[0])
    kernels.back(torch.zeros(kernels.size, device=device))


def serve(bucket: Bucket, distribution: Distribution) -> bool:
    """Whether the kernels can move these tensors under this distribution."""
    flat = all(t.dim() == 1 and t.is_contiguous() for t in bucket.tensors)
    return (
        flat and distribution in DISTRIBUTIONS_SERVED and bucket.sharding is None and bucket.tensors[0].dtype in DTYPES
    )


class BucketKernels:
    """The moves of a bucket's tensors, one launch each. ``kept`` is the copy of w, all tensors in a row."""

    def __init__(self, bucket: Bucket, distribution: Distribution) -> None:
        self.bucket = bucket
        self.distribution = distribution
        first = bucket.tensors[0]
        self._groups = sorted(set(bucket.groups))
        self._starts: list[int] = []
        # For each tensor: address, elements, where its copy begins, its first program, how many there are, blocks of
        # each, blocks of the tensors before, and its group's place among the levels. For each program: its tensor.
        rows: list[list[int]] = []
        owners: list[int] = []
        unit = 16 // first.element_size()  # a tensor's copy begins at a multiple of 16 bytes
        self.size = blocks_before = 0
        for tensor, group in zip(bucket.tensors, bucket.groups, strict=True):
            blocks = triton.cdiv(tensor.numel(), BLOCK)
            span = max(triton.cdiv(blocks, PIECES), 1)
            pieces = triton.cdiv(blocks, span)
            place = self._groups.index(group)
            address, numel = tensor.data_ptr(), tensor.numel()
            owners += [len(rows)] * pieces
            rows.append([address, numel, self.size, len(owners) - pieces, pieces, span, blocks_before, place])
            self._starts.append(self.size)
            self.size += triton.cdiv(numel, unit) * unit
            blocks_before += blocks
        self._rows = torch.tensor(rows, dtype=torch.int64, device=first.device)
        self._aligned = self._are_aligned()
        self._owners = torch.tensor(owners, dtype=torch.int32, device=first.device)
        self._sums = torch.zeros(2, len(owners), device=first.device)  # of w² and of z², for each program
        self._scales = torch.zeros(len(rows), device=first.device)  # what z is multiplied with, for each tensor

    def keep(self, seed: Tensor, draw: int) -> Tensor:
        """A copy of w, made while w and the noise to come are measured."""
        self._follow()
        first = self.bucket.tensors[0]
        kept = torch.empty(self.size, dtype=first.dtype, device=first.device)
        self._launch(_keep, kept, self._sums, seed, draw, self.distribution.name)
        return kept

    def plus(self, kept: Tensor, seed: Tensor, draw: int, levels: Sequence[float | Tensor]) -> None:
        """w ← kept + n after ``keep()``, with a level for each parameter group."""
        given = tuple(_level(levels[group], kept.device) for group in self._groups)
        self._launch(_plus, kept, self._sums, self._scales, seed, draw, given, PIECES, self.distribution.name)
        self._changed()

    def minus(self, kept: Tensor, seed: Tensor, draw: int) -> None:
        """w ← kept − n, the n of the last ``plus()``."""
        self._follow()
        self._launch(_minus, kept, self._scales, seed, draw, self.distribution.name)
        self._changed()

    def both(self, seed: Tensor, draw: int, levels: Sequence[float | Tensor]) -> tuple[Tensor, Tensor]:
        """w + n and w − n, each all tensors in a row; w stays."""
        plus = self.keep(seed, draw)
        minus = torch.empty_like(plus)
        given = tuple(_level(levels[group], plus.device) for group in self._groups)
        self._launch(_both, plus, minus, self._sums, seed, draw, given, PIECES, self.distribution.name)
        return plus, minus

    def back(self, kept: Tensor) -> None:
        """w ← kept."""
        self._follow()
        self._launch(_back, kept)
        self._changed()

    def cut(self, kept: Tensor) -> list[Tensor]:
        """``kept`` in pieces like the tensors."""
        return [kept[start : start + t.numel()] for start, t in zip(self._starts, self.bucket.tensors, strict=True)]

    def _follow(self) -> None:
        if self.bucket.follow():
            addresses = [t.data_ptr() for t in self.bucket.tensors]
            self._rows[:, 0] = torch.tensor(addresses, dtype=torch.int64, device=self._rows.device)
            self._aligned = self._are_aligned()

    def _are_aligned(self) -> bool:
        return all(t.data_ptr() % 16 == 0 for t in self.bucket.tensors)

    def _launch(self, kernel, *arguments) -> None:
        with torch.cuda.device_of(self._rows):  # Triton launches on the current device
            kernel[(len(self._owners),)](self._rows, self._owners, *arguments, self._aligned, BLOCK, num_warps=WARPS)

    def _changed(self) -> None:
        """Tell autograd, which must refuse what it saved before."""
        torch.autograd.graph.increment_version(self.bucket.tensors)


def _level(level: float | Tensor, device: torch.device) -> float | Tensor:
    """A tensor on the device is read by the kernel, so that it can change under a CUDA graph."""
    return level if isinstance(level, Tensor) and level.device == device else float(level)


# --- kernels --------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["draw"])
def _keep(rows, owners, kept, sums, seed, draw, DISTRIBUTION: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    _row, weights, copy, numel, at, stop, block = _piece(rows, owners, kept, ALIGNED, BLOCK)
    key = tl.load(seed)
    w_squares = tl.zeros([BLOCK], tl.float32)
    z_squares = tl.zeros([BLOCK // 4], tl.float32)
    fours = 4 * tl.arange(0, BLOCK // 4)
    while at < stop:
        left = tl.minimum(numel - at, BLOCK).to(tl.int32)
        w = _read(weights + at, left, BLOCK)
        _write(copy + at, w, left, BLOCK)
        if DISTRIBUTION != "gaussian":
            w = w.to(tl.float32)
            w_squares += w * w
        if DISTRIBUTION == "sphere":
            a, b, c, d = _fours(key, draw, block, DISTRIBUTION, BLOCK)
            z_squares += tl.where(fours < left, a * a, 0.0) + tl.where(fours + 1 < left, b * b, 0.0)
            z_squares += tl.where(fours + 2 < left, c * c, 0.0) + tl.where(fours + 3 < left, d * d, 0.0)
        at += BLOCK
        block += 1
    if DISTRIBUTION != "gaussian":
        tl.store(sums + tl.program_id(0), tl.sum(w_squares))
    if DISTRIBUTION == "sphere":
        tl.store(sums + tl.num_programs(0) + tl.program_id(0), tl.sum(z_squares))


@triton.jit(do_not_specialize=["draw"])
def _plus(
    rows,
    owners,
    kept,
    sums,
    scales,
    seed,
    draw,
    levels,
    PIECES: tl.constexpr,
    DISTRIBUTION: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, weights, copy, numel, at, stop, block = _piece(rows, owners, kept, ALIGNED, BLOCK)
    scale = _scale(row, numel, sums, levels, PIECES, DISTRIBUTION)
    if at == 0:
        tl.store(scales + tl.load(owners + tl.program_id(0)), scale)
    _shift(weights, copy, numel, at, stop, block, scale, seed, draw, DISTRIBUTION, BLOCK)


@triton.jit(do_not_specialize=["draw"])
def _minus(
    rows, owners, kept, scales, seed, draw, DISTRIBUTION: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr
):
    _row, weights, copy, numel, at, stop, block = _piece(rows, owners, kept, ALIGNED, BLOCK)
    scale = tl.load(scales + tl.load(owners + tl.program_id(0)))
    _shift(weights, copy, numel, at, stop, block, -scale, seed, draw, DISTRIBUTION, BLOCK)


@triton.jit(do_not_specialize=["draw"])
def _both(
    rows,
    owners,
    kept,
    other,
    sums,
    seed,
    draw,
    levels,
    PIECES: tl.constexpr,
    DISTRIBUTION: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """kept ← kept + n, other ← kept − n."""
    row, _weights, copy, numel, at, stop, block = _piece(rows, owners, kept, ALIGNED, BLOCK)
    across = other + tl.multiple_of(tl.load(row + 2), 4)
    scale = _scale(row, numel, sums, levels, PIECES, DISTRIBUTION)
    key = tl.load(seed)
    while at < stop:
        left = tl.minimum(numel - at, BLOCK).to(tl.int32)
        w = _read(copy + at, left, BLOCK).to(tl.float32)
        z = _noise(key, draw, block, DISTRIBUTION, BLOCK)
        _write(copy + at, w + scale * z, left, BLOCK)
        _write(across + at, w + (-scale) * z, left, BLOCK)
        at += BLOCK
        block += 1


@triton.jit
def _scale(row, numel, sums, levels, PIECES: tl.constexpr, DISTRIBUTION: tl.constexpr):
    """What z is multiplied with in this tensor, from what ``_keep`` measured."""
    group = tl.load(row + 7)
    scale = 0.0
    for i in tl.static_range(len(levels)):
        level = levels[i]
        if level.dtype.is_ptr():
            level = tl.load(level)
        scale = tl.where(group == i, level.to(tl.float32), scale)
    if DISTRIBUTION != "gaussian":
        first = tl.load(row + 3)
        others = tl.arange(0, PIECES)
        there = others < tl.load(row + 4)
        squares = tl.sum(tl.load(sums + first + others, there, 0.0))
        if DISTRIBUTION == "sphere":
            drawn = tl.sum(tl.load(sums + tl.num_programs(0) + first + others, there, 0.0))
            scale *= tl.sqrt(squares / tl.maximum(drawn, 1e-30))
        else:
            scale *= tl.sqrt(squares / numel.to(tl.float32))
    return scale


@triton.jit
def _back(rows, owners, kept, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    _row, weights, copy, numel, at, stop, _block = _piece(rows, owners, kept, ALIGNED, BLOCK)
    while at < stop:
        left = tl.minimum(numel - at, BLOCK).to(tl.int32)
        _write(weights + at, _read(copy + at, left, BLOCK), left, BLOCK)
        at += BLOCK


@triton.jit
def _shift(weights, copy, numel, at, stop, block, scale, seed, draw, DISTRIBUTION: tl.constexpr, BLOCK: tl.constexpr):
    """w ← kept + scale · z."""
    key = tl.load(seed)
    while at < stop:
        left = tl.minimum(numel - at, BLOCK).to(tl.int32)
        w = _read(copy + at, left, BLOCK).to(tl.float32) + scale * _noise(key, draw, block, DISTRIBUTION, BLOCK)
        _write(weights + at, w, left, BLOCK)
        at += BLOCK
        block += 1


@triton.jit
def _piece(rows, owners, kept, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """This program's part of a tensor: from element ``at`` to ``stop``, the first block being number ``block``."""
    program = tl.program_id(0)
    row = rows + tl.load(owners + program) * 8
    weights = tl.load(row).to(kept.dtype)
    if ALIGNED:  # a thread then reads four elements at once
        weights = tl.multiple_of(weights, 4 * kept.dtype.element_ty.primitive_bitwidth // 8)
    numel = tl.load(row + 1)
    copy = kept + tl.multiple_of(tl.load(row + 2), 4)
    span = tl.load(row + 5)
    begin = (program - tl.load(row + 3)) * span
    stop = tl.minimum(numel, (begin + span) * BLOCK)
    block = (tl.load(row + 6) + begin).to(tl.int32)
    return row, weights, copy, numel, begin * BLOCK, stop, block


@triton.jit
def _read(pointer, left, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    # a mask would make a thread read its elements one by one
    return tl.load(pointer + places) if left == BLOCK else tl.load(pointer + places, places < left, 0.0)


@triton.jit
def _write(pointer, w, left, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    if left == BLOCK:
        tl.store(pointer + places, w)
    else:
        tl.store(pointer + places, w, places < left)


@triton.jit
def _noise(key, draw, block, DISTRIBUTION: tl.constexpr, BLOCK: tl.constexpr):
    """z for one block."""
    a, b, c, d = _fours(key, draw, block, DISTRIBUTION, BLOCK)
    return tl.join(tl.join(a, c), tl.join(b, d)).reshape(BLOCK)


@triton.jit
def _fours(key, draw, block, DISTRIBUTION: tl.constexpr, BLOCK: tl.constexpr):
    """The first, second, third and fourth of every four elements: what one call of Philox gives."""
    a, b, c, d = tl.philox(key, tl.arange(0, BLOCK // 4), block, draw, 0)
    if DISTRIBUTION == "sign":
        a, b, c, d = _sign(a), _sign(b), _sign(c), _sign(d)
    elif DISTRIBUTION == "uniform":
        a, b, c, d = _uniform(a), _uniform(b), _uniform(c), _uniform(d)
    else:
        a, b = _normals(a, b)
        c, d = _normals(c, d)
    return a, b, c, d


@triton.jit
def _sign(bits):
    return tl.where((bits & 1) == 0, 1.0, -1.0)


@triton.jit
def _uniform(bits):
    return bits.to(tl.int32, bitcast=True).to(tl.float32) * 8.0654898e-10  # just below √3 · 2⁻³¹, so that |z| < √3


@triton.jit
def _normals(a, b):
    """Box-Muller: ``a`` gives the radius and ``b`` the angle, one of four quadrants around a short range.

    There sine and cosine are polynomials, good to single precision; tl.sin and tl.cos cost more than all the rest.
    """
    radius = tl.sqrt(-1.3862943611198906 * tl.log2(a.to(tl.float32) * 2.3283064365386963e-10 + 1.1641532182693481e-10))
    t = (b << 2).to(tl.int32, bitcast=True).to(tl.float32) * 4.6566128730773926e-10  # angle π/4 · t, t in [−1, 1]
    t2 = t * t
    cosine = ((-3.1888051e-4 * t2 + 1.5849914e-2) * t2 - 3.0842426e-1) * t2 + 1.0
    sine = (((-3.5954508e-5 * t2 + 2.4900071e-3) * t2 - 8.0745436e-2) * t2 + 7.8539819e-1) * t
    swap = ((b >> 30) & 1) == 0
    radius = tl.where((b >> 31) == 0, radius, -radius)
    return radius * tl.where(swap, sine, cosine), radius * tl.where(swap, cosine, sine)
