"""What becomes of the rows and files of a data set that cannot be used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from ssgd.core.checks import check_choice

BAD = ("raise", "skip")


@dataclass(frozen=True)
class Skipped:
    """What was passed over: where it stands, what kind of fault it has, and the sentence about it."""

    place: str
    kind: str
    sentence: str


class Unusable(ValueError):
    """A fault of one row or file."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass
class Faults:
    """What cannot be used ends up here: ``bad="raise"`` ends with the first, ``"skip"`` keeps a list."""

    bad: str = "raise"
    skipped: list[Skipped] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_choice("bad", self.bad, BAD)

    def add(self, place: str, fault: Unusable) -> None:
        if self.bad == "raise":
            raise ValueError(f"{place}: {fault} (bad='skip' goes on without it and counts it)") from fault
        self.skipped.append(Skipped(place, fault.kind, str(fault)))


def counts(skipped: Iterable[Skipped]) -> dict[str, int]:
    """How many were passed over for each kind of fault."""
    return dict(Counter(one.kind for one in skipped))
