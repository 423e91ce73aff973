"""CIFAR-10 and CIFAR-100 from their original files, pickles of which nothing is run."""

from __future__ import annotations

import hashlib
import io
import pickle
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ssgd.lab.data.download import fetch, one_at_a_time, unpack
from ssgd.lab.data.images import ImageSet

SERVER = "https://www.cs.toronto.edu/~kriz/"
ARCHIVES = {
    "cifar10": ("cifar-10-python.tar.gz", "c58f30108f718f92721af3b95e74349a"),
    "cifar100": ("cifar-100-python.tar.gz", "eb9058c3a382ffc7106e4002c42a8d85"),
}
PUBLISHED_MD5 = {
    "cifar10": {
        "data_batch_1": "c99cafc152244af753f735de768cd75f",
        "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
        "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
        "data_batch_4": "634d18415352ddfa80567beed471001a",
        "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
        "test_batch": "40351d587109b95175f43aff81a1287e",
    },
    "cifar100": {"train": "16019d7e3df5f24257cddd939b257f8d", "test": "f0ef6b0ae62326f3e7ffdfab6717acfc"},
}
FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
LABELS = {"cifar10": "labels", "cifar100": "fine_labels"}


def cifar(name: str, root: str | Path, download: bool = True) -> ImageSet:
    """Reads ``"cifar10"`` or ``"cifar100"`` from ``root/cifar-10-batches-py`` or ``root/cifar-100-python``."""
    if name not in FOLDERS:
        raise ValueError(f"no CIFAR called {name!r}: there are {' and '.join(FOLDERS)}")
    folder = Path(root) / FOLDERS[name]
    if download and not folder.exists():
        _download(name, Path(root))
    parts = {part: _read(folder / part, md5) for part, md5 in PUBLISHED_MD5[name].items()}
    train = [parts[part] for part in parts if not part.startswith("test")]
    test = [parts[part] for part in parts if part.startswith("test")]
    classes = 10 if name == "cifar10" else 100
    return ImageSet(name, *_tensors(train, LABELS[name]), *_tensors(test, LABELS[name]), classes)


def _download(name: str, root: Path) -> None:
    archive, md5 = ARCHIVES[name]
    with one_at_a_time(root):
        if not (root / FOLDERS[name]).exists():
            unpack(fetch(SERVER + archive, root / archive, md5=md5), root)


def _tensors(parts: list[dict[str, Any]], key: str) -> tuple[Tensor, Tensor]:
    images = np.concatenate([part["data"] for part in parts]).reshape(-1, 3, 32, 32)
    return torch.from_numpy(images), torch.tensor([label for part in parts for label in part[key]])


def _read(path: Path, md5: str) -> dict[str, Any]:
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is not there: download and unpack the python version from https://www.cs.toronto.edu/~kriz/cifar.html"
            f" into {path.parent.parent}"
        )
    content = path.read_bytes()
    if hashlib.md5(content, usedforsecurity=False).hexdigest() != md5:
        raise ValueError(f"{path} is damaged or cut short (its md5 is not the published {md5}): unpack it again")
    try:
        found: dict[str, Any] = ArraysOnly(io.BytesIO(content), encoding="latin1").load()
    except pickle.UnpicklingError as problem:
        raise pickle.UnpicklingError(f"{path}: {problem}") from problem
    return found


class ArraysOnly(pickle.Unpickler):
    """Builds arrays, strings, numbers and their containers, and refuses anything else."""

    allowed: ClassVar[dict[tuple[str, str], Any]] = {
        ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self.allowed:
            raise pickle.UnpicklingError(
                f"this file asks for {module}.{name}, which no image data needs: do not open it"
            )
        return self.allowed[module, name]
