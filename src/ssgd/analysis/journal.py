"""Rows of one piece of work, on disk as they are done and common to all processes of ``torchrun``."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from glob import escape
from pathlib import Path
from typing import Any

import torch.distributed as dist

from ..files import append_line, drop_cut_line, explained, write_whole
from .results import beside

Header = dict[str, Any]
Rows = dict[int, dict[str, Any]]


@dataclass(frozen=True)
class Journal:
    """``path``.jsonl: what is done in the first line, a row a line after it; further ranks write beside it."""

    path: Path | None
    header: Header
    rank: int
    count: int
    group: Any

    def begin(self) -> Rows:
        """The rows that are there already, for all ranks."""
        if self.path is None:
            return {}
        with explained(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
        rows = self._union(_rows(self.path, self.header))
        drop_cut_line(self._own)
        if not self._own.exists() or not self._own.stat().st_size:
            append_line(self._own, json.dumps(self.header))
        return rows

    def write(self, index: int, row: dict[str, Any]) -> None:
        if self.path is not None:
            append_line(self._own, json.dumps({"point": index, **row}))

    def end(self, rows: Rows) -> Rows:
        """The rows of all ranks, in one file."""
        rows = dict(sorted(self._union(rows).items()))
        if self.path is not None and self.rank == 0:
            lines = [json.dumps({"point": index, **row}) for index, row in rows.items()]
            write_whole(_file(self.path), "".join(f"{line}\n" for line in (json.dumps(self.header), *lines)).encode())
            for part in _parts(self.path):
                part.unlink()
        return rows

    @property
    def _own(self) -> Path:
        assert self.path is not None
        return _file(self.path, self.rank)

    def _union(self, rows: Rows) -> Rows:
        if self.count == 1:
            return rows
        held: list[Any] = [None] * self.count
        dist.all_gather_object(held, rows, group=self.group)
        return {index: row for part in held for index, row in part.items()}


@contextmanager
def journal(path: Path | None, header: Header) -> Iterator[Journal]:
    """Alone, or with the processes that ``torchrun`` started; all leave together."""
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


def read(path: Path) -> tuple[Header, Rows]:
    """What a journal holds so far, of all ranks."""
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
    """Those that are whole: a crash may have cut the last."""
    text = file.read_text() if file.exists() else ""
    try:
        return [json.loads(line) for line in text.split("\n")[:-1]]
    except ValueError:
        raise ValueError(f"{file} is damaged, or was not written by this library: remove it") from None


def _file(path: Path, rank: int = 0) -> Path:
    return beside(path, f".rank{rank}.jsonl" if rank else ".jsonl")


def _parts(path: Path) -> list[Path]:
    return sorted(path.parent.glob(f"{escape(beside(path, '').name)}.rank*.jsonl"))
