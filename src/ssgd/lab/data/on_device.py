"""Images that live on the device as bytes and become batches there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from ssgd.lab.compilation import or_as_it_is
from ssgd.lab.data import batches
from ssgd.lab.data.augment import augmented, mean_and_std, normal_table
from ssgd.lab.data.faults import Skipped
from ssgd.lab.data.held import HeldImages
from ssgd.lab.data.images import ImageSet

BLOCKS = {"cuda": 4096}  # images made at once, by one kernel; elsewhere a batch at a time
BLOCKS_KEPT = 2  # of an epoch, for trainings at different steps of it


class DeviceImages(HeldImages["Epoch"]):
    """Batches of an ImageSet, normalised by the mean and deviation of its training images.

    With ``augment``, training images are moved by up to ``padding`` pixels (what comes in is zero) and, where the set
    allows, flipped. Order, moves and flips are a function of seed and epoch alone, the same on every device.
    """

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
        self._train = _on(device, images.train_images), images.train_labels.to(device)
        self._test = _on(device, images.test_images), images.test_labels.to(device)
        make = or_as_it_is(torch.compile(augmented), augmented) if device.type == "cuda" else augmented
        self._make = partial(make, self._train[0], self._table)

    def first(self, count: int) -> DeviceImages:
        """At most so many images of each part, normalised as all are."""
        less = self._copied()
        less._train, less._test = ((images[:count], labels[:count]) for images, labels in (self._train, self._test))
        less._make = partial(self._make.func, less._train[0], self._table)
        return less

    def _make_epoch(self, seed: int, number: int) -> Epoch:
        return Epoch(self._make, self._train[1], seed, number, self._padding, self._flip)


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
        """Images and labels of batch ``step``; of its ``size`` images rank r takes the r-th of equal parts."""
        part = batches.part_of_batch(len(self._order), step, size, rank, ranks)
        steps, share = batches.whole_batches(len(self._order), size), size // ranks
        length = min(max(BLOCKS.get(self._labels.device.type, 1) // share, 1), steps)
        first = min(step // length * length, steps - length)  # the last block reaches back: all have one shape
        key = first, size, rank, ranks
        if key not in self._blocks:
            while len(self._blocks) >= BLOCKS_KEPT:  # gone before the next is made, so that memory holds no more
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


def _on(device: torch.device, images: Tensor) -> Tensor:
    return images.to(device).permute(0, 2, 3, 1).contiguous()
