"""Rows and files of a data set that cannot be used: the first ends the loading, or all are left out and listed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ssgd.core.checks import check_choice

BAD = ("raise", "skip")


@dataclass(frozen=True)
class Skipped:
    """A row or file that was left out: its place (file and line), the kind of its fault, and a sentence about it."""

    place: str
    kind: str
    sentence: str


class Unusable(ValueError):
    """A fault of one row or file, of a kind by which faults are counted."""

    def __init__(self, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.kind = kind


@dataclass
class Faults:
    """Collects faults: ``bad="raise"`` ends the loading at the first one, ``"skip"`` lists all in ``skipped``."""

    bad: str = "raise"
    skipped: list[Skipped] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_choice("bad", self.bad, BAD)

    def add(self, place: str, fault: Unusable) -> None:
        """Notes the fault of the row or file at ``place``."""
        if self.bad == "raise":
            raise ValueError(f"{place}: {fault} (bad='skip' goes on without it and counts it)") from fault
        self.skipped.append(Skipped(place, fault.kind, str(fault)))


def counts(skipped: Iterable[Skipped]) -> dict[str, int]:
    """The number of skipped rows and files for each kind of fault."""
    return dict(Counter(one.kind for one in skipped))


def utf8_lines(file: Path) -> Iterator[tuple[str, str]]:
    """Yields the place (file and number) and the text of every line, without its end and without a byte-order mark.

    A file that is not UTF-8 is refused, whatever ``bad`` is: in another encoding no line of it can be trusted.
    """
    with file.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            place = f"{file}:{number}"
            try:
                line.encode("utf-8")
            except UnicodeEncodeError:  # a byte that is not UTF-8 was read as a lone surrogate
                raise ValueError(
                    f"{place} is not text in UTF-8: convert the file, if it is Latin-1 by iconv -f latin1 -t utf-8"
                ) from None
            yield place, line.rstrip("\n")
