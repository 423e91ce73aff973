"""Batches of image files, read by worker processes ahead of being asked for."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from ssgd.lab.data.crops import read

Request = list[tuple[str, int, int | None]]  # a batch: paths, classes and the seed of each crop; none for the centre


class Stream:
    """The worker processes; they live as long as it does."""

    def __init__(self, size: int, workers: int, device: torch.device, normalised: Callable[[Tensor], Tensor]) -> None:
        self._device, self._normalised = device, normalised
        self._requests = Requests()
        self._loader: DataLoader[Any] = DataLoader(
            Images(size),
            batch_size=None,
            sampler=self._requests,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda",
            worker_init_fn=_apart,
            generator=torch.Generator(),  # or starting would draw from torch's own, which the training uses
        )
        self._running: Iterator[tuple[Tensor, Tensor] | str] = iter(())
        self._at: tuple[Hashable, int] | None = None

    def run(self, requests: Iterable[Request]) -> Iterator[tuple[Tensor, Tensor]]:
        """The batches of these requests, in turn."""
        self._start(requests)
        for made in self._running:
            yield self._finished(made)

    def batch(self, key: Hashable, step: int, requests: Iterable[Request]) -> tuple[Tensor, Tensor]:
        """The first of ``requests``, which begin at ``step``; ``key`` tells which batches go on from each other."""
        if self._at != (key, step):
            if self._at != (key, step - 1):
                self._start(requests)
            self._at = None  # until it is made
            self._batch = self._finished(next(self._running))
            self._at = key, step
        return self._batch

    def _start(self, requests: Iterable[Request]) -> None:
        self._requests.all = requests
        self._running = iter(self._loader)

    def _finished(self, made: tuple[Tensor, Tensor] | str) -> tuple[Tensor, Tensor]:
        if isinstance(made, str):
            raise ValueError(made)
        images, labels = (part.to(self._device, non_blocking=True) for part in made)
        return self._normalised(images), labels


class Requests(Sampler[Request]):
    """What the loader reads next; exchanged between its runs, while the worker processes live on."""

    def __init__(self) -> None:
        self.all: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.all)


class Images(Dataset[Any]):
    """A batch's bytes (B, size, size, 3) and labels, or a sentence about the image that cannot be read."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __getitem__(self, request: Request) -> tuple[Tensor, Tensor] | str:
        images = np.empty((len(request), self.size, self.size, 3), np.uint8)
        for image, (path, _, seed) in zip(images, request, strict=True):
            try:
                image[:] = read(path, self.size, seed)
            except Exception as problem:  # pillow has many kinds, and the loader would bury the sentence in its own
                return f"{path} cannot be read as an image ({problem}): replace it, or use bad='skip' to do without it"
        return torch.from_numpy(images), torch.tensor([label for _, label, _ in request])


def _apart(_: int) -> None:
    """A signal meant for the training's process group leaves its workers alone: the training ends them itself."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
