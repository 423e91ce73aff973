"""Image files as bytes: a random part of one or its centre, as a square, or many as they are."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np

from ssgd.lab.data.faults import Faults, Unusable
from ssgd.lab.data.listing import File

Made = TypeVar("Made")
Bytes = np.ndarray[Any, np.dtype[np.uint8]]


def read(path: str, size: int, seed: int | None) -> Bytes:
    """(size, size, 3): a crop that is a function of ``seed``, or without one the centre."""
    Image, image = pillow(), opened(path)
    if seed is None:
        return centre(image, size)
    crop, flipped = drawn_crop(image.size, seed)
    image = image.crop(crop).resize((size, size), Image.Resampling.BILINEAR)
    if flipped:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)


def drawn_crop(size: tuple[int, int], seed: int) -> tuple[tuple[int, int, int, int], bool]:
    """Which part of an image of that width and height is taken, and whether it is flipped."""
    numbers = random.Random(seed)
    return random_crop(*size, numbers), numbers.random() < 0.5


def random_crop(width: int, height: int, numbers: random.Random) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a part of the image: 0.08 to 1 of its area, sides from 3:4 to 4:3."""
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
    """(size, size, 3) from the middle of an image whose shorter side was scaled to ``size * 256 / 224``."""
    width, height = image.size
    scale = size * 256 / 224 / min(width, height)
    width, height = max(size, round(width * scale)), max(size, round(height * scale))
    left, top = (width - size) // 2, (height - size) // 2
    image = image.resize((width, height), pillow().Resampling.BILINEAR)
    return np.asarray(image.crop((left, top, left + size, top + size)))


def decoded(
    files: Sequence[File], make: Callable[[str], Made], faults: Faults, workers: int
) -> Iterator[tuple[File, Made]]:
    """What ``make`` makes of each file, in their order, by so many threads; files that do not decode go to faults."""

    def tried(file: File) -> Made | Unusable:
        try:
            return make(file[0])
        except Exception as problem:  # pillow has many kinds
            return Unusable("undecodable image", f"it cannot be read as an image ({problem}): replace it or delete it")

    threads = ThreadPoolExecutor(max(workers, 1))
    try:
        for file, made in zip(files, threads.map(tried, files), strict=True):
            if isinstance(made, Unusable):
                faults.add(file[0], made)
            else:
                yield file, made
    finally:
        threads.shutdown(cancel_futures=True)


def opened(path: str) -> Any:
    """The image in its colours; of grey with 16 bits the upper eight."""
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


def pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as missing:
        raise ImportError("reading image files needs pillow: pip install 'ssgd[images]'") from missing
    return Image
