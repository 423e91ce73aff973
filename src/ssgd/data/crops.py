"""One image file as a square of bytes: a random part of it, or its centre."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np


def read(path: str, size: int, seed: int | None) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """(size, size, 3): a crop that is a function of ``seed``, or without one the centre."""
    Image = pillow()
    with Image.open(path) as file:
        image = file.convert("RGB")
    if seed is None:
        return np.asarray(_centre(image, size, Image.Resampling.BILINEAR))
    numbers, (width, height) = random.Random(seed), image.size
    image = image.crop(random_crop(width, height, numbers)).resize((size, size), Image.Resampling.BILINEAR)
    if numbers.random() < 0.5:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    return np.asarray(image)


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


def _centre(image: Any, size: int, resampling: Any) -> Any:
    width, height = image.size
    scale = size * 256 / 224 / min(width, height)
    width, height = max(size, round(width * scale)), max(size, round(height * scale))
    left, top = (width - size) // 2, (height - size) // 2
    return image.resize((width, height), resampling).crop((left, top, left + size, top + size))


def pillow() -> Any:
    try:
        from PIL import Image
    except ImportError as missing:
        raise ImportError("reading image files needs pillow: pip install pillow") from missing
    return Image
