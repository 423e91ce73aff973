"""Crop, flip and normalise a whole batch at once, on the device it is trained on, straight from bytes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def augmented(images: Tensor, table: Tensor, chosen: Tensor, moves: Tensor, flips: Tensor) -> Tensor:
    """The ``chosen`` of ``images`` (N, H, W, C, bytes), moved and mirrored: (B, C, H, W), channels last in memory.

    ``moves`` (2, B) says how many pixels down and to the right the window lies; what it shows beyond the image is zero.
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
    """Bytes (B, H, W, C) to numbers (B, C, H, W), channels last in memory."""
    return _looked_up(images, table).permute(0, 3, 1, 2)


def normal_table(mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """What each byte becomes in each channel, (C, 256): looked up rather than computed, it is the same everywhere."""
    byte = torch.arange(256, dtype=torch.float64)
    return torch.stack([(byte - m) / s for m, s in zip(mean, std, strict=True)])


def mean_and_std(images: Tensor) -> tuple[list[float], list[float]]:
    """Of the bytes (N, C, H, W), by channel, from exact integer sums."""
    mean, std = [], []
    for channel in images.unbind(1):
        counts = list(enumerate(torch.bincount(channel.flatten(), minlength=256).tolist()))
        pixels = channel.numel()
        total, squares = sum(n * byte for byte, n in counts), sum(n * byte**2 for byte, n in counts)
        mean.append(total / pixels)
        std.append(((squares * pixels - total**2) / pixels**2) ** 0.5 or 1.0)  # a channel of one colour
    return mean, std


def _looked_up(images: Tensor, table: Tensor) -> Tensor:
    return table[torch.arange(len(table), device=table.device), images.int()]
