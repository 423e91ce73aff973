"""Folders of images, ``train/<class>/*.jpg`` and ``val/<class>/*.jpg``: read meanwhile, or kept on the device."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from copy import copy
from itertools import islice
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from ssgd.lab.compilation import or_as_it_is
from ssgd.lab.data.augment import cut, normal_table, normalised
from ssgd.lab.data.faults import Faults
from ssgd.lab.data.image_files import (
    ENDINGS,
    Bytes,
    File,
    centre,
    checked,
    decoded,
    dimensions,
    drawn_crop,
    listed,
    opened,
    pillow,
    read,
    spread,
)
from ssgd.lab.data.map_style import MapSource, Request, Samples, cores

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
MEMORY = 2 << 30  # bytes of images that may be kept on a device
LOOKED_AT = 16  # images whose size is compared with the one asked for

Read = TypeVar("Read")


class Folder(MapSource):
    """Batches of an image folder.

    Training images are a random part of the file (0.08 to 1 of the area, sides 3:4 to 4:3) scaled to ``size`` and
    flipped half of the time; test images have their shorter side scaled to ``size * 256 / 224`` and the centre cut
    out. ``workers`` processes read the files while the training runs: then a file that cannot be read ends the
    training when its turn comes, and ``bad="skip"`` reads all files once before, to leave such files out. With
    ``in_memory`` all files are decoded at once, and cut and scaled on the device.
    """

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
        in_memory: bool = False,
    ) -> None:
        pillow()
        faults, workers, device = Faults(bad), cores() if workers is None else workers, torch.device(device)
        files = listed(root, faults, train_limit, test_limit, held_out)
        _warn_if_enlarged(root, files.train, size)
        train: Samples
        test: Samples
        if in_memory:
            train = Decoded(files.train, size, faults, workers, device, whole=augment)
            test = Decoded(files.test, size, faults, workers, device, whole=False)
        else:
            train, test = (Files(_readable(part, faults, workers), size) for part in (files.train, files.test))
        table = normal_table([255 * m for m in MEAN], [255 * s for s in STD]).to(dtype).to(device)
        finished: Callable[..., Tensor] = normalised
        if device.type == "cuda":
            finished = or_as_it_is(torch.compile(normalised), normalised)
        super().__init__(
            files.name,
            len(files.classes),
            3,
            train,
            test,
            lambda images: finished(images, table),
            device=device,
            augment=augment,
            workers=workers,
            skipped=faults.skipped,
        )


def fits(root: str | Path, size: int) -> bool:
    """Whether all images of a folder, whole and cut to ``size``, fit into ``MEMORY``.

    A folder of too many files is not gone through to its end.
    """
    most = MEMORY // (3 * size**2)
    found = (
        os.path.join(where, file)
        for where, _, inside in os.walk(root)
        for file in inside
        if file.lower().endswith(ENDINGS)
    )
    paths = list(islice(found, most + 1))
    if len(paths) > most:
        return False
    width, height = map(max, zip(*map(dimensions, paths), strict=True)) if paths else (0, 0)
    return 3 * len(paths) * (width * height + size**2) <= MEMORY


class Files:
    """Image files, read when a batch asks for them: bytes (B, size, size, 3) and labels."""

    on_device = False

    def __init__(self, files: list[File], size: int) -> None:
        self._files, self._size = files, size

    def __len__(self) -> int:
        return len(self._files)

    def first(self, count: int) -> Files:
        return Files(spread(self._files, count), self._size)

    def __getitem__(self, request: Request) -> tuple[Tensor, Tensor] | str:
        images = np.empty((len(request), self._size, self._size, 3), np.uint8)
        for image, (number, seed) in zip(images, request, strict=True):
            path = self._files[number][0]
            try:
                image[:] = read(path, self._size, seed)
            except Exception as problem:  # pillow has many kinds, and the loader would bury the sentence in its own
                return f"{path} cannot be read as an image ({problem}): replace it, or use bad='skip' to do without it"
        return torch.from_numpy(images), torch.tensor([self._files[number][1] for number, _ in request])


class Decoded:
    """Images decoded once and kept on the device: cut like test images and, for augmentation, ``whole`` as well."""

    on_device = True

    def __init__(
        self, files: list[File], size: int, faults: Faults, workers: int, device: torch.device, whole: bool
    ) -> None:
        def made(path: str) -> tuple[Bytes | None, Bytes]:
            image = opened(path)
            return np.array(image) if whole else None, centre(image, size)

        found = _some(list(decoded(files, made, faults, workers)), files)
        self._size = size
        self._labels = torch.tensor([label for (_, label), _ in found], device=device)
        self._centres = torch.stack([torch.from_numpy(middle.copy()) for _, (_, middle) in found]).to(device)
        images = [image for _, (image, _) in found if image is not None]
        self._sizes = [(image.shape[1], image.shape[0]) for image in images]
        width, height = map(max, zip(*self._sizes, strict=True)) if images else (0, 0)
        self._whole = torch.zeros(len(images), height, width, 3, dtype=torch.uint8)
        for room, image in zip(self._whole, images, strict=True):
            room[: image.shape[0], : image.shape[1]] = torch.from_numpy(image)
        self._whole = self._whole.to(device)

    def __len__(self) -> int:
        return len(self._labels)

    def first(self, count: int) -> Decoded:
        fewer, places = copy(self), spread(range(len(self)), count)
        fewer._labels, fewer._centres = self._labels[places], self._centres[places]
        if self._sizes:
            fewer._sizes, fewer._whole = [self._sizes[place] for place in places], self._whole[places]
        return fewer

    def __getitem__(self, request: Request) -> tuple[Tensor, Tensor]:
        device = self._labels.device
        chosen = torch.tensor([number for number, _ in request], device=device)
        drawn = [drawn_crop(self._sizes[number], seed) for number, seed in request if seed is not None]
        if not drawn:
            return self._centres[chosen], self._labels[chosen]
        parts, flips = torch.tensor([part for part, _ in drawn]), torch.tensor([flip for _, flip in drawn])
        return cut(self._whole[chosen], parts.to(device), flips.to(device), self._size), self._labels[chosen]


def _readable(files: list[File], faults: Faults, workers: int) -> list[File]:
    """Returns the files that decode, where the others may be left out; else a training names them in their turn."""
    if faults.bad == "raise":
        return files
    return _some([file for file, _ in decoded(files, checked, faults, workers)], files)


def _some(found: list[Read], files: Sequence[File]) -> list[Read]:
    if not found:
        raise ValueError(f"none of {len(files)} images can be read: {files[0][0]} is the first")
    return found


def _warn_if_enlarged(root: str | Path, files: Sequence[File], size: int) -> None:
    longest = max(max(dimensions(path)) for path, _ in spread(files, LOOKED_AT))
    if 0 < longest < size:
        warnings.warn(
            f"the images of {root} have at most {longest} × {longest} pixels and are enlarged to {size} × {size}:"
            f" image_size={longest} leaves them as large as they are",
            stacklevel=3,
        )
