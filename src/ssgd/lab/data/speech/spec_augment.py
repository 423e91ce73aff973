"""SpecAugment (Park et al., arXiv:1904.08779) without time warping: bands and stretches that are not heard."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class SpecAugment:
    """How many bands of features and stretches of time are set to the mean, and how wide they may be.

    A band has up to ``band`` of the features, a stretch up to ``stretch`` of the utterance's frames.
    """

    bands: int = 2
    band: float = 0.2
    stretches: int = 2
    stretch: float = 0.05

    def drawn(self, utterances: int, numbers: torch.Generator) -> Tensor:
        """Two numbers from 0 to 1 for every mask of every utterance: its width and its place."""
        return torch.rand(utterances, self.bands + self.stretches, 2, generator=numbers)

    def kept(self, drawn: Tensor, features: int, lengths: Tensor, frames: int) -> Tensor:
        """A mask (batch, features, frames) that is true where features are kept."""
        device = drawn.device
        sizes = torch.tensor(float(features), device=device).expand(len(drawn), self.bands)
        spans = lengths[:, None].expand(-1, self.stretches).float()
        bands = _free(drawn[:, : self.bands], sizes, self.band, features)
        stretches = _free(drawn[:, self.bands :], spans, self.stretch, frames)
        return bands[:, :, None] & stretches[:, None, :]


def _free(drawn: Tensor, sizes: Tensor, part: float, count: int) -> Tensor:
    """(batch, count): the places of a line that no mask covers."""
    widths = (drawn[..., 0] * (part * sizes + 1)).floor()
    starts = (drawn[..., 1] * (sizes - widths + 1)).floor()
    places = torch.arange(count, device=drawn.device)
    covered = (places >= starts[..., None]) & (places < (starts + widths)[..., None])
    return ~covered.any(1)
