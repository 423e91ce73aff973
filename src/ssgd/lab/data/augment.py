"""Pixels of many images at once, on the device that trains: bytes cut, scaled, moved, flipped and normalised."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

ONE = 1 << 22  # pillow's weights are whole numbers of this part
AT_ONCE = 1 << 25  # numbers that one product may read


def augmented(images: Tensor, table: Tensor, chosen: Tensor, moves: Tensor, flips: Tensor) -> Tensor:
    """Returns the ``chosen`` of ``images`` (N, H, W, C, bytes), moved and mirrored: (B, C, H, W), channels last.

    ``moves`` (2, B) says how many pixels down and to the right the window lies; beyond the image it shows zeros.
    """
    height, width = images.shape[1:3]
    rows = torch.arange(height, device=images.device) + moves[0, :, None]
    columns = torch.arange(width, device=images.device)
    columns = torch.where(flips[:, None], width - 1 - columns, columns) + moves[1, :, None]
    inside = ((rows >= 0) & (rows < height))[:, :, None] & ((columns >= 0) & (columns < width))[:, None, :]
    pixels = images[
        chosen[:, None, None], rows.clamp(0, height - 1)[:, :, None], columns.clamp(0, width - 1)[:, None, :]
    ]
    return torch.where(inside[..., None], _looked_up(pixels, table), 0).permute(0, 3, 1, 2)


def normalised(images: Tensor, table: Tensor) -> Tensor:
    """Returns bytes (B, H, W, C) as the numbers of ``table``, (B, C, H, W), channels last in memory."""
    return _looked_up(images, table).permute(0, 3, 1, 2)


def normal_table(mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Returns the normalised value of each byte in each channel, (C, 256).

    Values are looked up in it rather than computed, so that they are the same bits on every device.
    """
    byte = torch.arange(256, dtype=torch.float64)
    return torch.stack([(byte - m) / s for m, s in zip(mean, std, strict=True)])


def mean_and_std(images: Tensor) -> tuple[list[float], list[float]]:
    """Returns mean and deviation of bytes (N, C, H, W) by channel, from exact integer sums."""
    mean, std = [], []
    for channel in images.unbind(1):
        counts = list(enumerate(torch.bincount(channel.flatten(), minlength=256).tolist()))
        pixels = channel.numel()
        total, squares = sum(n * byte for byte, n in counts), sum(n * byte**2 for byte, n in counts)
        mean.append(total / pixels)
        std.append(((squares * pixels - total**2) / pixels**2) ** 0.5 or 1.0)  # 1 for a channel of one colour
    return mean, std


def cut(images: Tensor, parts: Tensor, flips: Tensor, size: int) -> Tensor:
    """Returns parts of ``images`` (B, H, W, C, bytes), scaled to one size by pillow's bilinear filter: (B, S, S, C).

    ``parts`` (B, 4) has left, top, right and bottom of each; those of ``flips`` are mirrored. Pillow rounds to bytes
    between the two directions, and from version 13 on it begins with the cheaper one; this function always scales
    across first, so that a byte may differ from pillow's by one. All products are of whole numbers far below 2⁵³, so
    the order of adding them does not matter.
    """
    count = max(1, AT_ONCE // images[0].numel())
    pieces = (slice(first, first + count) for first in range(0, len(images), count))
    return torch.cat([_cut(images[piece], parts[piece], flips[piece], size) for piece in pieces])


def _cut(images: Tensor, parts: Tensor, flips: Tensor, size: int) -> Tensor:
    batch, height, width, channels = images.shape
    left, top, right, bottom = parts.T
    across = _weights(left, right, width, size)
    across = torch.where(flips[:, None, None], across.flip(1), across)
    down = _weights(top, bottom, height, size)
    columns = images.permute(0, 2, 1, 3).reshape(batch, width, -1).double()
    rows = _rounded(across @ columns).view(batch, size, height, channels)
    out = _rounded(down @ rows.transpose(1, 2).reshape(batch, height, -1))
    return out.view(batch, size, size, channels).to(torch.uint8)


def _weights(start: Tensor, end: Tensor, length: int, size: int) -> Tensor:
    """Returns (B, size, length): how much each pixel from ``start`` to ``end`` adds to each of ``size``; triangles."""
    scale = ((end - start).double() / size)[:, None, None]
    middles = start[:, None, None] + (torch.arange(size, device=start.device)[:, None] + 0.5) * scale
    pixels = torch.arange(length, device=start.device)
    inside = (pixels >= start[:, None, None]) & (pixels < end[:, None, None])
    near = (1 - (pixels + 0.5 - middles).abs() / scale.clamp_min(1)).clamp_min(0) * inside
    return (near / near.sum(2, keepdim=True) * ONE + 0.5).floor()


def _rounded(sums: Tensor) -> Tensor:
    return ((sums + ONE // 2) / ONE).floor().clamp(0, 255)


def _looked_up(images: Tensor, table: Tensor) -> Tensor:
    return table[torch.arange(len(table), device=table.device), images.int()]
