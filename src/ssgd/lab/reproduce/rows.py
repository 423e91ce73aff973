"""The rows of ``results/*.jsonl``: one a finished run, appended and never changed."""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...files import append_line, explained, locked
from ..train.recipe import Recipe
from .identity import identity

Row = dict[str, Any]


class Results:
    """All rows below a folder, whichever experiment they were made for. Lines that are torn are passed over."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.rows: list[Row] = []
        self.skipped: list[str] = []
        self._of: defaultdict[tuple[str, int], list[Row]] = defaultdict(list)
        self._read_all()

    def check_place(self) -> None:
        """Before any training: whether rows can be written here."""
        with explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass

    @contextmanager
    def alone(self) -> Iterator[None]:
        """With the rows that other processes have added by now; inside, none of them adds one."""
        with explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            for known in (self.rows, self.skipped, self._of):
                known.clear()
            self._read_all()
            yield

    def _read_all(self) -> None:
        for file in sorted(self.folder.glob("*.jsonl")):
            for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
                if line.strip():
                    self._read(line, f"{file}, line {number}")

    def find(self, recipe: Recipe, seed: int, curve: bool = False) -> Row | None:
        """The row of this training with this seed, if it was ever made, under any name; with its curve if need be."""
        for row in self._of[identity(recipe), seed]:
            same = recipe.precision in ("auto", row["recipe"].get("precision"))
            if same and not (curve and None in (row.get("curve") or [None])):
                return row
        return None

    def has(self, row: Row) -> bool:
        """Whether the run that this row is of has one already, under its own name."""
        alike = self._of[identity(Recipe.from_json(row["recipe"])), row["seed"]]
        return any(other.get("experiment") == row["experiment"] for other in alike)

    def append(self, experiment: str, row: Row) -> None:
        """One more row of an experiment; a line that a crash has left torn there is ended first."""
        path = self.folder / f"{experiment}.jsonl"
        with explained(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
        append_line(path, ("\n" if torn else "") + json.dumps(row))
        self._take(row)

    def _read(self, line: bytes, where: str) -> None:
        try:
            self._take(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError):
            self.skipped.append(where)

    def _take(self, row: Row) -> None:
        if row.get("recipe"):  # the oldest rows have none: they count for nothing but are no fault
            self._of[identity(Recipe.from_json(row["recipe"])), row["seed"]].append(row)
        self.rows.append(row)
