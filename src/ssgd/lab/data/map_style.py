"""Batches of samples that are read one at a time, such as image files, by worker processes ahead of the training."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Sampler

from ssgd.core.noise import mix
from ssgd.lab.data import batches
from ssgd.lab.data.batches import Source
from ssgd.lab.data.faults import Skipped
from ssgd.lab.data.preprocess import Preprocess

Request = list[tuple[int, int | None]]  # a batch: the number of each sample and the seed of its augmentation, if any
STREAMS_KEPT = 4  # seeds whose worker processes are kept, for trainings that run side by side


class Samples(Protocol):
    """A part of the data, of which batches are asked for by the numbers of samples."""

    on_device: bool  # whether the device has the samples already, so that no worker processes read them

    def __len__(self) -> int: ...

    def __getitem__(self, request: Request, /) -> tuple[Tensor, Tensor] | str:
        """Returns inputs and labels of a batch, or a sentence about the sample that cannot be read."""
        ...

    def first(self, count: int) -> Samples:
        """Returns at most ``count`` of the samples, evenly from all."""
        ...


class MapSource(Source):
    """A source of labelled samples, as folders of images and your own data sets are.

    The order of an epoch is a function of its seed and number; the seed of a sample's augmentation is a function of
    both and of the sample's place in the epoch. So a training may start at any step, with any number of ranks.
    ``finished`` turns the inputs of a batch on the device into what the net takes.
    """

    test_size = 256

    def __init__(
        self,
        name: str,
        classes: int,
        channels: int,
        parts: Mapping[str, Samples],
        finished: Callable[[Tensor], Tensor],
        wanted: batches.Options,
        skipped: Sequence[Skipped] = (),
        preprocess: Preprocess | None = None,
    ) -> None:
        self.epochs_kept = batches.KEPT if parts["train"].on_device else STREAMS_KEPT
        workers, device = cores() if wanted.workers is None else wanted.workers, torch.device(wanted.device)
        make = partial(Stream, workers=workers, device=device, finished=finished)
        streamed = {name: Streamed(samples, make, wanted.augment) for name, samples in parts.items()}
        super().__init__(name, classes, channels, streamed, skipped, preprocess)


class Streamed:
    """A part whose samples are read by streams; the epochs of one seed share a stream."""

    def __init__(self, samples: Samples, make_stream: Callable[[Samples], Stream], augment: bool) -> None:
        self._samples, self._make_stream, self._augment = samples, make_stream, augment
        self._streams: dict[int, Stream] = {}

    def first(self, count: int) -> Streamed:
        return Streamed(self._samples.first(count), self._make_stream, self._augment)

    def steps(self, size: int) -> int:
        return batches.whole_batches(len(self._samples), size)

    def epoch(self, seed: int, number: int) -> Epoch:
        make = partial(self._make_stream, self._samples)
        stream = batches.made_once(self._streams, seed, make, batches.KEPT if self._samples.on_device else STREAMS_KEPT)
        order = torch.randperm(len(self._samples), generator=batches.generator(seed, number))
        return Epoch(order, stream, seed, number, self._augment)

    def in_order(self, size: int, rank: int, ranks: int) -> Iterator[tuple[Tensor, Tensor]]:
        pieces = batches.in_order(len(self._samples), size, rank, ranks)
        stream = self._make_stream(self._samples)
        return stream.run([(number, None) for number in range(piece.start, piece.stop)] for piece in pieces)


class Epoch:
    """The training samples once, in an order of their own, each with a seed of its own for its augmentation."""

    def __init__(self, order: Tensor, stream: Stream, seed: int, number: int, augment: bool) -> None:
        self._order, self._stream, self._number = order, stream, number
        self._seeds = (seed, number) if augment else None

    def batch(self, step: int, size: int, rank: int = 0, ranks: int = 1) -> tuple[Tensor, Tensor]:
        """Returns inputs and labels. The batches after them are read meanwhile: asking for them in turn is fast."""
        part = partial(batches.part_of_batch, len(self._order), size=size, rank=rank, ranks=ranks)
        part(step)  # refuses a step that is not in the epoch
        steps = batches.whole_batches(len(self._order), size)
        requests = (self._request(part(later)) for later in range(step, steps))
        return self._stream.batch((self._number, size, rank, ranks), step, requests)

    def _request(self, part: slice) -> Request:
        numbers, places = self._order[part].tolist(), range(part.start, part.stop)
        seeds = [mix(*self._seeds, place, 0xC209) if self._seeds else None for place in places]
        return list(zip(numbers, seeds, strict=True))


class Stream:
    """Worker processes that read batches in the order in which they are requested; they end with this object."""

    def __init__(
        self, samples: Samples, workers: int, device: torch.device, finished: Callable[[Tensor], Tensor]
    ) -> None:
        self._device, self._finished = device, finished
        self._requests = Requests()
        workers = 0 if samples.on_device else workers
        self._loader: DataLoader[Any] = DataLoader(
            samples,  # type: ignore[arg-type]  # its "indices" are the requests
            batch_size=None,
            sampler=self._requests,
            num_workers=workers,
            persistent_workers=workers > 0,
            pin_memory=device.type == "cuda" and not samples.on_device,
            worker_init_fn=_leave_process_group,
            generator=torch.Generator(),  # or starting would draw from torch's own, which the training uses
        )
        self._running: Iterator[tuple[Tensor, Tensor] | str] = iter(())
        self._at: tuple[Hashable, int] | None = None

    def run(self, requests: Iterable[Request]) -> Iterator[tuple[Tensor, Tensor]]:
        """Yields the batches of these requests, in turn."""
        self._start(requests)
        for made in self._running:
            yield self._finish(made)

    def batch(self, key: Hashable, step: int, requests: Iterable[Request]) -> tuple[Tensor, Tensor]:
        """Returns the first of ``requests``, which begin at ``step``.

        After a call with the same ``key`` and the step before, the requests of that call go on; after one with the
        same step, the batch is the one that was made for it.
        """
        if self._at != (key, step):
            if self._at != (key, step - 1):
                self._start(requests)
            self._at = None  # until the batch is there
            self._batch = self._finish(next(self._running))
            self._at = key, step
        return self._batch

    def _start(self, requests: Iterable[Request]) -> None:
        self._requests.all = requests
        self._running = iter(self._loader)

    def _finish(self, made: tuple[Tensor, Tensor] | str) -> tuple[Tensor, Tensor]:
        if isinstance(made, str):
            raise ValueError(made)
        inputs, labels = (part.to(self._device, non_blocking=True) for part in made)
        return self._finished(inputs), labels


class Requests(Sampler[Request]):
    """The batches that the loader reads next: replaced between its runs, while the worker processes stay."""

    def __init__(self) -> None:
        self.all: Iterable[Request] = ()

    def __iter__(self) -> Iterator[Request]:
        return iter(self.all)


def cores() -> int:
    """Returns how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _leave_process_group(_: int) -> None:
    """Keeps signals meant for the training's process group from its workers: the training ends them itself."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)
