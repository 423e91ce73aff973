"""Which image files a folder has, of which classes: ``train/<class>/*.jpg`` and ``val/<class>/*.jpg``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from ssgd.lab.data.faults import Faults, Unusable
from ssgd.lab.data.images import held_out as draw_held_out
from ssgd.lab.data.lines import utf8_lines

File = tuple[str, int]  # its path and class
Chosen = TypeVar("Chosen")
ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")
LAYOUT = "an image folder has train/<class>/*.jpg and val/<class>/*.jpg"


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
    """The files of ``root``; ``held_out`` training files take the place of the test files, limits come last."""
    root = Path(root)
    classes, train = _by_folder(root / "train")
    if held_out:
        held, kept = draw_held_out(len(train), held_out)
        train, test = [train[i] for i in kept.tolist()], [train[i] for i in held.tolist()]
    else:
        test = _test_files(root, classes, faults)
    return Listing(root.resolve().name, classes, spread(train, train_limit), spread(test, test_limit))


def _by_folder(folder: Path) -> tuple[list[str], list[File]]:
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
            for where, inside in _folders(folder / name)
            for file in inside
            if file.lower().endswith(ENDINGS) and not file.startswith(".")
        )
        if not found:
            raise ValueError(f"{folder / name} has no images in it: fill it, or delete it from train/ and val/")
        files += [(path, label) for path in found]
    return classes, files


def _folders(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """This one and those below it, also by links but each once, with the files in them; hidden ones are passed over."""
    seen = set(map(os.path.realpath, folder.parents))  # the other classes are not below this one
    for where, below, inside in os.walk(folder, onerror=_refused, followlinks=True):
        seen.add(os.path.realpath(where))
        links = {name for name in below if os.path.realpath(os.path.join(where, name)) in seen}
        below[:] = [name for name in below if not name.startswith(".") and name not in links]
        yield where, inside


def _refused(problem: OSError) -> None:
    """A folder that may not be read is not an empty one."""
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
    """A row a file: its name and its class, by the name of the class or, where not all are names, by its number."""
    rows = [(place, line, line.split()) for place, line in utf8_lines(labels)]
    numbers = {name: number for number, name in enumerate(classes)}
    if not {words[1] for _, _, words in rows if len(words) > 1} <= numbers.keys():
        numbers = {str(number): number for number in numbers.values()} | _no_numbers(numbers)
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


def _no_numbers(classes: dict[str, int]) -> dict[str, int]:
    """Those that no number could be taken for."""
    return {name: number for name, number in classes.items() if not name.isdecimal()}


def spread(files: Sequence[Chosen], limit: int | None) -> list[Chosen]:
    """At most ``limit`` files, evenly from all, since the first ones are all of one class."""
    if limit is None or limit >= len(files):
        return list(files)
    if limit < 1:
        raise ValueError(f"each part of the data needs at least 1 image, not {limit}")
    return [files[i * len(files) // limit] for i in range(limit)]
