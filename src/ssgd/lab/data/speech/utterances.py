"""Utterances, the corpora that are made of them, and the features that a corpus is taken through."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Clip:
    """A stretch of a file, in seconds; without a path, so much silence. ``end=None`` is the end of the file."""

    path: Path | None
    start: float = 0.0
    end: float | None = None


@dataclass(frozen=True)
class Utterance:
    """A transcript, its speaker, and clips that follow each other. ``place`` is the file and row that lists it."""

    key: str
    text: str
    clips: tuple[Clip, ...]
    speaker: str = ""
    place: str = ""


class Features(Protocol):
    """Makes an utterance's frames (time, features); :class:`Unusable` says that it cannot."""

    @property
    def count(self) -> int: ...

    def __call__(self, utterance: Utterance) -> Tensor: ...


@dataclass(frozen=True)
class Corpus:
    """The utterances of a data set, and the features that the net gets of them."""

    name: str
    train: Sequence[Utterance]
    valid: Sequence[Utterance]
    test: Sequence[Utterance]
    features: Features

    def held_out(self, count: int) -> Corpus:
        """Returns a corpus that tests on at least ``count`` of the training utterances, of whole speakers."""
        train, test = held_out(self.train, count)
        return replace(self, train=train, test=test)

    def limited(self, train: int | None, test: int | None) -> Corpus:
        """Returns a corpus of the first so many utterances of a part."""
        return replace(self, train=self.train[:train], test=self.test[:test])


def held_out(utterances: Iterable[Utterance], count: int) -> tuple[list[Utterance], list[Utterance]]:
    """Takes out at least ``count`` utterances, of whole speakers: those whose names come last.

    Returns the others, and those taken out.
    """
    if count < 1:
        raise ValueError(f"hold out at least 1 utterance, not {count}")
    speakers: dict[str, list[Utterance]] = {}
    for utterance in utterances:
        speakers.setdefault(utterance.speaker or utterance.key, []).append(utterance)
    taken: list[Utterance] = []
    for speaker in sorted(speakers, reverse=True):
        if len(taken) >= count:
            break
        taken = speakers.pop(speaker) + taken
    if not speakers:
        raise ValueError(f"{count} utterances of whole speakers cannot be held out: no one would be left to train on")
    return [utterance for rest in speakers.values() for utterance in rest], taken
