"""Sets of labelled images that fit into memory: bytes on the device that trains, which become batches there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from importlib.resources import files

import numpy as np
import torch
from torch import Tensor

from ssgd.lab.compilation import or_as_it_is
from ssgd.lab.data import batches
from ssgd.lab.data.augment import augmented, normalised
from ssgd.lab.data.preprocess import Pixels

BLOCKS = {"cuda": 4096}  # images made at once, by one kernel; elsewhere a batch at a time
BLOCKS_KEPT = 2  # of an epoch, for trainings at different steps of it


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

    def held_out(self, count: int, seed: int = 0) -> ImageSet:
        """Returns a set that tests on ``count`` of the training images: for tuning without the test set."""
        tested, trained = draw_held_out(len(self.train_labels), count, seed)
        return replace(
            self,
            train_images=self.train_images[trained],
            train_labels=self.train_labels[trained],
            test_images=self.train_images[tested],
            test_labels=self.train_labels[tested],
        )


def draw_held_out(images: int, count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Draws ``count`` of so many images to test on. Returns their numbers and those of the others, both ascending."""
    if not 1 <= count < images:
        raise ValueError(f"hold out between 1 and {images - 1} of the {images} training images, not {count}")
    order = torch.randperm(images, generator=torch.Generator().manual_seed(seed))
    return order[:count].sort().values, order[count:].sort().values


def digit_images(train: int = 1000, seed: int = 0) -> ImageSet:
    """Draws ``train`` of the package's 1,797 handwritten digits for training; all the others are the test set.

    They are images of 1×8×8 in bytes from 0 to 16; source and licence are in digits.LICENSE.txt.
    """
    with files("ssgd.lab.data").joinpath("digits.npz").open("rb") as file, np.load(file) as arrays:
        images, labels = torch.from_numpy(arrays["images"]).unsqueeze(1), torch.from_numpy(arrays["labels"]).long()
    if not 1 <= train < len(labels):
        raise ValueError(
            f"train must lie between 1 and {len(labels) - 1}, so that both parts hold images; got {train}."
        )
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    chosen, rest = order[:train], order[train:]
    parts = images[chosen], labels[chosen], images[rest], labels[rest]
    return ImageSet("digits", *parts, classes=10, flip=False, padding=1)


def digits(train: int, seed: int) -> ImageSet:
    """Draws the same split with the images as numbers from 0 to 1, for loops of your own."""
    found = digit_images(train, seed)
    return replace(found, train_images=found.train_images.float() / 16, test_images=found.test_images.float() / 16)


def fake_images(train: int = 512, test: int = 128, classes: int = 10) -> ImageSet:
    """Makes images of 3×32×32 for trying a training out, without files: a pattern for each class, under noise."""
    numbers = torch.Generator().manual_seed(0)
    patterns = torch.randn(classes, 3, 8, 8, generator=numbers).repeat_interleave(4, 2).repeat_interleave(4, 3)
    labels = torch.randint(classes, (train + test,), generator=numbers)
    noise = torch.randn(train + test, 3, 32, 32, generator=numbers)
    images = (128 + 24 * patterns[labels] + 40 * noise).clamp(0, 255).byte()
    return ImageSet("fake", images[:train], labels[:train], images[train:], labels[train:], classes)


class DeviceImages(batches.Source):
    """Batches of an ImageSet, normalised by the mean and deviation of its training images.

    With ``augment``, training images are moved by up to ``padding`` pixels (zeros come in) and, where the set allows,
    flipped. Order, moves and flips are a function of seed and epoch alone, the same on every device.
    """

    @classmethod
    def of(cls, images: ImageSet, wanted: batches.Options) -> DeviceImages:
        """Makes the source that is wanted; what is held out is drawn before the first so many are taken."""
        if wanted.held_out:
            images = images.held_out(wanted.held_out)
        images = replace(
            images,
            train_images=images.train_images[: wanted.train_limit],
            train_labels=images.train_labels[: wanted.train_limit],
            test_images=images.test_images[: wanted.test_limit],
            test_labels=images.test_labels[: wanted.test_limit],
        )
        return cls(images, wanted.device, wanted.dtype, wanted.augment)

    def __init__(
        self,
        images: ImageSet,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        augment: bool = True,
    ) -> None:
        device = torch.device(device)
        preprocess = Pixels.of(images.train_images)
        make = partial(
            Labelled,
            table=preprocess.table(device, dtype),
            augmented=or_as_it_is(torch.compile(augmented), augmented) if device.type == "cuda" else augmented,
            padding=images.padding if augment else 0,
            flip=images.flip and augment,
        )
        pairs = {
            "train": (images.train_images, images.train_labels),
            "test": (images.test_images, images.test_labels),
        }
        parts = {
            name: make(pixels.to(device).permute(0, 2, 3, 1).contiguous(), labels.to(device))
            for name, (pixels, labels) in pairs.items()
        }
        super().__init__(images.name, images.classes, images.channels, parts, preprocess=preprocess)


@dataclass(frozen=True, eq=False)
class Labelled:
    """Images (N, H, W, C, bytes) and labels on the device, and what is done to the images."""

    images: Tensor
    labels: Tensor
    table: Tensor
    augmented: Callable[..., Tensor]
    padding: int
    flip: bool

    def first(self, count: int) -> Labelled:
        return replace(self, images=self.images[:count], labels=self.labels[:count])

    def steps(self, size: int) -> int:
        return batches.whole_batches(len(self.labels), size)

    def epoch(self, seed: int, number: int) -> Epoch:
        return Epoch(self, seed, number)

    def in_order(self, size: int, rank: int, ranks: int) -> Iterator[tuple[Tensor, Tensor]]:
        pieces = batches.in_order(len(self.labels), size, rank, ranks)
        return ((normalised(self.images[piece], self.table), self.labels[piece]) for piece in pieces)


class Epoch:
    """The training images once, in an order of their own, each with its move and flip."""

    def __init__(self, part: Labelled, seed: int, number: int) -> None:
        self._part, self._device = part, part.labels.device
        numbers, count = batches.generator(seed, number), len(part.labels)
        order = torch.randperm(count, generator=numbers)
        moves = torch.randint(-part.padding, part.padding + 1, (2, count), generator=numbers)
        flips = torch.randint(2, (count,), generator=numbers).bool() & part.flip
        self._order, self._moves, self._flips = (drawn.to(self._device) for drawn in (order, moves, flips))
        self._blocks: dict[tuple[int, int, int, int], tuple[Tensor, Tensor]] = {}

    def batch(self, step: int, size: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor]:
        here = batches.part_of_batch(len(self._order), step, size, rank, ranks)
        steps, share = batches.whole_batches(len(self._order), size), size // ranks
        length = min(max(BLOCKS.get(self._device.type, 1) // share, 1), steps)
        first = min(step // length * length, steps - length)  # the last block reaches back: all have one shape
        key = first, size, rank, ranks
        if key not in self._blocks:
            while len(self._blocks) >= BLOCKS_KEPT:  # freed before the next is made, so that memory holds no more
                del self._blocks[next(iter(self._blocks))]
            arange = partial(torch.arange, device=self._device)
            starts = here.start + size * arange(first - step, first - step + length)
            self._blocks[key] = self._made((starts[:, None] + arange(share)).flatten())
        x, y = self._blocks[key]
        rows = slice((step - first) * share, (step - first + 1) * share)
        return x[rows], y[rows]

    def _made(self, places: Tensor) -> tuple[Tensor, Tensor]:
        part, chosen = self._part, self._order[places]
        images = part.augmented(part.images, part.table, chosen, self._moves[:, places], self._flips[places])
        return images, part.labels[chosen]
