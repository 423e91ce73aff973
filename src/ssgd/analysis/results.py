"""Results as data: a frozen dataclass of arrays and plain values, as npz with JSON beside it, and back."""

from __future__ import annotations

import io
import json
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from ..files import write_whole

T = TypeVar("T")


def save(result: Any, path: str | Path) -> None:
    """``path``.npz holds the arrays, ``path``.json everything else and the name of the class."""
    path = Path(path)
    arrays = {f.name: getattr(result, f.name) for f in fields(result)}
    plain = {name: value for name, value in arrays.items() if not isinstance(value, np.ndarray)}
    arrays = {name: value for name, value in arrays.items() if isinstance(value, np.ndarray)}
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    write_whole(path.with_suffix(".npz"), buffer.getvalue())
    write_whole(path.with_suffix(".json"), json.dumps({"kind": type(result).__name__, **plain}, indent=1).encode())


def load(kind: type[T], path: str | Path) -> T:
    """The result that save() wrote."""
    path = Path(path)
    for file in (path.with_suffix(".npz"), path.with_suffix(".json")):
        if not file.exists():
            raise FileNotFoundError(f"{file} is not there: a result is a pair of files, .npz and .json")
    plain = json.loads(path.with_suffix(".json").read_text())
    if plain.pop("kind") != kind.__name__:
        raise ValueError(f"{path} does not hold a {kind.__name__}")
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
        return kind(**{**plain, **{name: arrays[name] for name in arrays.files}})
