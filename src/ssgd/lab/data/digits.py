"""The 1,797 handwritten digits of 8×8 pixels that come with the package (source and licence: digits.LICENSE.txt)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from ssgd.lab.data.images import ImageSet

LARGEST_PIXEL = 16


@dataclass(frozen=True)
class DigitSplit:
    """Images are float (N, 1, 8, 8) in [0, 1], labels int64 (N,); no image is in both parts."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digits(train: int, seed: int) -> DigitSplit:
    """Draws ``train`` images at random for training; all the others are the test set."""
    images = digit_images(train, seed)
    return DigitSplit(
        images.train_images.float() / LARGEST_PIXEL,
        images.train_labels,
        images.test_images.float() / LARGEST_PIXEL,
        images.test_labels,
    )


def digit_images(train: int = 1000, seed: int = 0) -> ImageSet:
    """Draws the same split with the pixels as they are stored, bytes from 0 to 16."""
    images, labels = _load()
    if not 1 <= train < len(labels):
        raise ValueError(
            f"train must lie between 1 and {len(labels) - 1}, so that both parts hold images; got {train}."
        )
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    chosen, rest = order[:train], order[train:]
    return ImageSet(
        "digits", images[chosen], labels[chosen], images[rest], labels[rest], classes=10, flip=False, padding=1
    )


def _load() -> tuple[Tensor, Tensor]:
    with files("ssgd.lab.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    return images.unsqueeze(1), labels.long()
