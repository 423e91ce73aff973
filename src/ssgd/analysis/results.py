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
    write_whole(beside(path, ".json"), json.dumps({"kind": type(result).__name__, **plain}, indent=1).encode())
    write_whole(beside(path, ".npz"), buffer.getvalue())  # the last: where it is, the result is whole


def load(kind: type[T], path: str | Path) -> T:
    """The result that save() wrote."""
    path = Path(path)
    for file in (beside(path, ".npz"), beside(path, ".json")):
        if not file.exists():
            raise FileNotFoundError(f"{file} is not there: a result is a pair of files, .npz and .json")
    plain = json.loads(beside(path, ".json").read_text())
    if plain.pop("kind") != kind.__name__:
        raise ValueError(f"{path} does not hold a {kind.__name__}")
    with np.load(beside(path, ".npz"), allow_pickle=False) as arrays:
        return kind(**{**plain, **{name: arrays[name] for name in arrays.files}})


def beside(path: Path, suffix: str) -> Path:
    """``path`` with the suffix; a dot in its name, as in ``level-0.15``, is part of the name."""
    return path.with_name(path.name.removesuffix(".npz").removesuffix(".json") + suffix)
