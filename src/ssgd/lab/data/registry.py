"""Every data set by name, and your own by its folder or by the function that loads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ssgd.imported import imported
from ssgd.lab.data.batches import Options, Source
from ssgd.lab.data.download import data_folder
from ssgd.lab.data.images import DeviceImages, ImageSet, digit_images, fake_images

__all__ = ["NAMES", "NORMALISED", "SPEECH", "Options", "Source", "check_name", "load"]

NORMALISED = ("speaker", "global", "none")  # what features of speech are normalised over
SPEECH = ("an4", "fsdd", "connected-digits", "wsj", "fake-speech")
TEXTS = ("ptb", "ptb-characters", "fake-text")
NAMES = ("cifar10", "cifar100", "mnist", "fashion-mnist", "digits", "fake", *TEXTS, *SPEECH)


def load(name: str, folder: str | Path | None = None, **options: Any) -> Source:
    """Loads a data set: one of ``NAMES``, a path, or ``"package.module:load"``.

    The files of a named set lie in ``folder`` or are downloaded there. A path has ``train/`` and ``val/`` with images,
    or three text files, or lists of recordings (``train.jsonl``, ``test.jsonl``); a folder of images may lie in
    ``folder`` too. ``load()`` of a module returns two map-style Datasets, for training and for testing, or a Source.

    ``options`` are the other fields of :class:`Options`.
    """
    wanted = Options(folder, **options)
    known = name in NAMES
    if known and name not in (*SPEECH, *TEXTS):
        return DeviceImages.of(_images(name, wanted), wanted)
    from ssgd.lab.data.corpora import is_speech, load_speech  # a training needs the readers of its own data alone
    from ssgd.lab.data.folder import image_folder
    from ssgd.lab.data.own import own_source
    from ssgd.lab.data.text import is_text, load_text

    path = Path(name).expanduser()
    if name in SPEECH or (not known and is_speech(path)):
        return load_speech(name, wanted)
    if name in TEXTS or (not known and is_text(path)):
        return load_text(name, wanted)
    return own_source(name, wanted) if _is_function(name) else image_folder(_root(name, folder), wanted)


def check_name(name: str, folder: str | Path | None = None) -> None:
    """Refuses a name that load() does not know, before anything is loaded."""
    if _is_function(name):
        imported(name)
    elif name not in NAMES:
        _root(name, folder)


def _is_function(name: str) -> bool:
    return ":" in name and not Path(name).expanduser().exists()


def _root(name: str, folder: str | Path | None) -> Path:
    places = Path(name).expanduser(), data_folder(folder) / name
    for place in places:
        if place.is_dir():
            return place
    raise ValueError(
        f"no data set called {name!r}: use {', '.join(NAMES)}, or the path of a folder with train/ and val/, with"
        " three text files, for train, valid and test, or with lists of recordings, or 'package.module:load' for a"
        f" function of your own; there is no folder {' or '.join(str(place.absolute()) for place in places)}"
    )


def _images(name: str, wanted: Options) -> ImageSet:
    if name == "digits":
        return digit_images()
    if name == "fake":
        return fake_images()
    from ssgd.lab.data.cifar import cifar
    from ssgd.lab.data.mnist import mnist

    reader = cifar if name.startswith("cifar") else mnist
    return reader(name, data_folder(wanted.folder), wanted.download)
