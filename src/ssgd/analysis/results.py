"""Results on disk: frozen dataclasses as npz with JSON beside it, and journals of what is done so far."""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import timedelta
from glob import escape
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch.distributed as dist

from ..files import append_line, drop_cut_line, explained, write_whole

T = TypeVar("T")
Header = dict[str, Any]
Rows = dict[int, dict[str, Any]]


def save(result: Any, path: str | Path) -> None:
    """Writes the arrays of a dataclass to ``path``.npz, everything else and the class's name to ``path``.json."""
    path = Path(path)
    values = {f.name: getattr(result, f.name) for f in fields(result)}
    plain = {name: value for name, value in values.items() if not isinstance(value, np.ndarray)}
    buffer = io.BytesIO()
    np.savez(buffer, **{name: value for name, value in values.items() if name not in plain})
    write_whole(with_ending(path, ".json"), json.dumps({"kind": type(result).__name__, **plain}, indent=1).encode())
    write_whole(with_ending(path, ".npz"), buffer.getvalue())  # the last: where it is, the result is whole


def load(kind: type[T], path: str | Path) -> T:
    """Reads the result of class ``kind`` that save() wrote at ``path``."""
    path = Path(path)
    for file in (with_ending(path, ".npz"), with_ending(path, ".json")):
        if not file.exists():
            raise FileNotFoundError(f"{file} is not there: a result is a pair of files, .npz and .json")
    plain = json.loads(with_ending(path, ".json").read_text())
    if plain.pop("kind") != kind.__name__:
        raise ValueError(f"{path} does not hold a {kind.__name__}")
    with np.load(with_ending(path, ".npz"), allow_pickle=False) as arrays:
        return kind(**{**plain, **{name: arrays[name] for name in arrays.files}})


def with_ending(path: Path, ending: str) -> Path:
    """Returns ``path`` with the ending; a dot in its name, as in ``level-0.15``, is part of the name."""
    return path.with_name(path.name.removesuffix(".npz").removesuffix(".json") + ending)


@dataclass(frozen=True)
class Journal:
    """The rows that are done, in ``path``.jsonl: a header, then a line for each row; further ranks have a file each."""

    path: Path | None
    header: Header
    rank: int
    count: int
    group: Any

    def begin(self) -> Rows:
        """Returns the rows that are there already, of all ranks."""
        if self.path is None:
            return {}
        with explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = self._union(_rows(self.path, self.header))
        drop_cut_line(self._file)
        if not self._file.exists() or not self._file.stat().st_size:
            append_line(self._file, json.dumps(self.header))
        return rows

    def write(self, index: int, row: dict[str, Any]) -> None:
        if self.path is not None:
            append_line(self._file, json.dumps({"point": index, **row}))

    def end(self, rows: Rows) -> Rows:
        """Returns the rows of all ranks, and leaves them in one file."""
        rows = dict(sorted(self._union(rows).items()))
        if self.path is not None and self.rank == 0:
            lines = [json.dumps({"point": index, **row}) for index, row in rows.items()]
            write_whole(_file(self.path), "".join(f"{line}\n" for line in (json.dumps(self.header), *lines)).encode())
            for part in _parts(self.path):
                part.unlink()
        return rows

    @property
    def _file(self) -> Path:
        assert self.path is not None
        return _file(self.path, self.rank)

    def _union(self, rows: Rows) -> Rows:
        if self.count == 1:
            return rows
        held: list[Any] = [None] * self.count
        dist.all_gather_object(held, rows, group=self.group)
        return {index: row for part in held for index, row in part.items()}


@contextmanager
def open_journal(path: Path | None, header: Header) -> Iterator[Journal]:
    """Opens the journal of one process, or of those that ``torchrun`` started, which leave it together.

    ``header`` holds all that the rows are a function of: rows under another header are refused.
    """
    ours = dist.is_available() and not dist.is_initialized() and "RANK" in os.environ
    if ours:
        dist.init_process_group("gloo")
    try:
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            yield Journal(path, header, 0, 1, None)
            return
        patient = dist.new_group(backend="gloo", timeout=timedelta(days=7))  # a rank may be done hours before another
        try:
            yield Journal(path, header, dist.get_rank(), dist.get_world_size(), patient)
            dist.barrier(patient)
        finally:
            dist.destroy_process_group(patient)
    finally:
        if ours:
            dist.destroy_process_group()


def read_journal(path: Path) -> tuple[Header, Rows]:
    """Returns the header of a journal and the rows that it holds so far, of all ranks."""
    for file in (_file(path), *_parts(path)):
        if lines := _lines(file):
            return lines[0], _rows(path, lines[0])
    raise FileNotFoundError(f"{_file(path)} is not there, or empty: nothing was evaluated yet")


def _rows(path: Path, header: Header) -> Rows:
    rows: Rows = {}
    for file in (_file(path), *_parts(path)):
        first, *others = _lines(file) or [header]
        if differing := sorted(key for key in {*header, *first} if first.get(key) != header.get(key)):
            raise ValueError(
                f"{file} holds another evaluation (other {', '.join(differing)}): choose another name, or remove it"
            )
        rows |= {row.pop("point"): row for row in others}
    return rows


def _lines(file: Path) -> list[dict[str, Any]]:
    """Reads the lines that are whole: a crash may have cut the last."""
    text = file.read_text() if file.exists() else ""
    try:
        return [json.loads(line) for line in text.split("\n")[:-1]]
    except ValueError:
        raise ValueError(f"{file} is damaged, or was not written by this library: remove it") from None


def _file(path: Path, rank: int = 0) -> Path:
    return with_ending(path, f".rank{rank}.jsonl" if rank else ".jsonl")


def _parts(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{escape(with_ending(path, '').name)}.rank*.jsonl"))


@contextmanager
def progress_bar(total: int | None, unit: str, shown: bool) -> Iterator[Callable[[int], object]]:
    """Yields a function that takes the number of units just done; a bar of tqdm shows them if ``shown``."""
    if shown:
        try:
            from tqdm import tqdm
        except ImportError:
            print("without tqdm there is no progress bar: pip install tqdm", file=sys.stderr)
        else:
            with tqdm(total=total, unit=f" {unit}", file=sys.stderr, dynamic_ncols=True) as bar:
                yield bar.update
            return
    yield lambda count: None
