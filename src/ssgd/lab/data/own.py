"""Data sets of your own: a pair of map-style Datasets, torchvision's and Hugging Face's among them, or a Source."""

from __future__ import annotations

import operator
import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ssgd.imported import imported, takes
from ssgd.lab.data.augment import normalised
from ssgd.lab.data.batches import Options, Source
from ssgd.lab.data.faults import Unusable
from ssgd.lab.data.folder import spread
from ssgd.lab.data.images import draw_held_out
from ssgd.lab.data.map_style import MapSource, Request
from ssgd.lab.data.preprocess import Pixels

MEASURED = 1000  # training images, at most, from which mean and deviation of bytes are taken
FORM = "let it return (train, test), two Datasets with __len__ and __getitem__, or a Source of ssgd.lab.data"


def own_source(name: str, wanted: Options) -> Source:
    """Calls ``"package.module:load"`` and returns a source of its Datasets, or the Source that it returned.

    A ``load`` that has the parameters ``device`` and ``dtype`` is given them, for its Source. Limits and ``held_out``
    are for Datasets.

    Images in bytes (pillow's, arrays (H, W, C), uint8 tensors (C, H, W)) are normalised by mean and deviation of the
    training images; other inputs are taken as the Dataset gives them. Its own transforms augment: whatever they draw
    from torch, numpy or ``random`` is a function of seed, epoch and place in the epoch. With ``augment=False`` they
    draw the same in every epoch.
    """
    load = imported(name)
    options = {"device": torch.device(wanted.device), "dtype": wanted.dtype}
    if not takes(load) and not takes(load, **options):
        raise ValueError(f"{name} has parameters without a default: define it without, or with device and dtype alone")
    found = load(**options) if takes(load, **options) else load()
    if isinstance(found, Source):
        if wanted.held_out or wanted.train_limit is not None or wanted.test_limit is not None:
            raise ValueError(f"{name} returns a Source, which held_out and limits do not change: let {name} apply them")
        return found
    if not (isinstance(found, (tuple, list)) and len(found) == 2 and all(map(_is_map_style, found))):
        raise ValueError(f"{name} returned {_kind_of(found)}: {FORM}")
    train, test = (Items(dataset, range(len(dataset)), name) for dataset in found)
    if wanted.held_out:
        tested, trained = draw_held_out(len(train), wanted.held_out)
        train, test = (Items(found[0], places.tolist(), name) for places in (trained, tested))
    train, test = train.first(wanted.train_limit), test.first(wanted.test_limit)
    for part, items in (("training", train), ("test", test)):
        if not len(items):
            raise ValueError(f"{name} returned a {part} part without items: {FORM}")
    example = train.inputs([0])[0]
    train.classes = test.classes = train.count_classes()
    preprocess = train.normalisation() if example.dtype == torch.uint8 else None
    table = None if preprocess is None else preprocess.table(wanted.device, wanted.dtype)

    def finished(inputs: Tensor) -> Tensor:
        if table is not None:
            return normalised(inputs.permute(0, 2, 3, 1), table)
        return inputs.to(wanted.dtype) if inputs.is_floating_point() else inputs

    channels = len(example) if example.dim() else 1
    return MapSource(name, train.classes, channels, {"train": train, "test": test}, finished, wanted, (), preprocess)


class Items:
    """A part of a Dataset, its items given by number."""

    on_device = False
    classes: int | None = None  # once they are known

    def __init__(self, dataset: Any, numbers: Sequence[int], name: str) -> None:
        self._dataset, self._numbers, self._name = dataset, numbers, name

    def __len__(self) -> int:
        return len(self._numbers)

    def first(self, count: int | None) -> Items:
        return Items(self._dataset, spread(self._numbers, count), self._name)

    def __getitem__(self, request: Request) -> tuple[Tensor, Tensor] | str:
        try:
            with _restored_randomness():
                inputs, targets = zip(*(self._item(number, seed) for number, seed in request), strict=True)
            return self._stacked(inputs), torch.tensor(targets)
        except Unusable as problem:  # as a sentence, since the loader would bury an exception in its own
            return str(problem)

    def inputs(self, numbers: Iterable[int]) -> Tensor:
        """Returns the inputs of these items, as they are tested on."""
        with _restored_randomness():
            return self._stacked([self._item(number, None)[0] for number in numbers])

    def count_classes(self) -> int:
        """Returns how many classes there are: torchvision's list, Hugging Face's ``ClassLabel``, or by all targets."""
        if hasattr(self._dataset, "classes"):
            return len(self._dataset.classes)
        features = getattr(self._dataset, "features", None)
        if isinstance(features, Mapping):
            for feature in features.values():
                if hasattr(feature, "num_classes"):
                    return int(feature.num_classes)
        with _restored_randomness():
            return 1 + max(self._item(number, None)[1] for number in range(len(self)))

    def normalisation(self) -> Pixels:
        """Returns what normalises bytes, from at most ``MEASURED`` items spread over all."""
        return Pixels.of(self.inputs(spread(range(len(self)), MEASURED)))

    def _stacked(self, inputs: Sequence[Tensor]) -> Tensor:
        shapes = sorted({tuple(x.shape) for x in inputs})
        if len(shapes) > 1:
            sentence = f"{self._name} has inputs of the shapes {shapes[0]} and {shapes[1]}: let it bring all to one"
            raise Unusable("broken item", sentence)
        return torch.stack(list(inputs))

    def _item(self, number: int, seed: int | None) -> tuple[Tensor, int]:
        """Returns an item as a tensor and a number. Call it where random states are restored afterwards."""
        _seed_everything(number if seed is None else seed)
        item = self._dataset[self._numbers[number]]
        place = f"item {self._numbers[number]} of {self._name}"
        if isinstance(item, Mapping):
            item = tuple(item.values())
        if not isinstance(item, (tuple, list)) or len(item) != 2:
            sentence = f"{place} is {_kind_of(item)}: let the Dataset return an input and a target, and no more"
            raise Unusable("broken item", sentence)
        try:
            target = operator.index(item[1])
        except TypeError:
            sentence = f"the target of {place} is {_kind_of(item[1])}: let it be the number of a class"
            raise Unusable("broken item", sentence) from None
        if target < 0 or (self.classes is not None and target >= self.classes):
            last = "on" if self.classes is None else f"to {self.classes - 1}"
            raise Unusable("broken item", f"the target of {place} is {target}: classes count from 0 {last}")
        return _as_tensor(item[0], place), target


def _as_tensor(found: Any, place: str) -> Tensor:
    """Returns an input as a tensor: of images in bytes (C, H, W)."""
    if isinstance(found, Tensor):
        return found
    if hasattr(found, "convert") and hasattr(found, "mode"):  # an image of pillow's
        found = np.array(found if found.mode == "L" else found.convert("RGB"))
    if not isinstance(found, np.ndarray):
        sentence = f"the input of {place} is {_kind_of(found)}: let it be a tensor, an array or an image"
        raise Unusable("broken item", sentence)
    if found.dtype == np.uint8 and found.ndim in (2, 3):
        return torch.from_numpy(np.ascontiguousarray(np.atleast_3d(found).transpose(2, 0, 1)))
    return torch.from_numpy(found)


@contextmanager
def _restored_randomness() -> Iterator[None]:
    """Restores the global random states, which the training draws from, after the items have drawn theirs."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def _seed_everything(seed: int) -> None:
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _is_map_style(found: Any) -> bool:
    return hasattr(found, "__getitem__") and hasattr(found, "__len__")


def _kind_of(found: Any) -> str:
    return f"a {type(found).__name__}" + (f" of {len(found)}" if isinstance(found, (tuple, list)) else "")
