"""Sources of batches, and the arithmetic that they share: samples of a batch, parts of ranks, random numbers."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

import torch
from torch import Tensor

from ssgd.core.noise import mix
from ssgd.lab.data.faults import Skipped
from ssgd.lab.data.preprocess import Preprocess

KEPT = 24  # epochs kept of each source, for trainings that run side by side and may be at different epochs

Key = TypeVar("Key", bound=Hashable)
Made = TypeVar("Made")


@dataclass(frozen=True)
class Options:
    """What is taken of a data set, in what form, and for which device: what load() is asked for besides a name.

    Attributes:
        folder: where the files of sets by name lie, or are downloaded to.
        workers: the processes that read image files and Datasets; None is one for each core.
        train_limit, test_limit: the most samples of a part; they come after ``held_out``.
        held_out: so many training samples take the place of the test set; of a text its validation part does, whole.
        image_size: the width and height to which image files are brought.
        bad: what becomes of rows and files that cannot be used: ``"raise"`` ends with the first, ``"skip"`` goes on
            without them and lists them in the source's ``skipped``.
        spec_augment, normalise: for the features of speech.
    """

    folder: str | Path | None = None
    device: torch.device | str = "cpu"
    dtype: torch.dtype = torch.float32
    download: bool = True
    workers: int | None = None
    augment: bool = True
    train_limit: int | None = None
    test_limit: int | None = None
    held_out: int = 0
    image_size: int = 224
    bad: str = "raise"
    spec_augment: bool = False
    normalise: str = "speaker"

    def __post_init__(self) -> None:
        for name in ("train_limit", "test_limit"):
            if (count := getattr(self, name)) is not None and count < 1:
                raise ValueError(f"{name} must be at least 1 sample, not {count}")


class Batches(Protocol):
    """An epoch of training samples."""

    def batch(self, step: int, size: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, ...]:
        """Returns batch ``step`` on the device; of its ``size`` samples rank r takes the r-th of equal parts."""
        ...


class Part(Protocol):
    """The training, validation or test part of a data set."""

    def first(self, count: int, /) -> Part:
        """Returns a part of at most so many samples, normalised as all are."""
        ...

    def steps(self, size: int, /) -> int:
        """Returns how many whole batches of ``size`` an epoch has; the samples left over sit this epoch out."""
        ...

    def epoch(self, seed: int, number: int, /) -> Batches:
        """Returns the samples once, augmented, in an order that is a function of seed and number."""
        ...

    def in_order(self, size: int, rank: int, ranks: int, /) -> Iterator[tuple[Tensor, ...]]:
        """Yields rank ``rank``'s share of all samples, not augmented."""
        ...


class Source:
    """The data of a training: batches on the device, normalised, as a function of seed, epoch and step.

    ``parts`` are "train", "test" and, where there is one, "valid". ``channels`` are those of an image or the features
    of a frame; ``skipped`` lists the rows and files that were left out; ``preprocess`` makes of a user's own images,
    words or recordings what the net takes, or is None where it takes them as they are.
    """

    kind = "images"  # or "language", or "speech"
    test_size = 1000  # samples in a batch that is not trained on
    epochs_kept = KEPT

    def __init__(
        self,
        name: str,
        classes: int,
        channels: int,
        parts: Mapping[str, Part],
        skipped: Sequence[Skipped] = (),
        preprocess: Preprocess | None = None,
    ) -> None:
        self.name, self.classes, self.channels, self.parts, self.skipped = name, classes, channels, parts, skipped
        self.preprocess = preprocess
        self._epochs: dict[tuple[int, int], Batches] = {}

    def first(self, count: int) -> Source:
        """Returns a source of at most so many samples of each part, as this one gives them."""
        fewer = copy(self)
        fewer.parts, fewer._epochs = {name: part.first(count) for name, part in self.parts.items()}, {}
        return fewer

    def steps(self, size: int) -> int:
        """Returns how many whole batches of ``size`` an epoch has; the samples left over sit this epoch out."""
        return self.parts["train"].steps(size)

    def epoch(self, seed: int, number: int) -> Batches:
        """Returns epoch ``number`` of seed ``seed``; trainings that ask for the same one share it."""
        make = partial(self.parts["train"].epoch, seed, number)
        return made_once(self._epochs, (seed, number), make, self.epochs_kept)

    def in_order(
        self, part: str, size: int | None = None, rank: int = 0, ranks: int = 1
    ) -> Iterator[tuple[Tensor, ...]]:
        """Yields all of a part, "train", "valid" or "test", not augmented; each rank has its share."""
        return self.parts[part].in_order(size or self.test_size, rank, ranks)


def whole_batches(samples: int, size: int) -> int:
    """Returns how many batches of ``size`` an epoch has; samples that do not fill one are left out of it."""
    if size < 1:
        raise ValueError(f"a batch needs at least 1 sample, not {size}")
    if samples < size:
        raise ValueError(f"a batch of {size} cannot be filled from {samples} training samples: make the batch smaller")
    return samples // size


def part_of_batch(samples: int, step: int, size: int, rank: int, ranks: int) -> slice:
    """Returns the places in the epoch of rank ``rank``'s part of batch ``step``."""
    steps = whole_batches(samples, size)
    _check_rank(rank, ranks)
    if not 0 <= step < steps:
        raise ValueError(f"step {step} is not in this epoch: it has the steps 0 to {steps - 1} at batch size {size}")
    if size % ranks:
        raise ValueError(f"a batch of {size} cannot be divided evenly among {ranks} ranks: use a multiple of {ranks}")
    part = size // ranks
    start = step * size + rank * part
    return slice(start, start + part)


def in_order(samples: int, size: int, rank: int, ranks: int) -> Iterator[slice]:
    """Yields rank ``rank``'s share of all samples, in pieces of at most ``size``: every sample is in one share."""
    if size < 1:
        raise ValueError(f"a batch needs at least 1 sample, not {size}")
    _check_rank(rank, ranks)
    first, end = rank * samples // ranks, (rank + 1) * samples // ranks
    return (slice(start, min(start + size, end)) for start in range(first, end, size))


def generator(seed: int, epoch: int) -> torch.Generator:
    """Returns the CPU generator of an epoch: its numbers are the same whatever device trains."""
    return torch.Generator().manual_seed(mix(seed, epoch, 0xDA7A))


def made_once(made: dict[Key, Made], key: Key, make: Callable[[], Made], most: int = KEPT) -> Made:
    """Returns ``made[key]``, made if it is missing. Of more than ``most`` values the one not asked for longest goes."""
    value = made.pop(key) if key in made else make()
    made[key] = value
    if len(made) > most:
        del made[next(iter(made))]
    return value


def _check_rank(rank: int, ranks: int) -> None:
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} of {ranks} does not exist: ranks count from 0 to {ranks - 1}")
