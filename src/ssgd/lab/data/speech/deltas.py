"""Differences in time: how features move."""

from __future__ import annotations

import torch
from torch import Tensor


def with_deltas(frames: Tensor, rounds: int, reach: int = 2) -> Tensor:
    """Frames (time, features) with ``rounds`` of deltas beside them: slopes over ``reach`` frames to either side.

    The first and the last frame are repeated at the ends.
    """
    parts = [frames]
    for _ in range(rounds):
        parts.append(_slopes(parts[-1], reach))
    return torch.cat(parts, 1)


def _slopes(frames: Tensor, reach: int) -> Tensor:
    time = torch.arange(len(frames))
    last = len(frames) - 1
    rise = sum(k * (frames[(time + k).clamp(max=last)] - frames[(time - k).clamp(min=0)]) for k in range(1, reach + 1))
    return torch.as_tensor(rise) / (2 * sum(k * k for k in range(1, reach + 1)))
