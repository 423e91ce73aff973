"""Parts of many images scaled to one size at once, on the device, by pillow's bilinear filter.

Pillow rounds to bytes between the two directions; from version 13 on it begins with the cheaper one, here it is always
across. So a byte may differ from pillow's by one.
"""

from __future__ import annotations

import torch
from torch import Tensor

ONE = 1 << 22  # pillow's weights are whole numbers of this part
AT_ONCE = 1 << 25  # numbers that one product may read


def cut(images: Tensor, parts: Tensor, flips: Tensor, size: int) -> Tensor:
    """Of ``images`` (B, H, W, C, bytes) the ``parts`` (B, 4: left, top, right, bottom), mirrored: (B, size, size, C).

    All products are of whole numbers far below 2⁵³, so that no order of adding them matters.
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
    rows = _bytes(across @ columns).view(batch, size, height, channels)
    out = _bytes(down @ rows.transpose(1, 2).reshape(batch, height, -1))
    return out.view(batch, size, size, channels).to(torch.uint8)


def _weights(start: Tensor, end: Tensor, length: int, size: int) -> Tensor:
    """(B, size, length): how much each pixel from ``start`` to ``end`` adds to each of ``size``; triangles."""
    scale = ((end - start).double() / size)[:, None, None]
    middles = start[:, None, None] + (torch.arange(size, device=start.device)[:, None] + 0.5) * scale
    pixels = torch.arange(length, device=start.device)
    inside = (pixels >= start[:, None, None]) & (pixels < end[:, None, None])
    near = (1 - (pixels + 0.5 - middles).abs() / scale.clamp_min(1)).clamp_min(0) * inside
    return (near / near.sum(2, keepdim=True) * ONE + 0.5).floor()


def _bytes(sums: Tensor) -> Tensor:
    return ((sums + ONE // 2) / ONE).floor().clamp(0, 255)
