"""Images that live on the device as bytes and become batches there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from ssgd.data import batches
from ssgd.data.augment import augmented, mean_and_std, normal_table, normalised
from ssgd.data.faults import Skipped
from ssgd.data.images import ImageSet

BLOCKS = {"cuda": 4096}  # images made at once, by one kernel; elsewhere a batch at a time
BLOCKS_KEPT = 2  # of an epoch, for trainings at different steps of it
KEPT = 24  # epochs kept, for trainings side by side, which may be at different ones


class DeviceImages:
    """Batches of an ImageSet, normalised by the mean and deviation of its training images.

    With ``augment``, training images are moved by up to ``padding`` pixels (what comes in is zero) and, where the set
    allows, flipped. Order, moves and flips are a function of seed and epoch alone, the same on every device.
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
        self._train = _on(device, images.train_images), images.train_labels.to(device)
        self._test = _on(device, images.test_images), images.test_labels.to(device)
        make = torch.compile(augmented) if device.type == "cuda" else augmented
        self._make = partial(make, self._train[0], self._table)
        self._epochs: dict[tuple[int, int], Epoch] = {}

    def steps(self, size: int) -> int:
        """Whole batches of ``size`` in an epoch; the images left over sit this epoch out."""
        return batches.whole_batches(len(self._train[1]), size)

    def epoch(self, seed: int, number: int) -> Epoch:
        """Epoch ``number`` of seed ``seed``; trainings that ask for the same one share its images."""
        epoch = self._epochs.pop((seed, number), None)
        if epoch is None:
            epoch = Epoch(self._make, self._train[1], seed, number, self._padding, self._flip)
        self._epochs[seed, number] = epoch
        if len(self._epochs) > KEPT:
            del self._epochs[next(iter(self._epochs))]
        return epoch

    def test_batches(self, size: int = 1000, rank: int = 0, ranks: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """All test images in order; each rank has its share."""
        return self._in_order(*self._test, size, rank, ranks)

    def clean_train_batches(self, size: int = 1000, rank: int = 0, ranks: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """All training images in order, not augmented; each rank has its share."""
        return self._in_order(*self._train, size, rank, ranks)

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
