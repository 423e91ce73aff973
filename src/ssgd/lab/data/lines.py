"""Lists and texts, a row a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def utf8_lines(file: Path) -> Iterator[tuple[str, str]]:
    """The place (file and number) and the text of every line, without its end; a byte-order mark is passed over.

    A file that is not UTF-8 is refused, whatever ``bad`` is: in another encoding no line of it can be trusted.
    """
    with file.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, 1):
            place = f"{file}:{number}"
            if not _is_utf8(line):
                raise ValueError(
                    f"{place} is not text in UTF-8: convert the file, if it is Latin-1 by iconv -f latin1 -t utf-8"
                )
            yield place, line.rstrip("\n")


def _is_utf8(line: str) -> bool:
    """Whether every byte of the line was read: one that was not is a surrogate, which cannot be written."""
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
