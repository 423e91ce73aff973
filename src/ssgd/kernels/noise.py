"""All tensors of a bucket moved in one launch, by Triton kernels that draw the noise again wherever they need it.

Noise is a function of the numbers (seed, step, rank), the draw, the tensor's position and the element's index in it, by
a counter-based generator, so it is never stored. In a tensor that is dense in another order than row by row, such as
channels_last, elements are counted as they lie in memory.
"""
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

from ..core.moving import Bucket, Chosen, drop_stale_copies, make_buckets
from ..core.noise import DISTRIBUTIONS, Distribution, mix
from ..core.random_state import capturing
from ..core.weights import Level, NoisyWeights, Numbers, Values

DISTRIBUTIONS_SERVED = tuple(DISTRIBUTIONS[name] for name in ("sphere", "sign", "uniform", "gaussian"))
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
BLOCK = 2048  # elements at a time: 8 for each thread
WARPS = 8
PIECES = 512  # programs a tensor at most, so that each of them can add up what all have measured


def check(device: torch.device) -> None:
    """Build and run a kernel; raises what Triton raises where it cannot."""
    (bucket,) = make_buckets([Chosen(torch.zeros(1, device=device), 0, 0)])
    kernels = BucketKernels(bucket, DISTRIBUTIONS_SERVED[0])
    kernels.shift(kernels.room(), 0, torch.zeros((), dtype=torch.int64, device=device), 0)


def serve(chosen: Sequence[Chosen], distribution: Distribution) -> bool:
    """Say whether the kernels can move these tensors under this distribution."""
    return distribution in DISTRIBUTIONS_SERVED and all(
        bucket.sharding is None and t.dtype in DTYPES and _is_dense(t)
        for bucket in make_buckets(chosen)
        for t in bucket.tensors
    )


class FusedWeights(NoisyWeights):
    """The same by kernels: n is drawn again wherever it is needed, so one copy of w is all that is held."""

    stream = "philox"

    def __init__(self, chosen: Sequence[Chosen], distribution: Distribution) -> None:
        super().__init__(chosen, distribution)
        self._kernels = [BucketKernels(bucket, distribution) for bucket in self.buckets]
        self._flat: list[Tensor] = []  # w, all tensors of a bucket in a row
        self._seeds: list[Tensor] = []
        self._all_seeds: dict[tuple[torch.device, int], Tensor] = {}  # on a device, and for a rank

    @torch.no_grad()
    def move(self, sign: int, numbers: Numbers, draw: int, levels: Sequence[Level], again: bool = False) -> None:
        if self._noise_of != (numbers, draw):
            self._measure(numbers, draw, levels)
        else:
            self._flat = [kernels.copy() for kernels in self._kernels]
        self.kept = [kernels.cut(flat) for kernels, flat in zip(self._kernels, self._flat, strict=True)]
        self._noise_of = numbers, draw
        self._shift(sign, draw)
        if not again:
            self.release()

    @torch.no_grad()
    def restore(self) -> None:
        if self.kept:
            self._shift(0)
            self.kept, self._flat = [], []

    @torch.no_grad()
    def both(
        self, numbers: Numbers, levels: Sequence[Level], out: Sequence[Mapping[Tensor, Tensor]] | None
    ) -> tuple[Values, Values]:
        found: tuple[Values, Values] = ({}, {})
        self._measure(numbers, 0, levels)
        for kernels, flat, seed in zip(self._kernels, self._flat, self._seeds, strict=True):
            bucket = kernels.bucket
            for values, sign, given in zip(found, (1, -1), out or (None, None), strict=True):
                if given is None:
                    target = torch.empty_like(flat) if sign > 0 else flat  # the last one in the place of w
                    kernels.shift(flat, sign, seed, 0, target)
                    values.update(zip(bucket.parameters, kernels.cut(target), strict=True))
                else:
                    kernels.shift(flat, sign, seed, 0, [given[p] for p in bucket.parameters])
                    values.update({p: given[p] for p in bucket.parameters})
        self._flat = []
        return found

    def seed(self, numbers: Numbers, draws: int) -> None:
        for bucket in self.buckets:
            self._seed_of(bucket, numbers).fill_(mix(*numbers))

    def register(self, graph: torch.cuda.CUDAGraph) -> None:
        """A graph reads the seeds from memory."""

    def _measure(self, numbers: Numbers, draw: int, levels: Sequence[Level]) -> None:
        """Copy w, measure it and the noise to come, and scale the noise."""
        self._seeds = [self._seed_of(bucket, numbers) for bucket in self.buckets]
        if not capturing():
            for seed in self._seeds:
                seed.fill_(mix(*numbers))
        self._flat = []
        for kernels, seed in zip(self._kernels, self._seeds, strict=True):
            self._flat.append(kernels.keep(seed, draw))
            kernels.scale(levels)

    def _shift(self, sign: int, draw: int = 0) -> None:
        for kernels, flat, seed in zip(self._kernels, self._flat, self._seeds, strict=True):
            kernels.shift(flat, sign, seed, draw)
        drop_stale_copies()

    def _seed_of(self, bucket: Bucket, numbers: Numbers) -> Tensor:
        """A number on the device: a CUDA graph's replay reads what was put there before it."""
        key = bucket.tensors[0].device, numbers[2]
        if key not in self._all_seeds:
            with torch.inference_mode(False):
                self._all_seeds[key] = torch.zeros((), dtype=torch.int64, device=key[0])
        return self._all_seeds[key]


class BucketKernels:
    """The operations on a bucket's tensors, one launch each."""

    def __init__(self, bucket: Bucket, distribution: Distribution) -> None:
        self.bucket = bucket
        self.distribution = distribution
        self._addresses = [t.data_ptr() for t in bucket.tensors]
        first = bucket.tensors[0]
        self._groups = sorted(set(bucket.groups))
        self._starts: list[int] = []
        # For each tensor: address, elements, where its copy begins, its first program, how many there are, blocks of
        # each, its position among all parameters, and its group's place among the levels. For each program: its tensor.
        rows: list[list[int]] = []
        owners: list[int] = []
        unit = 16 // first.element_size()  # a tensor's copy begins at a multiple of 16 bytes
        self.size = 0
        for tensor, group, position in zip(bucket.tensors, bucket.groups, bucket.positions, strict=True):
            blocks = triton.cdiv(tensor.numel(), BLOCK)
            span = max(triton.cdiv(blocks, PIECES), 1)
            pieces = triton.cdiv(blocks, span)
            owners += [len(rows)] * pieces
            level = self._groups.index(group)
            address, numel = tensor.data_ptr(), tensor.numel()
            rows.append([address, numel, self.size, len(owners) - pieces, pieces, span, position, level])
            self._starts.append(self.size)
            self.size += triton.cdiv(numel, unit) * unit
        self._rows = torch.tensor(rows, dtype=torch.int64, device=first.device)
        self._aligned = _are_aligned(bucket.tensors)
        self._elsewhere: dict[tuple[int, ...], Tensor] = {}  # rows for tensors of the caller's
        self._owners = torch.tensor(owners, dtype=torch.int32, device=first.device)
        self._sums = torch.zeros(2, len(owners), device=first.device)  # of w² and of z², for each program
        self._scales = torch.zeros(len(rows), device=first.device)  # what z is multiplied with, for each tensor

    def room(self) -> Tensor:
        """Memory for a copy of all tensors in a row."""
        first = self.bucket.tensors[0]
        return torch.empty(self.size, dtype=first.dtype, device=first.device)

    def copy(self) -> Tensor:
        """A copy of w, all tensors in a row."""
        self._follow()
        room = self.room()
        torch._foreach_copy_(self.cut(room), self.bucket.tensors)
        return room

    def keep(self, seed: Tensor, draw: int) -> Tensor:
        """A copy of w, made while w and the noise to come are measured."""
        self._follow()
        kept = self.room()
        self._launch(_keep, self._rows, kept, self._sums, seed, draw, self.distribution.name, self._aligned, BLOCK)
        return kept

    def scale(self, levels: Sequence[Level]) -> None:
        """Make what z is multiplied with from what keep() has measured; ``levels`` has one for each group."""
        given = tuple(_level(levels[group], self._rows.device) for group in self._groups)
        with torch.cuda.device_of(self._rows):
            grid = (len(self._scales),)
            _scale[grid](
                self._rows, self._sums, self._scales, self._sums.shape[1], given, PIECES, self.distribution.name
            )

    def shift(self, kept: Tensor, sign: int, seed: Tensor, draw: int, out: Tensor | list[Tensor] | None = None) -> None:
        """Write kept + sign · n to the weights; or to ``out``, in a row or to the caller's aliases."""
        if out is None:
            self._follow()
        rows, aligned, changed = self._rows, self._aligned, self.bucket.tensors
        if isinstance(out, list):
            rows, aligned, changed = self._rows_of(out), _are_aligned(out), out
        in_a_row = isinstance(out, Tensor)
        target = out if in_a_row else kept
        name = self.distribution.name
        self._launch(_shift, rows, kept, target, self._scales, seed, draw, sign, in_a_row, name, aligned, BLOCK)
        if not in_a_row:  # tell autograd, which must refuse what it saved before
            torch.autograd.graph.increment_version(changed)

    def cut(self, kept: Tensor) -> list[Tensor]:
        """``kept`` in pieces like the tensors."""
        pairs = zip(self._starts, self.bucket.tensors, strict=True)
        return [kept.as_strided(t.shape, t.stride(), start) for start, t in pairs]

    def _follow(self) -> None:
        """Take note of tensors that have got other memory, as an LSTM's weights do."""
        tensors = self.bucket.tensors
        addresses = [t.data_ptr() for t in tensors]
        if addresses != self._addresses:
            self._addresses, self._aligned = addresses, _are_aligned(tensors)
            self._rows[:, 0] = torch.tensor(addresses, dtype=torch.int64, device=self._rows.device)

    def _rows_of(self, tensors: list[Tensor]) -> Tensor:
        """The same rows with other addresses; kept, since a CUDA graph cannot make them."""
        addresses = tuple(t.data_ptr() for t in tensors)
        if addresses not in self._elsewhere:
            rows = self._rows.clone()
            rows[:, 0] = torch.tensor(addresses, dtype=torch.int64, device=rows.device)
            self._elsewhere[addresses] = rows
        return self._elsewhere[addresses]

    def _launch(self, kernel, rows, *arguments) -> None:
        with torch.cuda.device_of(rows):  # Triton launches on the current device
            kernel[(len(self._owners),)](rows, self._owners, *arguments, num_warps=WARPS)


def _is_dense(tensor: Tensor) -> bool:
    """Whether its elements lie side by side, in whatever order."""
    reach = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.is_contiguous() or reach + 1 == tensor.numel()


def _are_aligned(tensors: Sequence[Tensor]) -> bool:
    return all(t.data_ptr() % 16 == 0 for t in tensors)


def _level(level: Level, device: torch.device) -> Level:
    """A tensor on the device is read by the kernel, so that it can change under a CUDA graph."""
    return level if isinstance(level, Tensor) and level.device == device else float(level)


# --- kernels --------------------------------------------------------------------------------------------------------


@triton.jit(do_not_specialize=["draw"])
def _keep(rows, owners, kept, sums, seed, draw, DISTRIBUTION: tl.constexpr, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    row, weights, copy, numel, at, stop = _piece(rows, owners, kept, ALIGNED, BLOCK)
    key = tl.load(seed)
    position = tl.load(row + 6).to(tl.int32)
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
            a, b, c, d = _fours(key, draw, position, at, DISTRIBUTION, BLOCK)
            z_squares += tl.where(fours < left, a * a, 0.0) + tl.where(fours + 1 < left, b * b, 0.0)
            z_squares += tl.where(fours + 2 < left, c * c, 0.0) + tl.where(fours + 3 < left, d * d, 0.0)
        at += BLOCK
    if DISTRIBUTION != "gaussian":
        tl.store(sums + tl.program_id(0), tl.sum(w_squares))
    if DISTRIBUTION == "sphere":
        tl.store(sums + tl.num_programs(0) + tl.program_id(0), tl.sum(z_squares))


@triton.jit
def _scale(rows, sums, scales, programs, levels, PIECES: tl.constexpr, DISTRIBUTION: tl.constexpr):
    """The factor of z in a tensor, from what ``_keep`` has measured; a program for each tensor."""
    row = rows + tl.program_id(0) * 8
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
            drawn = tl.sum(tl.load(sums + programs + first + others, there, 0.0))
            scale *= tl.sqrt(squares / tl.maximum(drawn, 1e-30))
        else:
            scale *= tl.sqrt(squares / tl.maximum(tl.load(row + 1), 1).to(tl.float32))
    tl.store(scales + tl.program_id(0), scale)


@triton.jit(do_not_specialize=["draw"])
def _shift(
    rows,
    owners,
    kept,
    out,
    scales,
    seed,
    draw,
    SIGN: tl.constexpr,
    IN_A_ROW: tl.constexpr,
    DISTRIBUTION: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out ← kept + SIGN · scale · z."""
    row, target, copy, numel, at, stop = _piece(rows, owners, kept, ALIGNED, BLOCK)
    if IN_A_ROW:
        target = out + tl.multiple_of(tl.load(row + 2), 4)
    key = tl.load(seed)
    position = tl.load(row + 6).to(tl.int32)
    scale = SIGN * tl.load(scales + tl.load(owners + tl.program_id(0)))
    while at < stop:
        left = tl.minimum(numel - at, BLOCK).to(tl.int32)
        w = _read(copy + at, left, BLOCK)
        if SIGN != 0:
            w = w.to(tl.float32) + scale * _noise(key, draw, position, at, DISTRIBUTION, BLOCK)
        _write(target + at, w, left, BLOCK)
        at += BLOCK


@triton.jit
def _piece(rows, owners, kept, ALIGNED: tl.constexpr, BLOCK: tl.constexpr):
    """This program's part of a tensor: from element ``at`` to ``stop``."""
    program = tl.program_id(0)
    row = rows + tl.load(owners + program) * 8
    weights = tl.load(row).to(kept.dtype)
    if ALIGNED:  # a thread then reads four elements at once
        weights = tl.multiple_of(weights, 4 * kept.dtype.element_ty.primitive_bitwidth // 8)
    numel = tl.load(row + 1)
    copy = kept + tl.multiple_of(tl.load(row + 2), 4)
    span = tl.load(row + 5)
    begin = (program - tl.load(row + 3)) * span
    return row, weights, copy, numel, begin * BLOCK, tl.minimum(numel, (begin + span) * BLOCK)


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
def _noise(key, draw, position, at, DISTRIBUTION: tl.constexpr, BLOCK: tl.constexpr):
    """z for the block of elements that begins at ``at``."""
    a, b, c, d = _fours(key, draw, position, at, DISTRIBUTION, BLOCK)
    return tl.join(tl.join(a, c), tl.join(b, d)).reshape(BLOCK)


@triton.jit
def _fours(key, draw, position, at, DISTRIBUTION: tl.constexpr, BLOCK: tl.constexpr):
    """The first, second, third and fourth of every four elements: what one call of Philox gives."""
    fours = (at // 4).to(tl.int32) + tl.arange(0, BLOCK // 4)
    a, b, c, d = tl.philox(key, fours, draw, position, 0)
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
