"""The 1,797 handwritten digits of 8×8 pixels that come with the package (source and licence: digits.LICENSE.txt)."""

from dataclasses import dataclass
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

LARGEST_PIXEL = 16


@dataclass(frozen=True)
class DigitSplit:
    """Images are float (N, 1, 8, 8) in [0, 1], labels int64 (N,); no image is in both parts."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def digits(train: int, seed: int) -> DigitSplit:
    """Draw `train` images at random for training; all the others are the test set."""
    images, labels = _load()
    if not 1 <= train < len(labels):
        raise ValueError(
            f"train must lie between 1 and {len(labels) - 1}, so that both parts hold images; got {train}."
        )
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    chosen, rest = order[:train], order[train:]
    return DigitSplit(images[chosen], labels[chosen], images[rest], labels[rest])


def _load() -> tuple[Tensor, Tensor]:
    with files("ssgd.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        images, labels = torch.from_numpy(arrays["images"]), torch.from_numpy(arrays["labels"])
    return images.unsqueeze(1).float() / LARGEST_PIXEL, labels.long()
