"""Crop, flip and normalise whole sets of images at once, on the device they are trained on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

PADDING = 4
CHUNK = 5000  # images gathered at once, to bound the index tensors


class Augmented:
    """Bytes in, normalised images out: each epoch in a new order, cropped from a padded image and flipped at random.

    Mean and deviation are those of the training set, by channel. All randomness comes from the generator given.
    """

    def __init__(self, images: Tensor, labels: Tensor, dtype: torch.dtype = torch.float32) -> None:
        scaled = images.float().div_(255)
        self.mean = scaled.mean((0, 2, 3), keepdim=True)
        self.std = scaled.std((0, 2, 3), keepdim=True)
        self.labels = labels
        self.dtype = dtype
        self._padded = F.pad(self.normalised(images), (PADDING,) * 4).permute(0, 2, 3, 1).contiguous()

    def normalised(self, images: Tensor) -> Tensor:
        return ((images.float().div(255) - self.mean) / self.std).to(self.dtype)

    def epoch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """All images once, shuffled and augmented, channels last in memory."""
        count, height, width = (
            len(self.labels),
            self._padded.shape[1] - 2 * PADDING,
            self._padded.shape[2] - 2 * PADDING,
        )
        device = self._padded.device
        order = torch.randperm(count, device=device, generator=generator)
        top, left = (torch.randint(2 * PADDING + 1, (count, 1), device=device, generator=generator) for _ in range(2))
        flipped = torch.randint(2, (count, 1), device=device, generator=generator).bool()
        rows = top + torch.arange(height, device=device)
        columns = torch.where(
            flipped, left + torch.arange(width - 1, -1, -1, device=device), left + torch.arange(width, device=device)
        )
        parts = [
            self._padded[
                order[i : i + CHUNK, None, None], rows[i : i + CHUNK, :, None], columns[i : i + CHUNK, None, :]
            ]
            for i in range(0, count, CHUNK)
        ]
        return torch.cat(parts).permute(0, 3, 1, 2), self.labels[order]
