"""A set of labelled images that fits into memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class ImageSet:
    """Images as bytes, (N, C, H, W), and their classes as int64, (N,).

    ``flip`` says whether a mirrored image is still of its class (a digit is not), ``padding`` by how many pixels an
    image may be moved.
    """

    name: str
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    classes: int
    flip: bool = True
    padding: int = 4

    @property
    def channels(self) -> int:
        return self.train_images.shape[1]

    def limited(self, train: int | None = None, test: int | None = None) -> ImageSet:
        """At most the first so many of each part."""
        for part, count in (("train", train), ("test", test)):
            if count is not None and count < 1:
                raise ValueError(f"the {part} part of {self.name} needs at least 1 image, not {count}")
        return replace(
            self,
            train_images=self.train_images[:train],
            train_labels=self.train_labels[:train],
            test_images=self.test_images[:test],
            test_labels=self.test_labels[:test],
        )

    def held_out(self, count: int, seed: int = 0) -> ImageSet:
        """Tests on ``count`` of the training images and trains on the others: for tuning without the test set."""
        held, kept = held_out(len(self.train_labels), count, seed)
        return replace(
            self,
            train_images=self.train_images[kept],
            train_labels=self.train_labels[kept],
            test_images=self.train_images[held],
            test_labels=self.train_labels[held],
        )


def held_out(images: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Which ``count`` of so many images to hold out, and which to keep, both in their old order."""
    if not 1 <= count < images:
        raise ValueError(f"hold out between 1 and {images - 1} of the {images} training images, not {count}")
    order = torch.randperm(images, generator=torch.Generator().manual_seed(seed))
    return order[:count].sort().values, order[count:].sort().values
