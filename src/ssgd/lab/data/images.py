"""Sets of labelled images that fit into memory: bytes on the device that trains, which become batches there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from ssgd.lab.compilation import or_as_it_is
from ssgd.lab.data import batches
from ssgd.lab.data.augment import augmented, mean_and_std, normal_table, normalised
from ssgd.lab.data.faults import Skipped

BLOCKS = {"cuda": 4096}  # images made at once, by one kernel; elsewhere a batch at a time
BLOCKS_KEPT = 2  # of an epoch, for trainings at different steps of it
TEST_SIZE = 1000  # images in a batch that is not trained on


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
        """Returns at most the first ``train`` training images and the first ``test`` test images."""
        batches.check_limits(train, test, self.name, "image")
        return replace(
            self,
            train_images=self.train_images[:train],
            train_labels=self.train_labels[:train],
            test_images=self.test_images[:test],
            test_labels=self.test_labels[:test],
        )

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


def fake_images(train: int = 512, test: int = 128, classes: int = 10) -> ImageSet:
    """Makes images of 3×32×32 for trying a training out, without files: a pattern for each class, under noise."""
    numbers = torch.Generator().manual_seed(0)
    patterns = torch.randn(classes, 3, 8, 8, generator=numbers).repeat_interleave(4, 2).repeat_interleave(4, 3)
    labels = torch.randint(classes, (train + test,), generator=numbers)
    noise = torch.randn(train + test, 3, 32, 32, generator=numbers)
    images = (128 + 24 * patterns[labels] + 40 * noise).clamp(0, 255).byte()
    return ImageSet("fake", images[:train], labels[:train], images[train:], labels[train:], classes)


class DeviceImages:
    """Batches of an ImageSet, normalised by the mean and deviation of its training images.

    With ``augment``, training images are moved by up to ``padding`` pixels (zeros come in) and, where the set allows,
    flipped. Order, moves and flips are a function of seed and epoch alone, the same on every device.
    """

    kind = "images"
    skipped: Sequence[Skipped] = ()  # the files of these sets are whole or refused

    def __init__(
        self,
        images: ImageSet,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        augment: bool = True,
    ) -> None:
        device = torch.device(device)
        self.name, self.classes, self.channels = images.name, images.classes, images.channels
        self._padding = images.padding if augment else 0
        self._flip = images.flip and augment
        self._table = normal_table(*mean_and_std(images.train_images)).to(dtype).to(device)
        self._train = _channels_last(images.train_images.to(device)), images.train_labels.to(device)
        self._test = _channels_last(images.test_images.to(device)), images.test_labels.to(device)
        self._augmented = or_as_it_is(torch.compile(augmented), augmented) if device.type == "cuda" else augmented
        self._epochs: dict[tuple[int, int], Epoch] = {}

    def first(self, count: int) -> DeviceImages:
        """Returns a source of at most so many images of each part, normalised as all are."""
        fewer = copy(self)
        fewer._train, fewer._test = ((images[:count], labels[:count]) for images, labels in (self._train, self._test))
        fewer._epochs = {}
        return fewer

    def steps(self, size: int) -> int:
        """Returns how many whole batches of ``size`` an epoch has; the images left over sit this epoch out."""
        return batches.whole_batches(len(self._train[1]), size)

    def epoch(self, seed: int, number: int) -> Epoch:
        """Returns epoch ``number`` of seed ``seed``; trainings that ask for the same one share it."""
        return batches.made_once(self._epochs, (seed, number), lambda: self._make_epoch(seed, number))

    def test_batches(self, size: int = TEST_SIZE, rank: int = 0, ranks: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields all test images in order; each rank has its share."""
        return self._in_order(*self._test, size, rank, ranks)

    def clean_train_batches(
        self, size: int = TEST_SIZE, rank: int = 0, ranks: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields all training images in order, not augmented; each rank has its share."""
        return self._in_order(*self._train, size, rank, ranks)

    def _make_epoch(self, seed: int, number: int) -> Epoch:
        images, labels = self._train
        return Epoch(partial(self._augmented, images, self._table), labels, seed, number, self._padding, self._flip)

    def _in_order(
        self, images: Tensor, labels: Tensor, size: int, rank: int, ranks: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        parts = batches.in_order(len(labels), size, rank, ranks)
        return ((normalised(images[part], self._table), labels[part]) for part in parts)


class Epoch:
    """The training images once, in an order of their own, each with its move and flip."""

    def __init__(
        self, make: Callable[..., Tensor], labels: Tensor, seed: int, number: int, padding: int, flip: bool
    ) -> None:
        self._make, self._labels = make, labels
        numbers, count = batches.generator(seed, number), len(labels)
        order = torch.randperm(count, generator=numbers)
        moves = torch.randint(-padding, padding + 1, (2, count), generator=numbers)
        flips = torch.randint(2, (count,), generator=numbers).bool() & flip
        self._order, self._moves, self._flips = (drawn.to(labels.device) for drawn in (order, moves, flips))
        self._blocks: dict[tuple[int, int, int, int], tuple[Tensor, Tensor]] = {}

    def batch(self, step: int, size: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor]:
        """Returns images and labels of batch ``step``; of its ``size`` images rank r takes the r-th of equal parts."""
        part = batches.part_of_batch(len(self._order), step, size, rank, ranks)
        steps, share = batches.whole_batches(len(self._order), size), size // ranks
        length = min(max(BLOCKS.get(self._labels.device.type, 1) // share, 1), steps)
        first = min(step // length * length, steps - length)  # the last block reaches back: all have one shape
        key = first, size, rank, ranks
        if key not in self._blocks:
            while len(self._blocks) >= BLOCKS_KEPT:  # freed before the next is made, so that memory holds no more
                del self._blocks[next(iter(self._blocks))]
            arange = partial(torch.arange, device=self._labels.device)
            starts = part.start + size * arange(first - step, first - step + length)
            self._blocks[key] = self._made((starts[:, None] + arange(share)).flatten())
        x, y = self._blocks[key]
        here = slice((step - first) * share, (step - first + 1) * share)
        return x[here], y[here]

    def _made(self, places: Tensor) -> tuple[Tensor, Tensor]:
        chosen = self._order[places]
        return self._make(chosen, self._moves[:, places], self._flips[places]), self._labels[chosen]


def _channels_last(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1).contiguous()
