"""MNIST and Fashion-MNIST from their original idx files, compressed or not."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ssgd.lab.data.download import fetch, one_at_a_time
from ssgd.lab.data.images import ImageSet

SERVERS = {
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
    "fashion-mnist": "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
}
PUBLISHED_MD5 = {  # of the compressed files
    "mnist": {
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    "fashion-mnist": {
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
}


def mnist(name: str, root: str | Path, download: bool = True) -> ImageSet:
    """Reads ``"mnist"`` or ``"fashion-mnist"`` from the idx files in ``root/mnist`` or ``root/fashion-mnist``."""
    if name not in SERVERS:
        raise ValueError(f"no MNIST called {name!r}: there are {' and '.join(SERVERS)}")
    folder = Path(root) / name
    missing = [file for file in PUBLISHED_MD5[name] if not _found(folder, file)]
    if missing and download:
        with one_at_a_time(folder):
            for file in missing:
                fetch(f"{SERVERS[name]}{file}.gz", folder / f"{file}.gz", md5=PUBLISHED_MD5[name][file])
    train, test = _part(folder, "train", SERVERS[name]), _part(folder, "t10k", SERVERS[name])
    return ImageSet(name, *train, *test, classes=10, flip=name == "fashion-mnist")


def _part(folder: Path, part: str, server: str) -> tuple[Tensor, Tensor]:
    images = _read(folder, f"{part}-images-idx3-ubyte", server, (28, 28))
    labels = _read(folder, f"{part}-labels-idx1-ubyte", server, ())
    if len(images) != len(labels):
        raise ValueError(
            f"{folder} has {len(images)} {part} images but {len(labels)} labels: delete its files, and they are"
            " downloaded again"
        )
    return images.unsqueeze(1), labels.long()


def _read(folder: Path, file: str, server: str, shape: tuple[int, ...]) -> Tensor:
    path = _found(folder, file)
    if path is None:
        raise FileNotFoundError(f"{folder / file} is not there: download {server}{file}.gz and put it into {folder}")
    try:
        return _parsed(path.read_bytes(), path.suffix == ".gz", shape)
    except (ValueError, EOFError, struct.error, gzip.BadGzipFile, zlib.error) as problem:
        raise ValueError(
            f"{path} is damaged or cut short ({problem}): delete it, and it is downloaded again"
        ) from problem


def _parsed(content: bytes, compressed: bool, shape: tuple[int, ...]) -> Tensor:
    if compressed:
        content = gzip.decompress(content)
    dimensions = 1 + len(shape)
    magic, count, *rest = struct.unpack_from(f">{1 + dimensions}I", content)
    if magic != 0x0800 + dimensions:
        raise ValueError(f"its first number is {magic}, not {0x0800 + dimensions}")
    if tuple(rest) != shape:
        raise ValueError(f"its images are {'×'.join(map(str, rest))}, not {'×'.join(map(str, shape))}")
    if not count:
        raise ValueError("its count is 0")
    header, pixels = 4 * (1 + dimensions), count * math.prod(shape)
    if len(content) != header + pixels:
        raise ValueError(f"it has {len(content)} bytes, not {header + pixels}")
    values = np.frombuffer(content, np.uint8, offset=header).copy()
    if not shape and values.max() > 9:
        raise ValueError(f"it has a class {values.max()}, but there are 0 to 9")
    return torch.from_numpy(values).view(count, *shape)


def _found(folder: Path, file: str) -> Path | None:
    return next((path for path in (folder / file, folder / f"{file}.gz") if path.exists()), None)
