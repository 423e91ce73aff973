"""Random images that can be learned, for trying a training out: no files, no network."""

from __future__ import annotations

import torch

from ssgd.lab.data.images import ImageSet


def fake_images(train: int = 512, test: int = 128, classes: int = 10) -> ImageSet:
    """Images of 3×32×32: a pattern for each class, buried in noise."""
    numbers = torch.Generator().manual_seed(0)
    patterns = torch.randn(classes, 3, 8, 8, generator=numbers).repeat_interleave(4, 2).repeat_interleave(4, 3)
    labels = torch.randint(classes, (train + test,), generator=numbers)
    noise = torch.randn(train + test, 3, 32, 32, generator=numbers)
    images = (128 + 24 * patterns[labels] + 40 * noise).clamp(0, 255).byte()
    return ImageSet("fake", images[:train], labels[:train], images[train:], labels[train:], classes)
