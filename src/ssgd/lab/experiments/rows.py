"""The rows of ``results/*.jsonl``, one a finished run, each found by what was trained.

Rows are appended and never changed. Test accuracies with batch-norm's statistics gathered again stand in the rows or,
of trainings whose rows had none yet, in ``results/recomputed-bn.json``.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeGuard

from ...files import append_line, explained, locked
from ..train.recipe import Recipe
from .cells import AGAIN, Cell
from .identity import identity

LATER_FIGURES = {AGAIN, "tolerance"}  # which the first rows lack
RECOMPUTED = "recomputed-bn.json"
NEEDED = {"experiment": str, "model": str, "data": str, "method": str, "phases": str, "seed": int}
FIGURES = ("accuracy", "perplexity", "bits", "wer", "cer")


class Row(dict[str, Any]):
    """One row; a row that lacks what every run has, or whose figures are not numbers, is refused."""

    def __init__(self, found: object) -> None:
        if not isinstance(found, dict):
            raise ValueError("is not an object")
        super().__init__(found)
        for name, kind in NEEDED.items():
            if not isinstance(self.get(name), kind) or isinstance(self[name], bool):
                raise ValueError(f"has no {name}")
        if not isinstance(self.get("recipe") or {}, dict):
            raise ValueError("has a recipe that is not an object")
        curves = self.get("curves") or {}
        for curve in (self.get("curve") or [], *(curves.values() if isinstance(curves, dict) else [None])):
            if not isinstance(curve, list) or not {*map(type, curve)} <= {int, float, type(None)}:
                raise ValueError("has a curve that is not a list of numbers")
        figures = [value for name, value in self.items() if name.endswith(FIGURES)]
        if not (figures or self.get("diverged")) or not all(map(is_number, figures)):
            raise ValueError("has no figure that is a number")

    @property
    def seed(self) -> int:
        return int(self["seed"])

    @property
    def recipe(self) -> Recipe:
        return Recipe.from_json(self["recipe"])

    @property
    def diverged(self) -> bool:
        """Whether the loss became nan or infinite; the row has no figures then."""
        return "diverged" in self

    def metric(self, name: str) -> float | None:
        """Returns a figure; ``test_wer`` is also found as ``wer``."""
        found = self.get(name, self.get(name.removeprefix("test_")))
        return float(found) if is_number(found) else None

    def carries(self, needs: Collection[str]) -> bool:
        """Whether it has all of these figures, and its ``curve`` whole; what diverged has none and needs none."""
        whole = None not in (self.curve("test") or [None])
        return self.diverged or all(whole if need == "curve" else need in self for need in needs)

    def curve(self, name: str) -> list[float | None]:
        """Returns a figure after each epoch: ``test``, ``loss``, ``valid_cer``, …"""
        found: list[float | None] = (
            self.get("curve") if name == "test" else (self.get("curves") or {}).get(name)
        ) or []
        return found


class Results:
    """All rows below a folder, whichever experiment they were made for; ``skipped`` names the lines left out."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.rows: list[Row] = []
        self.skipped: list[str] = []
        self._of: defaultdict[str, list[Row]] = defaultdict(list)
        self._read_all()

    def check_place(self) -> None:
        """Raises where rows cannot be written, before any training."""
        with explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                pass

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Reads the rows that other processes have added; inside, none of them adds one."""
        with explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder):
            for known in (self.rows, self.skipped, self._of):
                known.clear()
            self._read_all()
            yield

    def find(self, recipe: Recipe, seed: int, needs: Collection[str] = ()) -> Row | None:
        """Returns the row of this training with this seed, under any name, that carries what is needed.

        A recipe that asks for tolerance needs those figures. A row without them stays, and another is made beside it.
        """
        needs = {*needs, "tolerance"} if recipe.tolerance else needs
        for row in self._of.get(identity(recipe), []):
            same = row.seed == seed and recipe.precision in ("auto", row["recipe"].get("precision"))
            if same and row.carries(needs):
                return row
        return None

    def of(self, cell: Cell, unseen: bool = False) -> dict[int, Row]:
        """Returns the rows of a cell by seed, each seed once, without seed 0 if it must be ``unseen``.

        Of a training that was made twice counts a row that did not diverge, then one made for this part of the paper,
        then the one with more figures.
        """
        found = _by_seed(self._of.get(cell.identity, []), f"{cell.name.partition('/')[0]}/")
        return {seed: row for seed, row in found.items() if seed or not unseen}

    def trainings(self) -> Iterator[dict[int, Row]]:
        """Yields the rows of each training by seed, but for smoke tests."""
        for known in self._of.values():
            if rows := [row for row in known if row.get("scale") != "smoke"]:
                yield _by_seed(rows)

    def has(self, row: Row) -> bool:
        """Whether the run that this row is of has one already, under its own name."""
        alike = self._of.get(_identity(row["recipe"]), [])
        return any((other["experiment"], other.seed) == (row["experiment"], row.seed) for other in alike)

    def append(self, experiment: str, row: Row) -> None:
        """Adds a row to the file of an experiment; a line that a crash has left torn there is ended first."""
        path = self.folder / f"{experiment}.jsonl"
        with explained(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            torn = path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size > 0
        append_line(path, ("\n" if torn else "") + json.dumps(row))
        self.take(row)

    def _read_all(self) -> None:
        files = [self.folder] if self.folder.is_file() else sorted(self.folder.glob("*.jsonl"))
        for file in filter(Path.is_file, files):
            for number, line in enumerate(file.read_bytes().split(b"\n"), 1):
                try:
                    if line.strip():
                        self.take(Row(json.loads(line)))
                except (ValueError, TypeError, RecursionError) as problem:  # also json's and unicode's
                    told = "is torn or not JSON" if type(problem) is not ValueError else str(problem)
                    self.skipped.append(f"{file.name}, line {number}: {told}")
        self._add_statistics()

    def take(self, row: Row) -> None:
        """Adds a row to those that are known, and to no file."""
        self._of[_identity(row["recipe"]) if row.get("recipe") else row["experiment"]].append(row)
        self.rows.append(row)

    def _add_statistics(self) -> None:
        file = self.folder / RECOMPUTED
        if not file.exists():
            return
        try:
            later = {
                (one["experiment"], one["seed"], float(one["test_accuracy"])): float(one["recomputed"])
                for one in json.loads(file.read_text())["rows"]
            }
        except (ValueError, KeyError, TypeError, RecursionError):
            self.skipped.append(f"{RECOMPUTED}: is torn, or its rows lack something")
            return
        for row in self.rows:
            found = later.get((row["experiment"], row.seed, row.metric("test_accuracy") or 0.0))
            if found is not None:
                row.setdefault(AGAIN, found)


def _by_seed(rows: Iterable[Row], part: str = "") -> dict[int, Row]:
    def rank(row: Row) -> tuple[bool, bool, int]:
        return row.diverged, not row["experiment"].startswith(part), -len(row.keys() & LATER_FIGURES)

    found: dict[int, Row] = {}
    for row in sorted(rows, key=rank):
        found.setdefault(row.seed, row)
    return {seed: found[seed] for seed in sorted(found)}


def _identity(recipe: Mapping[str, Any]) -> str:
    return _identity_of(json.dumps({name: value for name, value in recipe.items() if name not in ("name", "seeds")}))


@cache
def _identity_of(recipe: str) -> str:
    return identity(Recipe.from_json(json.loads(recipe)))


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100  # nan is not
