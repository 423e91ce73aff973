"""Folders of images that fit into memory: decoded once, kept on the device, cut there for every batch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from copy import copy
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ssgd.lab.data import batches
from ssgd.lab.data.augment import normal_table, normalised
from ssgd.lab.data.crops import Bytes, centre, decoded, drawn_crop, opened, pillow
from ssgd.lab.data.faults import Faults
from ssgd.lab.data.folder import MEAN, STD, cores, crop_seed, some
from ssgd.lab.data.held import HeldImages
from ssgd.lab.data.listing import ENDINGS, File, listed, spread
from ssgd.lab.data.resize import cut

LIMIT = 2 << 30  # bytes that may be kept


def fits(root: str | Path, size: int) -> bool:
    """Whether all images of a folder, whole and cut to ``size``, can be kept; a large folder is not gone through."""
    most = LIMIT // (3 * size**2)
    paths = list(islice(_images(root), most + 1))
    if len(paths) > most:
        return False
    width, height = map(max, zip(*map(_size, paths), strict=True)) if paths else (0, 0)
    return 3 * len(paths) * (width * height + size**2) <= LIMIT


class FolderInMemory(HeldImages["Epoch"]):
    """Batches of an image folder: those of Folder, which reads its files anew in every epoch.

    A file that does not decode ends the loading, or with ``bad="skip"`` is left out.
    """

    channels = 3
    test_size = 256

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
        faults, workers = Faults(bad), cores() if workers is None else workers
        files = listed(root, faults, train_limit, test_limit, held_out)
        device = torch.device(device)
        self.name, self.classes, self.skipped = files.name, len(files.classes), faults.skipped
        self._table = normal_table([255 * m for m in MEAN], [255 * s for s in STD]).to(dtype).to(device)
        whole: list[Bytes] | None = [] if augment else None
        self._train = _centres(files.train, size, faults, workers, device, whole)
        self._test = _centres(files.test, size, faults, workers, device)
        self._crops = None if whole is None else Crops(whole, size, device)

    def first(self, count: int) -> FolderInMemory:
        """At most so many images of each part, evenly from all."""
        less = self._copied()
        train, test = (spread(range(len(labels)), count) for _, labels in (self._train, self._test))
        less._train, less._test = _chosen(self._train, train), _chosen(self._test, test)
        less._crops = None if self._crops is None else self._crops.of(train)
        return less

    def _make_epoch(self, seed: int, number: int) -> Epoch:
        return Epoch(*self._train, self._crops, self._table, seed, number)


class Crops:
    """Training images as they are, and random parts of them."""

    def __init__(self, whole: list[Bytes], size: int, device: torch.device) -> None:
        self._sizes = [(image.shape[1], image.shape[0]) for image in whole]
        width, height = map(max, zip(*self._sizes, strict=True))
        self._images = torch.zeros(len(whole), height, width, 3, dtype=torch.uint8)
        for place, image in zip(self._images, whole, strict=True):
            place[: image.shape[0], : image.shape[1]] = torch.from_numpy(image)
        self._images, self._size = self._images.to(device), size

    def of(self, places: list[int]) -> Crops:
        """The same of these images."""
        less = copy(self)
        less._sizes = [self._sizes[place] for place in places]
        less._images = self._images[places]
        return less

    def __call__(self, chosen: Tensor, seeds: list[int]) -> Tensor:
        """(B, size, size, 3): of each chosen image the part that its seed says."""
        drawn = [drawn_crop(self._sizes[i], seed) for i, seed in zip(chosen.tolist(), seeds, strict=True)]
        device = self._images.device
        parts, flips = torch.tensor([part for part, _ in drawn]), torch.tensor([flip for _, flip in drawn])
        return cut(self._images[chosen.to(device)], parts.to(device), flips.to(device), self._size)


class Epoch:
    """The training images once, in an order of their own, each with a crop of its own."""

    def __init__(
        self, centres: Tensor, labels: Tensor, crops: Crops | None, table: Tensor, seed: int, number: int
    ) -> None:
        self._centres, self._labels, self._crops, self._table = centres, labels, crops, table
        self._order = torch.randperm(len(labels), generator=batches.generator(seed, number))
        self._seed = partial(crop_seed, seed, number)
        self._made: dict[tuple[int, int, int, int], tuple[Tensor, Tensor]] = {}

    def batch(self, step: int, size: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor]:
        """Images and labels of batch ``step``; of its ``size`` images rank r takes the r-th of equal parts."""
        key = step, size, rank, ranks
        if key not in self._made:
            part = batches.part_of_batch(len(self._order), step, size, rank, ranks)
            chosen = self._order[part]
            if self._crops is None:
                images = self._centres[chosen.to(self._centres.device)]
            else:
                images = self._crops(chosen, [self._seed(place) for place in range(part.start, part.stop)])
            self._made = {key: (normalised(images, self._table), self._labels[chosen.to(self._labels.device)])}
        return self._made[key]


def _chosen(part: tuple[Tensor, Tensor], places: list[int]) -> tuple[Tensor, Tensor]:
    images, labels = part
    return images[places], labels[places]


def _centres(
    files: list[File],
    size: int,
    faults: Faults,
    workers: int,
    device: torch.device,
    whole: list[Bytes] | None = None,
) -> tuple[Tensor, Tensor]:
    """The images cut like test images, and their labels; ``whole`` gets them as they are."""

    def made(path: str) -> tuple[Bytes | None, Bytes]:
        image = opened(path)
        return None if whole is None else np.array(image), centre(image, size)

    cuts, labels = [], []
    for (_, label), (image, middle) in decoded(files, made, faults, workers):
        cuts.append(torch.from_numpy(middle.copy()))
        labels.append(label)
        if whole is not None and image is not None:
            whole.append(image)
    return torch.stack(some(cuts, files)).to(device), torch.tensor(labels, device=device)


def _images(root: str | Path) -> Iterator[str]:
    for where, _, inside in os.walk(root):
        yield from (os.path.join(where, file) for file in inside if file.lower().endswith(ENDINGS))


def _size(path: str) -> tuple[int, int]:
    try:
        with pillow().open(path) as file:
            width, height = file.size
            return width, height
    except Exception:  # pillow has many kinds; the file is named when it is to be read
        return 0, 0
