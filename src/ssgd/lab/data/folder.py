"""Folders of images, ``train/<class>/*.jpg`` and ``val/<class>/*.jpg``: read meanwhile, or kept on the device."""

from __future__ import annotations

import math
import os
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from ssgd.lab.compilation import or_as_it_is
from ssgd.lab.data.augment import cut, normalised
from ssgd.lab.data.batches import Options
from ssgd.lab.data.faults import Faults, Unusable, utf8_lines
from ssgd.lab.data.images import draw_held_out
from ssgd.lab.data.map_style import MapSource, Request, Samples, cores
from ssgd.lab.data.preprocess import Pixels

File = tuple[str, int]  # its path and class
Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Chosen = TypeVar("Chosen")
Made = TypeVar("Made")
Read = TypeVar("Read")
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")
LAYOUT = "an image folder has train/<class>/*.jpg and val/<class>/*.jpg"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's
MEMORY = 2 << 30  # bytes of images that may be kept on a device
LOOKED_AT = 16  # images whose size is compared with the one asked for


def image_folder(root: str | Path, wanted: Options, in_memory: bool | None = None) -> MapSource:
    """Returns batches of an image folder.

    Training images are a random part of the file (0.08 to 1 of the area, sides 3:4 to 4:3) scaled to ``image_size`` and
    flipped half of the time; test images have their shorter side scaled to ``image_size * 256 / 224`` and the centre
    cut out. Worker processes read the files while the training runs: then a file that cannot be read ends the training
    when its turn comes, and ``bad="skip"`` reads all files once before, to leave such files out. ``in_memory`` decodes
    all files at once, and cuts and scales on the device; it is chosen on a GPU for a folder that fits.
    """
    pillow()
    device, size = torch.device(wanted.device), wanted.image_size
    if in_memory is None:
        in_memory = device.type == "cuda" and fits(root, size)  # the CPU's workers cut as fast
    faults = Faults(wanted.bad)
    files = listed(root, faults, wanted.train_limit, wanted.test_limit, wanted.held_out)
    _warn_if_enlarged(root, files.train, size)
    parts: dict[str, Samples] = {}
    for name, part in (("train", files.train), ("test", files.test)):
        if in_memory:
            parts[name] = Decoded(part, faults, wanted, whole=name == "train" and wanted.augment)
        else:
            parts[name] = Files(_readable(part, faults, wanted), size)
    preprocess = Pixels([255 * m for m in MEAN], [255 * s for s in STD], size)
    table = preprocess.table(device, wanted.dtype)
    finish: Callable[..., Tensor] = normalised
    if device.type == "cuda":
        finish = or_as_it_is(torch.compile(normalised), normalised)
    classes = len(files.classes)
    return MapSource(files.name, classes, 3, parts, lambda x: finish(x, table), wanted, faults.skipped, preprocess)


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

    def __init__(self, files: list[File], faults: Faults, wanted: Options, whole: bool) -> None:
        size, device = wanted.image_size, wanted.device

        def made(path: str) -> tuple[Bytes | None, Bytes]:
            image = opened(path)
            return np.array(image) if whole else None, centre(image, size)

        found = _some(list(decoded(files, made, faults, wanted)), files)
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


def _readable(files: list[File], faults: Faults, wanted: Options) -> list[File]:
    """Returns the files that decode, where the others may be left out; else a training names them in their turn."""
    if faults.bad == "raise":
        return files
    return _some([file for file, _ in decoded(files, checked, faults, wanted)], files)


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


# --- the files of a folder ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listing:
    """The names of the classes, and the files of both parts."""

    name: str
    classes: list[str]
    train: list[File]
    test: list[File]


def listed(
    root: str | Path,
    faults: Faults,
    train_limit: int | None = None,
    test_limit: int | None = None,
    held_out: int = 0,
) -> Listing:
    """Lists the files of ``root``. With ``held_out``, so many training files take the place of the test files.

    Limits come last, and take files evenly from all classes.
    """
    root = Path(root)
    classes, train = _by_folder(root / "train")
    if held_out:
        tested, trained = draw_held_out(len(train), held_out)
        train, test = [train[i] for i in trained.tolist()], [train[i] for i in tested.tolist()]
    else:
        test = _test_files(root, classes, faults)
    return Listing(root.resolve().name, classes, spread(train, train_limit), spread(test, test_limit))


def _by_folder(folder: Path) -> tuple[list[str], list[File]]:
    """Returns the names of the class folders, sorted, and all files with the number of their class."""
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not there: {LAYOUT}")
    classes = sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))
    if not classes:
        raise ValueError(f"{folder} has no folders in it: {LAYOUT}")
    files: list[File] = []
    for label, name in enumerate(classes):
        found = sorted(
            os.path.join(where, file)
            for where, inside in _folders(folder / name)
            for file in inside
            if file.lower().endswith(ENDINGS) and not file.startswith(".")
        )
        if not found:
            raise ValueError(f"{folder / name} has no images in it: fill it, or delete it from train/ and val/")
        files += [(path, label) for path in found]
    return classes, files


def _folders(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """Yields ``folder`` and those below it, by links too but each once, with their files; not the hidden ones."""
    seen = set(map(os.path.realpath, folder.parents))  # the other classes are not below this one
    for where, below, inside in os.walk(folder, onerror=_raised, followlinks=True):
        seen.add(os.path.realpath(where))
        links = {name for name in below if os.path.realpath(os.path.join(where, name)) in seen}
        below[:] = [name for name in below if not name.startswith(".") and name not in links]
        yield where, inside


def _raised(problem: OSError) -> None:
    """Ends the walk: a folder that may not be read is not an empty one."""
    raise problem


def _test_files(root: Path, classes: list[str], faults: Faults) -> list[File]:
    folder = root / "val" if (root / "val").is_dir() else root / "test"
    if not folder.is_dir():
        raise FileNotFoundError(f"{root} has neither val/ nor test/: {LAYOUT}")
    for labels in (root / f"{folder.name}.txt", folder / "val_annotations.txt"):
        if labels.is_file():
            return _by_label_file(labels, folder, classes, faults)
    found, files = _by_folder(folder)
    if found != classes:
        odd = sorted(set(found) ^ set(classes))
        raise ValueError(
            f"{root / 'train'} and {folder} must have the same classes; only one of them has {', '.join(odd[:5])}"
            + (f" and {len(odd) - 5} more" if len(odd) > 5 else "")
        )
    return files


def _by_label_file(labels: Path, folder: Path, classes: list[str], faults: Faults) -> list[File]:
    """Reads a row for each file: its name and its class, by name or, where not all are names, by number."""
    rows = [(place, line, line.split()) for place, line in utf8_lines(labels)]
    numbers = {name: number for number, name in enumerate(classes)}
    if not {words[1] for _, _, words in rows if len(words) > 1} <= numbers.keys():
        named = {name: number for name, number in numbers.items() if not name.isdecimal()}
        numbers = {str(number): number for number in numbers.values()} | named
    inside = folder / "images" if (folder / "images").is_dir() else folder  # Tiny ImageNet's
    files = []
    for place, line, words in rows:
        if len(words) < 2 or words[1] not in numbers:
            sentence = f"{line!r} is not a file and its class: write one of {folder.parent / 'train'} behind the file"
            faults.add(place, Unusable("broken row", sentence))
        else:
            files.append((str(inside / words[0]), numbers[words[1]]))
    if not files:
        raise ValueError(f"{labels} names no image of a class in {folder.parent / 'train'}: write a file and its class")
    return files


def spread(samples: Sequence[Chosen], limit: int | None) -> list[Chosen]:
    """Returns at most ``limit`` of the samples, evenly from all, since the first files are all of one class."""
    if limit is None or limit >= len(samples):
        return list(samples)
    if limit < 1:
        raise ValueError(f"each part of the data needs at least 1 image, not {limit}")
    return [samples[i * len(samples) // limit] for i in range(limit)]


# --- the pixels of a file -------------------------------------------------------------------------------------------


def read(path: str, size: int, seed: int | None) -> Bytes:
    """Reads (size, size, 3) of a file: a part that is a function of ``seed``, or without a seed the centre."""
    Image, image = pillow(), opened(path)
    if seed is None:
        return centre(image, size)
    crop, flipped = drawn_crop(image.size, seed)
    image = image.crop(crop).resize((size, size), Image.Resampling.BILINEAR)
    if flipped:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)


def drawn_crop(size: tuple[int, int], seed: int) -> tuple[tuple[int, int, int, int], bool]:
    """Draws the part of an image of that width and height that is taken, and whether it is flipped."""
    numbers = random.Random(seed)
    return random_crop(*size, numbers), numbers.random() < 0.5


def random_crop(width: int, height: int, numbers: random.Random) -> tuple[int, int, int, int]:
    """Draws left, top, right and bottom of a part of an image: 0.08 to 1 of its area, sides from 3:4 to 4:3."""
    for _ in range(10):
        area = width * height * numbers.uniform(0.08, 1)
        ratio = math.exp(numbers.uniform(math.log(3 / 4), math.log(4 / 3)))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            left, top = int(numbers.random() * (width - w + 1)), int(numbers.random() * (height - h + 1))
            return left, top, left + w, top + h
    w, h = min(width, round(height * 4 / 3)), min(height, round(width * 4 / 3))  # too long an image: its middle
    left, top = (width - w) // 2, (height - h) // 2
    return left, top, left + w, top + h


def centre(image: Any, size: int) -> Bytes:
    """Returns (size, size, 3) from the middle of an image, its shorter side scaled to ``size * 256 / 224``."""
    width, height = image.size
    scale = size * 256 / 224 / min(width, height)
    width, height = max(size, round(width * scale)), max(size, round(height * scale))
    left, top = (width - size) // 2, (height - size) // 2
    image = image.resize((width, height), pillow().Resampling.BILINEAR)
    return np.asarray(image.crop((left, top, left + size, top + size)))


def decoded(
    files: Sequence[File], make: Callable[[str], Made], faults: Faults, wanted: Options
) -> Iterator[tuple[File, Made]]:
    """Yields each file with what ``make`` returns for its path, by threads; those that do not decode are faults."""

    def tried(file: File) -> Made | Unusable:
        try:
            return make(file[0])
        except Exception as problem:  # pillow has many kinds
            return Unusable("undecodable image", f"it cannot be read as an image ({problem}): replace it or delete it")

    threads = ThreadPoolExecutor(max(cores() if wanted.workers is None else wanted.workers, 1))
    try:
        for file, made in zip(files, threads.map(tried, files), strict=True):
            if isinstance(made, Unusable):
                faults.add(file[0], made)
            else:
                yield file, made
    finally:
        threads.shutdown(cancel_futures=True)


def opened(path: str) -> Any:
    """Opens an image in colours of 8 bits; of grey with 16 bits the upper eight are taken."""
    with pillow().open(path) as file:
        _check_pixels(file)
        if file.mode.startswith("I"):  # pillow would make all that is above 255 white
            return pillow().fromarray((np.asarray(file) >> 8).astype(np.uint8)).convert("RGB")
        return file.convert("RGB")


def checked(path: str) -> None:
    """Reads a file to its end, at a small scale where its format allows that."""
    with pillow().open(path) as file:
        file.draft("RGB", (1, 1))
        file.load()
        _check_pixels(file)


def _check_pixels(file: Any) -> None:
    low, high = (0, 0) if file.mode not in ("I", "F") else file.getextrema()
    if file.mode == "F" or low < 0 or high >= 2**16:
        raise ValueError("its pixels have no known range: save it with 8 bits a colour, or 16 of grey")


def dimensions(path: str) -> tuple[int, int]:
    """Returns width and height, or zeros for a file that is no image: it is named when it is read."""
    try:
        with pillow().open(path) as file:
            width, height = file.size
            return width, height
    except Exception:  # pillow has many kinds
        return 0, 0


def pillow() -> Any:
    """Imports pillow's ``Image`` module."""
    try:
        from PIL import Image
    except ImportError as missing:
        raise ImportError("reading image files needs pillow: pip install 'ssgd[images]'") from missing
    return Image
