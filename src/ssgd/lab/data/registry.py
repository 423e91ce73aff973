"""Every data set by name, and your own by its folder or by the function that loads it."""

from __future__ import annotations

from pathlib import Path

import torch

from ssgd.lab.data.batches import Source
from ssgd.lab.data.download import data_folder
from ssgd.lab.data.images import DeviceImages, ImageSet
from ssgd.lab.imported import imported

__all__ = ["NAMES", "NORMALISED", "SPEECH", "Source", "check_name", "load"]

NORMALISED = ("speaker", "global", "none")  # what features of speech are normalised over
SPEECH = ("an4", "fsdd", "connected-digits", "wsj", "fake-speech")
NAMES = ("cifar10", "cifar100", "mnist", "fashion-mnist", "digits", "fake", "ptb", "fake-text", *SPEECH)


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
) -> Source:
    """Loads a data set: one of ``NAMES``, a path, or ``"package.module:load"``.

    The files of a named set lie in ``folder`` or are downloaded there. A path has ``train/`` and ``val/`` with images,
    or three text files, or lists of recordings (``train.jsonl``, ``test.jsonl``); a folder of images may lie in
    ``folder`` too. ``load()`` of a module returns two map-style Datasets, for training and for testing, or a Source.

    ``held_out`` training samples take the place of the test set. ``workers`` processes read image files and Datasets;
    ``image_size`` is the width and height to which image files are brought. ``bad`` says what becomes of rows and
    files that cannot be used: ``"raise"`` ends with the first, ``"skip"`` goes on without them and lists them in
    ``skipped``. ``spec_augment`` and ``normalise`` are for speech.
    """
    known = name in NAMES
    if known and name not in (*SPEECH, "ptb", "fake-text"):
        images = _images(name, folder, download)
        if held_out:
            images = images.held_out(held_out)
        return DeviceImages(images.limited(train_limit, test_limit), device, dtype, augment)
    from ssgd.lab.data.corpora import is_speech, load_speech  # a training needs the readers of its own data alone
    from ssgd.lab.data.folder import Folder, fits
    from ssgd.lab.data.own import own_source
    from ssgd.lab.data.text import TextSource, fake_text, is_text, text

    path = Path(name).expanduser()
    if name in SPEECH or (not known and is_speech(path)):
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
    if name in ("ptb", "fake-text") or (not known and is_text(path)):
        if held_out:
            raise ValueError(f"held_out is for images, and {name} is a text with a validation part: use that")
        place = data_folder(folder) / name if name == "ptb" else path
        return TextSource(
            fake_text() if name == "fake-text" else text(place, bad=bad),
            device,
            train_limit=train_limit,
            test_limit=test_limit,
        )
    if _is_function(name):
        return own_source(
            name,
            device=device,
            dtype=dtype,
            augment=augment,
            train_limit=train_limit,
            test_limit=test_limit,
            held_out=held_out,
            workers=workers,
        )
    root = _root(name, folder)
    return Folder(
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
        in_memory=torch.device(device).type == "cuda" and fits(root, image_size),  # the CPU's workers cut as fast
    )


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


def _images(name: str, folder: str | Path | None, download: bool) -> ImageSet:
    if name == "digits":
        from ssgd.lab.data.digits import digit_images

        return digit_images()
    if name == "fake":
        from ssgd.lab.data.images import fake_images

        return fake_images()
    from ssgd.lab.data.cifar import cifar
    from ssgd.lab.data.mnist import mnist

    reader = cifar if name.startswith("cifar") else mnist
    return reader(name, data_folder(folder), download)
