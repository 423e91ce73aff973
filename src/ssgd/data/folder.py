"""Folders of image files, ``train/<class>/*.jpg`` and ``val/<class>/*.jpg``, read while the training runs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from ssgd.core.noise import mix
from ssgd.data import batches
from ssgd.data.augment import normal_table, normalised
from ssgd.data.crops import pillow
from ssgd.data.images import held_out as draw_held_out
from ssgd.data.stream import File, Request, Stream

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")
LAYOUT = "an image folder has train/<class>/*.jpg and val/<class>/*.jpg"
KEPT = 4  # seeds whose worker processes are kept, for trainings side by side


class Folder:
    """Batches of an image folder, with the interface of DeviceImages.

    Training images are a random crop (0.08 to 1 of the area, sides 3:4 to 4:3) scaled to ``size`` and flipped half of
    the time; test images have their shorter side scaled to ``size * 256 / 224`` and the centre cut out. A crop is a
    function of seed, epoch and place in the epoch, so that a training may start at any step.
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
    ) -> None:
        pillow()
        self.name = Path(root).resolve().name
        classes, train = _listed(Path(root) / "train")
        if held_out:
            held, kept = draw_held_out(len(train), held_out)
            train, test = [train[i] for i in kept.tolist()], [train[i] for i in held.tolist()]
        else:
            test = _test_files(Path(root), classes)
        self.classes = len(classes)
        self._train, self._test = _spread(train, train_limit), _spread(test, test_limit)
        self._augment = augment
        self._workers = _cores() if workers is None else workers
        self._size, self._device = size, torch.device(device)
        self._table = normal_table([255 * m for m in MEAN], [255 * s for s in STD]).to(dtype).to(self._device)
        self._normalised = torch.compile(normalised) if self._device.type == "cuda" else normalised
        self._epochs: dict[int, FolderEpoch] = {}

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
    return [(*files[order[place]], mix(*crops, place, 0xC209) if crops else None) for place in places]


def _listed(folder: Path) -> tuple[list[str], list[File]]:
    """The names of the class folders, sorted, and all files with the number of their class."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there: {LAYOUT}")
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise ValueError(f"{folder} has no folders in it: {LAYOUT}")
    files: list[File] = []
    for label, name in enumerate(classes):
        found = sorted(
            os.path.join(where, file)
            for where, _, inside in os.walk(folder / name)
            for file in inside
            if file.lower().endswith(ENDINGS) and not file.startswith(".")
        )
        if not found:
            raise ValueError(f"{folder / name} has no images in it: fill it, or delete it from train/ and val/")
        files += [(path, label) for path in found]
    return classes, files


def _test_files(root: Path, classes: list[str]) -> list[File]:
    folder = root / "val" if (root / "val").is_dir() else root / "test"
    if not folder.is_dir():
        raise FileNotFoundError(f"{root} has neither val/ nor test/: {LAYOUT}")
    found, files = _listed(folder)
    if found != classes:
        odd = sorted(set(found) ^ set(classes))
        raise ValueError(
            f"{root / 'train'} and {folder} must have the same classes; only one of them has {', '.join(odd[:5])}"
            + (f" and {len(odd) - 5} more" if len(odd) > 5 else "")
        )
    return files


def _spread(files: list[File], limit: int | None) -> list[File]:
    """At most ``limit`` files, evenly from all, since the first ones are all of one class."""
    if limit is None or limit >= len(files):
        return files
    if limit < 1:
        raise ValueError(f"each part of the data needs at least 1 image, not {limit}")
    return [files[i * len(files) // limit] for i in range(limit)]


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
