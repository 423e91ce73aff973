"""Results on disk: frozen dataclasses as npz with JSON beside it, and journals of what is done so far."""

from __future__ import annotations

import io
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from datetime import timedelta
from glob import escape
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import torch.distributed as dist

from ..files import append_line, drop_cut_line, make_room, write_whole

T = TypeVar("T")
P = TypeVar("P")
Header = dict[str, Any]
Row = dict[str, Any]
Rows = dict[int, Row]


def save(result: Any, path: str | Path) -> None:
    """Writes the arrays of a dataclass to ``path``.npz, everything else and the class's name to ``path``.json."""
    path = Path(path)
    make_room(path)
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


def complete(
    path: str | Path | None,
    header: Header,
    points: Sequence[P],
    measure: Callable[[P], Any],
    result: Callable[[Header, list[Row]], T],
    unit: str,
    progress: bool,
) -> T:
    """Measures each point that is missing in the journal, and returns the ``result`` of its header and all rows.

    The journal, ``path``.jsonl, has a header, which holds all that the rows are a function of, and a line for each row,
    in any order: a call that was cut goes on there, and rows under another header are refused. At the end the result is
    saved at ``path``, without its ``seconds``, the time of all rows.

    Processes that ``torchrun`` started share the points out, with a file each until the end; all return the result.
    """
    path, header = None if path is None else Path(path), json.loads(json.dumps(header))  # as it will be read again
    with _processes() as (rank, count, union):
        rows = union({} if path is None else _rows(path, header))
        if path is not None:
            _begin(_file(path, rank), header)
        missing = [index for index in range(len(points)) if index not in rows][rank::count]
        with progress_bar(len(missing), unit, progress and rank == 0) as done:
            for index in missing:
                start = time.perf_counter()
                measured = measure(points[index])
                rows[index] = {"measured": measured, "seconds": time.perf_counter() - start}
                if path is not None:
                    append_line(_file(path, rank), _line(index, rows[index]))
                done(1)
        rows = dict(sorted(union(rows).items()))
        whole: Any = result(header, list(rows.values()))
        if path is not None and rank == 0:
            lines = [json.dumps(header), *(_line(*item) for item in rows.items())]
            write_whole(_file(path), "".join(f"{line}\n" for line in lines).encode())
            for part in _parts(path):
                part.unlink()
            save(whole, path)
    return cast(T, replace(whole, seconds=sum(row["seconds"] for row in rows.values())))


@contextmanager
def _processes() -> Iterator[tuple[int, int, Callable[[Rows], Rows]]]:
    """Yields the number of this process, that of all that ``torchrun`` started, and the union of their rows.

    They leave together.
    """
    ours = dist.is_available() and not dist.is_initialized() and "RANK" in os.environ
    if ours:
        dist.init_process_group("gloo")
    try:
        if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() == 1:
            yield 0, 1, lambda rows: rows
            return
        patient = dist.new_group(backend="gloo", timeout=timedelta(days=7))  # a rank may be done hours before another

        def union(rows: Rows) -> Rows:
            held: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(held, rows, group=patient)
            return {index: row for part in held for index, row in part.items()}

        try:
            yield dist.get_rank(), dist.get_world_size(), union
            dist.barrier(patient)
        finally:
            dist.destroy_process_group(patient)
    finally:
        if ours:
            dist.destroy_process_group()


def _begin(file: Path, header: Header) -> None:
    """Makes a journal ready for its next line."""
    make_room(file)
    drop_cut_line(file)
    if not file.exists() or not file.stat().st_size:
        append_line(file, json.dumps(header))


def _line(index: int, row: Row) -> str:
    return json.dumps({"point": index, **row})


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
