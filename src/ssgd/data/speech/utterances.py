"""What an utterance is, and what becomes of those that cannot be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
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


@dataclass(frozen=True)
class Skipped:
    """An utterance left out: where it stands, what kind of fault it has, and the sentence about it."""

    place: str
    kind: str
    sentence: str


class Unusable(ValueError):
    """A fault of one utterance."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass
class Faults:
    """Utterances that cannot be used end up here: ``bad="raise"`` ends with the first, ``"skip"`` keeps a list."""

    bad: str = "raise"
    skipped: list[Skipped] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.bad not in ("raise", "skip"):
            raise ValueError(f"bad must be 'raise' or 'skip', not {self.bad!r}")

    def add(self, place: str, fault: Unusable) -> None:
        if self.bad == "raise":
            raise ValueError(f"{place}: {fault} (bad='skip' leaves such rows out and counts them)") from fault
        self.skipped.append(Skipped(place, fault.kind, str(fault)))

    def counts(self) -> dict[str, int]:
        """How many utterances were left out for each kind of fault."""
        return dict(Counter(skipped.kind for skipped in self.skipped))


def held_out(utterances: Iterable[Utterance], count: int) -> tuple[list[Utterance], list[Utterance]]:
    """What is left, and at least ``count`` utterances of whole speakers: those whose names come last."""
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
