"""Folders of image files, ``train/<class>/*.jpg`` and ``val/<class>/*.jpg``, read while the training runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import copy
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from ssgd.core.noise import mix
from ssgd.lab.data import batches
from ssgd.lab.data.augment import normal_table, normalised
from ssgd.lab.data.crops import checked, decoded, pillow
from ssgd.lab.data.faults import Faults
from ssgd.lab.data.listing import File, listed, spread
from ssgd.lab.data.stream import Request, Stream

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
Read = TypeVar("Read")
KEPT = 4  # seeds whose worker processes are kept, for trainings side by side


class Folder:
    """Batches of an image folder, with the interface of DeviceImages.

    Training images are a random crop (0.08 to 1 of the area, sides 3:4 to 4:3) scaled to ``size`` and flipped half of
    the time; test images have their shorter side scaled to ``size * 256 / 224`` and the centre cut out. A crop is a
    function of seed, epoch and place in the epoch, so that a training may start at any step. A file that cannot be read
    ends the training when its turn comes; with ``bad="skip"`` all are read once before, and such files left out.
    """

    kind = "images"
    channels = 3

    def __init__(
        self,
        root: str | Path,
        size: int = 224,
        workers: int | None = None,
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        augment: bool = True,
        train_limit: int | None = None,
        test_limit: int | None = None,
        held_out: int = 0,
        bad: str = "raise",
    ) -> None:
        pillow()
        faults = Faults(bad)
        files = listed(root, faults, train_limit, test_limit, held_out)
        self.name, self.classes, self.skipped = files.name, len(files.classes), faults.skipped
        self._train, self._test = files.train, files.test
        self._augment = augment
        self._workers = cores() if workers is None else workers
        if bad == "skip":
            self._train, self._test = (
                some([file for file, _ in decoded(part, checked, faults, self._workers)], part)
                for part in (self._train, self._test)
            )
        self._size, self._device = size, torch.device(device)
        self._table = normal_table([255 * m for m in MEAN], [255 * s for s in STD]).to(dtype).to(self._device)
        self._normalised = torch.compile(normalised) if self._device.type == "cuda" else normalised
        self._epochs: dict[int, FolderEpoch] = {}

    def first(self, count: int) -> Folder:
        """At most so many images of each part, evenly from all."""
        less = copy(self)
        less._train, less._test, less._epochs = spread(self._train, count), spread(self._test, count), {}
        return less

    def steps(self, size: int) -> int:
        """Whole batches of ``size`` in an epoch; the images left over sit this epoch out."""
        return batches.whole_batches(len(self._train), size)

    def epoch(self, seed: int, number: int) -> FolderEpoch:
        """Epoch ``number`` of seed ``seed``; those of one seed share their worker processes."""
        epoch = self._epochs.pop(seed, None)
        if epoch is None or epoch.number != number:
            stream = epoch.stream if epoch else self._stream()
            epoch = FolderEpoch(self._train, stream, seed, number, self._augment)
        self._epochs[seed] = epoch
        if len(self._epochs) > KEPT:
            del self._epochs[next(iter(self._epochs))]
        return epoch

    def test_batches(self, size: int = 256, rank: int = 0, ranks: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """All test images in order; each rank has its share."""
        return self._in_order(self._test, size, rank, ranks)

    def clean_train_batches(self, size: int = 256, rank: int = 0, ranks: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """All training images in order, cut like test images; each rank has its share."""
        return self._in_order(self._train, size, rank, ranks)

    def _in_order(self, files: list[File], size: int, rank: int, ranks: int) -> Iterator[tuple[Tensor, Tensor]]:
        parts = batches.in_order(len(files), size, rank, ranks)
        return self._stream().run([(*file, None) for file in files[part]] for part in parts)

    def _stream(self) -> Stream:
        return Stream(self._size, self._workers, self._device, partial(self._normalised, table=self._table))


class FolderEpoch:
    """The training images once, in an order of their own, each with a crop of its own."""

    def __init__(self, files: list[File], stream: Stream, seed: int, number: int, augment: bool) -> None:
        self.stream, self.number = stream, number
        self._files = files
        self._order = torch.randperm(len(files), generator=batches.generator(seed, number)).tolist()
        self._crops = (seed, number) if augment else None

    def batch(self, step: int, size: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor]:
        """Images and labels of batch ``step``; of its ``size`` images rank r takes the r-th of equal parts.

        The batches after it are made meanwhile: asking for them in turn is fast.
        """
        part = partial(batches.part_of_batch, len(self._order), size=size, rank=rank, ranks=ranks)
        part(step)  # refuses what is not there
        request = partial(_request, self._files, self._order, self._crops)
        rest = (request(part(later)) for later in range(step, batches.whole_batches(len(self._order), size)))
        return self.stream.batch((self.number, size, rank, ranks), step, rest)


def _request(files: list[File], order: list[int], crops: tuple[int, int] | None, part: slice) -> Request:
    places = range(part.start, part.stop)
    return [(*files[order[place]], crop_seed(*crops, place) if crops else None) for place in places]


def crop_seed(seed: int, epoch: int, place: int) -> int:
    """What the crop at a place of an epoch is drawn from."""
    return mix(seed, epoch, place, 0xC209)


def some(read: list[Read], files: list[File]) -> list[Read]:
    """What was read of ``files``, if anything was."""
    if not read:
        raise ValueError(f"none of {len(files)} images can be read: {files[0][0]} is the first")
    return read


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
