"""What an utterance is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Clip:
    """A stretch of a file, in seconds; without a path, so much silence. ``end=None`` is the end of the file."""

    path: Path | None
    start: float = 0.0
    end: float | None = None


@dataclass(frozen=True)
class Utterance:
    """What was said, by whom, and the clips to be heard one after the other. ``place``: the file and row it is from."""

    key: str
    text: str
    clips: tuple[Clip, ...]
    speaker: str = ""
    place: str = ""


def held_out(utterances: Iterable[Utterance], count: int) -> tuple[list[Utterance], list[Utterance]]:
    """What is left, and at least ``count`` utterances of whole speakers: those whose names come last."""
    if count < 1:
        raise ValueError(f"hold out at least 1 utterance, not {count}")
    speakers: dict[str, list[Utterance]] = {}
    for utterance in utterances:
        speakers.setdefault(utterance.speaker or utterance.key, []).append(utterance)
    held: list[Utterance] = []
    for speaker in sorted(speakers, reverse=True):
        if len(held) >= count:
            break
        held = speakers.pop(speaker) + held
    if not speakers:
        raise ValueError(f"{count} utterances of whole speakers cannot be held out: no one would be left to train on")
    return [utterance for rest in speakers.values() for utterance in rest], held
