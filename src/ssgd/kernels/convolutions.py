"""3×3 convolutions of 16-bit images with few channels, in Triton: forward, and both gradients, in a fixed order.

Pixels lie one after the other with their channels together (channels_last). A tile of pixels with its nine shifted
copies is the left side of a matrix product; the copies come from the L1 cache, so memory is read about once.
"""
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor


@dataclass(frozen=True)
class Tile:
    """What a program of the forward pass or of the input's gradient makes: ``pixels`` × ``channels``."""

    pixels: int
    channels: int
    taps: int  # taken in one matrix product: 1, 2, 4 or 8, and the ninth alone, or all 9
    warps: int


@dataclass(frozen=True)
class Split:
    """How the weight's gradient is shared out: ``parts`` sums over pixels, each for ``rows`` × ``columns`` taps."""

    parts: int
    pixels: int  # taken in one matrix product
    rows: int  # 1, or 4 for all three
    columns: int
    warps: int
    stages: int


# By inputs, outputs and stride; benchmarks/convolutions.py finds the fastest, without those that Triton 3.6 gets wrong.
FORWARD = {
    (3, 16, 1): Tile(128, 16, 9, 4),
    (16, 16, 1): Tile(256, 16, 1, 8),
    (32, 32, 1): Tile(128, 32, 4, 4),
    (64, 64, 1): Tile(64, 64, 4, 4),
    (16, 32, 2): Tile(128, 32, 4, 4),
    (32, 64, 2): Tile(64, 64, 4, 4),
}
GRAD_INPUT = {
    (16, 16, 1): Tile(256, 16, 1, 8),
    (32, 32, 1): Tile(128, 32, 8, 4),
    (64, 64, 1): Tile(64, 64, 4, 4),
    (16, 32, 2): Tile(128, 16, 4, 8),
    (32, 64, 2): Tile(128, 32, 1, 8),
}
GRAD_WEIGHT = {
    (3, 16, 1): Split(264, 256, 4, 4, 8, 1),
    (16, 16, 1): Split(132, 256, 4, 4, 4, 3),
    (32, 32, 1): Split(44, 128, 4, 1, 4, 3),
    (64, 64, 1): Split(14, 256, 1, 1, 4, 3),
    (16, 32, 2): Split(132, 64, 4, 4, 4, 3),
    (32, 64, 2): Split(44, 64, 4, 1, 4, 3),
}
ANY_TILE = Tile(64, 16, 1, 4)
ANY_SPLIT = Split(29, 64, 1, 1, 4, 1)


def forward(x: Tensor, weight: Tensor, out: Tensor, stride: int, plan: Tile | None = None) -> None:
    """``out`` ← the convolution of ``x``."""
    plan = plan or FORWARD.get(_kind(weight, stride), ANY_TILE)
    _launch_correlate(x, weight, out, stride, plan, backward=False)


def grad_input(gradient: Tensor, weight: Tensor, out: Tensor, stride: int, plan: Tile | None = None) -> None:
    """``out`` ← the gradient of the input, from that of the output."""
    plan = plan or GRAD_INPUT.get(_kind(weight, stride), ANY_TILE)
    _launch_correlate(gradient, weight, out, stride, plan, backward=True)


def grad_weight(gradient: Tensor, x: Tensor, out: Tensor, stride: int, plan: Split | None = None) -> None:
    """``out`` ← the gradient of the weight, which has the weight's layout."""
    plan = plan or GRAD_WEIGHT.get(_kind(out, stride), ANY_SPLIT)
    pixels = x.shape[0] * gradient.shape[2] * x.shape[3]
    steps = triton.cdiv(pixels, plan.parts * plan.pixels)
    parts = triton.cdiv(pixels, steps * plan.pixels)
    sums = torch.empty(parts, out.numel(), device=out.device)
    grid = (parts, 1 if plan.rows > 1 else 3, 1 if plan.columns > 1 else 3)
    with torch.cuda.device_of(x):
        _weight_sums[grid](
            x,
            gradient,
            sums,
            pixels,
            *_weight_strides(out),
            *(*x.shape[2:], *gradient.shape[2:], x.shape[1], gradient.shape[1], stride),
            *(steps, plan.pixels, plan.rows, plan.columns, triton.next_power_of_2(plan.rows * x.shape[1])),
            num_warps=plan.warps,
            num_stages=plan.stages,
            **_early(x),
        )
        rows = triton.next_power_of_2(parts)
        columns = min(max(4096 // rows, 16), 256, out.numel() & -out.numel())  # which divides the size
        _add_up[(out.numel() // columns,)](sums, out, parts, out.numel(), rows, columns, **_early(x))


def _launch_correlate(source: Tensor, weight: Tensor, out: Tensor, stride: int, plan: Tile, backward: bool) -> None:
    pixels = out.numel() // out.shape[1]
    outputs, inputs, taps = _weight_strides(weight)
    grid = (triton.cdiv(pixels, plan.pixels), out.shape[1] // plan.channels)
    with torch.cuda.device_of(out):  # Triton launches on the current device
        _correlate[grid](
            source,
            weight,
            out,
            pixels,
            *((outputs, inputs, taps) if backward else (inputs, outputs, taps)),
            *(*source.shape[2:], *out.shape[2:], source.shape[1], out.shape[1], stride, backward),
            *(plan.pixels, plan.channels, plan.taps, triton.next_power_of_2(plan.taps * source.shape[1])),
            num_warps=plan.warps,
            **_early(out),
        )


def _kind(weight: Tensor, stride: int) -> tuple[int, int, int]:
    return weight.shape[1], weight.shape[0], stride


def _weight_strides(weight: Tensor) -> tuple[int, int, int]:
    """Of the outputs, the inputs and the taps."""
    return weight.stride(0), weight.stride(1), weight.stride(3)


def _early(tensor: Tensor) -> dict[str, bool]:
    """From Hopper on a kernel may be set up while the one before still runs, and then waits for its results."""
    early = tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (9, 0)
    return {"EARLY": True, "launch_pdl": True} if early else {"EARLY": False}


# --- kernels --------------------------------------------------------------------------------------------------------


@triton.jit
def _correlate(
    source,
    weight,
    out,
    pixels,
    from_stride,
    to_stride,
    tap_stride,
    H: tl.constexpr,
    W: tl.constexpr,
    OUT_H: tl.constexpr,
    OUT_W: tl.constexpr,
    FROM: tl.constexpr,
    TO: tl.constexpr,
    STRIDE: tl.constexpr,
    BACKWARD: tl.constexpr,
    PIXELS: tl.constexpr,
    CHANNELS: tl.constexpr,
    TAPS: tl.constexpr,
    WIDTH: tl.constexpr,
    EARLY: tl.constexpr,
):
    """PIXELS × CHANNELS of the output: for each tap, the source at the shifted pixels times the tap's weights."""
    if EARLY:
        tl.extra.cuda.gdc_wait()
    pixel = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    pixel = tl.minimum(pixel, pixels - 1).to(tl.uint32)  # rather than masks: the last pixel is made several times
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    total = tl.zeros([PIXELS, CHANNELS], tl.float32)
    if 9 % TAPS > 0:  # asked for first, used last
        last = _shifted(source, pixel, 8, 1, FROM, H, W, OUT_H, OUT_W, FROM, STRIDE, BACKWARD)
        last_weights = _weights(weight, channel, 8, 1, FROM, from_stride, to_stride, tap_stride, FROM)
    for i in tl.static_range(9 // TAPS):
        some = _shifted(source, pixel, TAPS * i, TAPS, WIDTH, H, W, OUT_H, OUT_W, FROM, STRIDE, BACKWARD)
        some_weights = _weights(weight, channel, TAPS * i, TAPS, WIDTH, from_stride, to_stride, tap_stride, FROM)
        total = tl.dot(some, some_weights.to(some.dtype), total)
    if 9 % TAPS > 0:
        total = tl.dot(last, last_weights.to(last.dtype), total)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    to = out + pixel[:, None] * TO + channel[None, :]
    tl.store(to, total.to(out.dtype.element_ty))


@triton.jit
def _shifted(
    source,
    pixel,
    FIRST: tl.constexpr,
    TAPS: tl.constexpr,
    WIDTH: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OUT_H: tl.constexpr,
    OUT_W: tl.constexpr,
    FROM: tl.constexpr,
    STRIDE: tl.constexpr,
    BACKWARD: tl.constexpr,
):
    """For each pixel of the output what TAPS taps see of the source, side by side; zero where that is outside."""
    place = tl.arange(0, WIDTH)
    tap = FIRST + place // FROM
    right = tap % 3 - 1
    down = tap // 3 - 1
    if BACKWARD:
        right = -right
        down = -down
    x = pixel % OUT_W
    y = pixel // OUT_W % OUT_H
    image = pixel // (OUT_W * OUT_H)
    if BACKWARD and STRIDE > 1:
        x = x[:, None] + right[None, :]
        y = y[:, None] + down[None, :]
        there = _within(x, W * STRIDE) & _within(y, H * STRIDE) & (x % STRIDE == 0) & (y % STRIDE == 0)
        at = source + (place % FROM)[None, :] + ((image[:, None] * H + y // STRIDE) * W + x // STRIDE) * FROM
    else:
        from_pixel = pixel if STRIDE == 1 else (image * H + y * STRIDE) * W + x * STRIDE
        there = _within((x * STRIDE)[:, None] + right[None, :], W) & _within((y * STRIDE)[:, None] + down[None, :], H)
        at = source + ((down * W + right) * FROM + place % FROM)[None, :] + (from_pixel * FROM)[:, None]
    if WIDTH > TAPS * FROM:
        there &= (place < TAPS * FROM)[None, :]
    return tl.load(at, there, 0.0)


@triton.jit
def _within(place, SIZE: tl.constexpr):
    """0 ≤ place < SIZE, in one comparison."""
    return place.to(tl.uint32) < SIZE


@triton.jit
def _weights(
    weight,
    channel,
    FIRST: tl.constexpr,
    TAPS: tl.constexpr,
    WIDTH: tl.constexpr,
    from_stride,
    to_stride,
    tap_stride,
    FROM: tl.constexpr,
):
    """The weights of TAPS taps, one below the other."""
    place = tl.arange(0, WIDTH)
    rows = (FIRST + place // FROM) * tap_stride + place % FROM * from_stride
    at = weight + rows[:, None] + (channel * to_stride)[None, :]
    if WIDTH > TAPS * FROM:
        return tl.load(at, (place < TAPS * FROM)[:, None], 0.0)
    return tl.load(at)


@triton.jit
def _weight_sums(
    x,
    gradient,
    sums,
    pixels,
    output_stride,
    input_stride,
    tap_stride,
    H: tl.constexpr,
    W: tl.constexpr,
    OUT_H: tl.constexpr,
    OUT_W: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    STRIDE: tl.constexpr,
    STEPS: tl.constexpr,
    PIXELS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LEFT: tl.constexpr,
    EARLY: tl.constexpr,
):
    """The weight's gradient from STEPS × PIXELS pixels, for ROWS × COLUMNS taps.

    A tap is a shift between the two images. The input is shifted by the tap's row, the gradient by its column: all
    nine taps are one product of two times three images. A pixel here is a row of the output, a column of the input.
    """
    if EARLY:
        tl.extra.cuda.gdc_wait()
    input = tl.arange(0, LEFT)
    output = tl.arange(0, COLUMNS * OUTPUTS)
    row = tl.program_id(1) + input // INPUTS
    column = tl.program_id(2) + output // OUTPUTS
    input = input % INPUTS
    output = output % OUTPUTS
    down = tl.where(row < 3, row - 1, H)  # there is no fourth row or column: outside
    right = tl.where(column < 3, column - 1, -W * STRIDE)
    x_at = x + (down * W * INPUTS + input)[None, :]
    g_at = gradient + output[None, :]
    if STRIDE == 1:
        g_at -= (right * OUTPUTS)[None, :]
    total = tl.zeros([LEFT, COLUMNS * OUTPUTS], tl.float32)
    for step in range(STEPS):
        pixel = ((tl.program_id(0) * STEPS + step) * PIXELS + tl.arange(0, PIXELS)).to(tl.uint32)
        x_place = pixel % W
        line = pixel // W
        y = line % OUT_H * STRIDE
        x_pixel = pixel if STRIDE == 1 else (line // OUT_H * H + y) * W + x_place
        there = _within(y[:, None] + down[None, :], H) & (pixel < pixels)[:, None]
        seen = tl.load(x_at + (x_pixel * INPUTS)[:, None], there, 0.0)
        across = x_place[:, None] - right[None, :]
        there = _within(across, OUT_W * STRIDE) & (pixel < pixels)[:, None]
        if STRIDE == 1:
            came = tl.load(g_at + (pixel * OUTPUTS)[:, None], there, 0.0)
        else:
            there &= across % STRIDE == 0
            came = tl.load(g_at + (line[:, None] * OUT_W + across // STRIDE) * OUTPUTS, there, 0.0)
        total = tl.dot(tl.trans(seen), came, total)
    if EARLY:
        tl.extra.cuda.gdc_launch_dependents()
    rows = row * 3 * tap_stride + input * input_stride
    columns = column * tap_stride + output * output_stride
    to = sums + tl.program_id(0) * (9 * INPUTS * OUTPUTS) + rows[:, None] + columns[None, :]
    tl.store(to, total, (row < 3)[:, None] & (column < 3)[None, :])


@triton.jit
def _add_up(sums, out, parts, numel, PARTS: tl.constexpr, COLUMNS: tl.constexpr, EARLY: tl.constexpr):
    if EARLY:
        tl.extra.cuda.gdc_wait()
        tl.extra.cuda.gdc_launch_dependents()
    part = tl.arange(0, PARTS)
    place = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    found = tl.load(sums + part[:, None] * numel + place[None, :], (part < parts)[:, None], 0.0)
    tl.store(out + place, tl.sum(found, 0))
