"""Every data set by name."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from ssgd.lab.data.cifar import cifar
from ssgd.lab.data.digits import digit_images
from ssgd.lab.data.fake import fake_images
from ssgd.lab.data.faults import Skipped
from ssgd.lab.data.folder import Folder
from ssgd.lab.data.images import ImageSet
from ssgd.lab.data.in_memory import FolderInMemory, fits
from ssgd.lab.data.mnist import mnist
from ssgd.lab.data.on_device import DeviceImages
from ssgd.lab.data.speech import NAMES as SPEECH
from ssgd.lab.data.speech import SpeechSource, is_speech, load_speech
from ssgd.lab.data.text import Text, TextSource, fake_text, is_text, text
from ssgd.lab.data.where import data_folder

NAMES = ("cifar10", "cifar100", "mnist", "fashion-mnist", "digits", "fake", "ptb", "fake-text", *SPEECH)


class Batches(Protocol):
    """An epoch of training images."""

    def batch(self, step: int, size: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, ...]: ...


class Source(Protocol):
    """What a training needs of its data: batches on the device, normalised, as a function of seed, epoch and step."""

    name: str
    kind: str  # of learning: "images", …
    classes: int
    channels: int

    @property
    def skipped(self) -> Sequence[Skipped]: ...

    def first(self, count: int) -> Source:
        """At most so many samples of each part, as the whole source gives them."""
        ...

    def steps(self, size: int) -> int: ...

    def epoch(self, seed: int, number: int) -> Batches: ...

    def test_batches(self, size: int = ..., rank: int = 0, ranks: int = 1) -> Iterator[tuple[Tensor, ...]]: ...

    def clean_train_batches(self, size: int = ..., rank: int = 0, ranks: int = 1) -> Iterator[tuple[Tensor, ...]]: ...


def load(
    name: str,
    folder: str | Path | None = None,
    *,
    device: torch.device | str,
    dtype: torch.dtype,
    augment: bool = True,
    train_limit: int | None = None,
    test_limit: int | None = None,
    held_out: int = 0,
    download: bool = True,
    workers: int | None = None,
    image_size: int = 224,
    bad: str = "raise",
    spec_augment: bool = False,
    normalise: str = "speaker",
) -> DeviceImages | Folder | FolderInMemory | TextSource | SpeechSource:
    """One of ``NAMES``, whose files lie in ``folder`` or are downloaded there, or a path with ``train/`` and ``val/``
    or with three text files, or with manifests of speech (``train.jsonl``, ``test.jsonl``). Folders of images may lie
    in ``folder`` too.

    ``held_out`` training images take the place of the test set. ``workers`` and ``image_size`` are for paths. ``bad``
    says what becomes of rows and files that cannot be read as they are: ``"raise"`` ends with the first, ``"skip"``
    goes on without them and names them in ``skipped``. ``spec_augment`` and ``normalise`` are for speech.
    """
    if name in SPEECH or (name not in NAMES and is_speech(Path(name).expanduser())):
        return load_speech(
            name,
            data_folder(folder),
            device=device,
            dtype=dtype,
            spec_augment=spec_augment,
            normalise=normalise,
            bad=bad,
            train_limit=train_limit,
            test_limit=test_limit,
            held_out=held_out,
        )
    if name in ("ptb", "fake-text") or (name not in NAMES and is_text(Path(name).expanduser())):
        if held_out:
            raise ValueError(f"held_out is for images, and {name} is a text with a validation part: use that")
        words = fake_text() if name == "fake-text" else _text(name, folder, bad)
        return TextSource(words, device, train_limit=train_limit, test_limit=test_limit)
    if name in NAMES:
        images = _images(name, folder, download)
        if held_out:
            images = images.held_out(held_out)
        return DeviceImages(images.limited(train_limit, test_limit), device, dtype, augment)
    root = _root(name, folder)
    on_gpu = torch.device(device).type == "cuda"  # elsewhere worker processes cut images as fast
    return (FolderInMemory if on_gpu and fits(root, image_size) else Folder)(
        root,
        image_size,
        workers,
        device=device,
        dtype=dtype,
        augment=augment,
        train_limit=train_limit,
        test_limit=test_limit,
        held_out=held_out,
        bad=bad,
    )


def check_name(name: str, folder: str | Path | None = None) -> None:
    if name not in NAMES:
        _root(name, folder)


def _root(name: str, folder: str | Path | None) -> Path:
    places = Path(name).expanduser(), data_folder(folder) / name
    for place in places:
        if place.is_dir():
            return place
    raise ValueError(
        f"no data set called {name!r}: use {', '.join(NAMES)}, or the path of a folder with train/ and val/, with"
        " three text files, for train, valid and test, or with lists of recordings; there is no folder"
        f" {' or '.join(str(place.absolute()) for place in places)}"
    )


def _text(name: str, folder: str | Path | None, bad: str) -> Text:
    return text(data_folder(folder) / name if name == "ptb" else Path(name).expanduser(), bad=bad)


def _images(name: str, folder: str | Path | None, download: bool) -> ImageSet:
    if name == "digits":
        return digit_images()
    if name == "fake":
        return fake_images()
    reader = cifar if name.startswith("cifar") else mnist
    return reader(name, data_folder(folder), download)
