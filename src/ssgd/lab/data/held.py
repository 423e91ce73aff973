"""Images that a device holds as bytes, in whatever way an epoch makes batches of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from copy import copy
from functools import cached_property
from typing import Any, Generic, TypeVar

from torch import Tensor

from ssgd.lab.data import batches
from ssgd.lab.data.augment import normalised

KEPT = 24  # epochs kept, for trainings side by side, which may be at different ones

AnEpoch = TypeVar("AnEpoch")
Held = TypeVar("Held", bound="HeldImages[Any]")


class HeldImages(ABC, Generic[AnEpoch]):
    """Epochs that trainings share, and all images in order. ``_train`` and ``_test`` hold images and labels."""

    kind = "images"
    test_size = 1000  # images in a batch where nothing is trained
    _train: tuple[Tensor, Tensor]
    _test: tuple[Tensor, Tensor]
    _table: Tensor  # what each byte becomes

    @abstractmethod
    def _make_epoch(self, seed: int, number: int) -> AnEpoch: ...

    def steps(self, size: int) -> int:
        """Whole batches of ``size`` in an epoch; the images left over sit this epoch out."""
        return batches.whole_batches(len(self._train[1]), size)

    def epoch(self, seed: int, number: int) -> AnEpoch:
        """Epoch ``number`` of seed ``seed``; trainings that ask for the same one share it."""
        return kept(self._epochs, seed, number, self._make_epoch)

    def test_batches(self, size: int | None = None, rank: int = 0, ranks: int = 1) -> Iterator[tuple[Tensor, Tensor]]:
        """All test images in order; each rank has its share."""
        return self._in_order(*self._test, size or self.test_size, rank, ranks)

    def clean_train_batches(
        self, size: int | None = None, rank: int = 0, ranks: int = 1
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """All training images in order, not augmented; each rank has its share."""
        return self._in_order(*self._train, size or self.test_size, rank, ranks)

    def _copied(self: Held) -> Held:
        """Without the epochs that were made."""
        other = copy(self)
        other.__dict__.pop("_epochs", None)
        return other

    @cached_property
    def _epochs(self) -> dict[tuple[int, int], AnEpoch]:
        return {}

    def _in_order(
        self, images: Tensor, labels: Tensor, size: int, rank: int, ranks: int
    ) -> Iterator[tuple[Tensor, Tensor]]:
        parts = batches.in_order(len(labels), size, rank, ranks)
        return ((normalised(images[part], self._table), labels[part]) for part in parts)


def kept(
    epochs: dict[tuple[int, int], AnEpoch], seed: int, number: int, make: Callable[[int, int], AnEpoch]
) -> AnEpoch:
    """Epoch ``number`` of seed ``seed`` from ``epochs``, which gets it if need be and holds those asked for last."""
    epoch = epochs.pop((seed, number), None)
    if epoch is None:
        epoch = make(seed, number)
    epochs[seed, number] = epoch
    if len(epochs) > KEPT:
        del epochs[next(iter(epochs))]
    return epoch
