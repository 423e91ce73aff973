"""Features of mean 0 and variance 1: by speaker, or by all that is trained on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

NORMALISED = ("speaker", "global", "none")
LEAST = 1e-3  # the smallest deviation divided by: a feature that does not move stays where it is


def by_group(groups: Sequence[str], stretches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Shift and scale (utterances, features): for each utterance those of all frames of its group."""
    moments: dict[str, Moments] = {}
    for group, frames in zip(groups, stretches, strict=True):
        moments.setdefault(group, Moments(frames.shape[1])).add(frames)
    found = {group: gathered.shift_and_scale() for group, gathered in moments.items()}
    shifts, scales = zip(*(found[group] for group in groups), strict=True)
    return torch.stack(shifts), torch.stack(scales)


class Moments:
    """The mean and deviation of frames, gathered utterance by utterance."""

    def __init__(self, features: int) -> None:
        self._count = 0
        self._sum, self._squares = torch.zeros(2, features, dtype=torch.float64)

    def add(self, frames: Tensor) -> None:
        frames = frames.double()
        self._count += len(frames)
        self._sum += frames.sum(0)
        self._squares += frames.square().sum(0)

    def shift_and_scale(self) -> tuple[Tensor, Tensor]:
        """What to subtract, and then to multiply by."""
        mean = self._sum / self._count
        variance = (self._squares / self._count - mean.square()).clamp(min=LEAST**2)
        return mean.float(), variance.rsqrt().float()
