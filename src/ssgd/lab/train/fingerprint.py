"""What a run was trained with besides its recipe: the source of a user's model, and the files of a user's data."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from .. import models
from ..data.download import data_folder
from ..data.registry import NAMES
from .recipe import Recipe

Fingerprint = dict[str, Any]
PARTS = {  # of a fingerprint, in words
    "words": "the vocabulary of {data}",
    "files": "the files of {data}, by their names and sizes,",
    "loader": "the source of {data}",
    "classes": "the number of classes of {data}",
    "channels": "the number of channels of {data}",
    "source": "the source of {model}, or of a layer it uses,",
    "weights": "the shape or the initialisation of {model}",
}


def of_model(recipe: Recipe, classes: int, channels: int) -> Fingerprint:
    """Of a model of ssgd's only the numbers are kept: it comes with a release, which a run may outlive."""
    found: Fingerprint = {"classes": classes, "channels": channels}
    if ":" in recipe.model:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            net = models.build(recipe.model, classes, channels)
        layers = (type(module).__module__ for module in net.modules())
        found["source"] = _hash(_sources([recipe.model.partition(":")[0], *layers]))
        found["weights"] = _hash(_weights(net))
    return found


def of_files(recipe: Recipe, folder: str | None) -> Fingerprint:
    """``folder``: that of the data. Data sets by name have no fingerprint, a user's loader has that of its source."""
    if recipe.data in NAMES:
        return {}
    if ":" in recipe.data:
        return {"loader": _hash(_sources([recipe.data.partition(":")[0]]))}
    return {"files": _hash(_files(recipe.data, folder))}


def of_words(vocabulary: Iterable[str] | None) -> Fingerprint:
    """The words of a text in their order, by which a net knows them."""
    return {} if vocabulary is None else {"words": _hash(vocabulary)}


def check_unchanged(known: Mapping[str, Any], now: Mapping[str, Any], recipe: Recipe, path: Path) -> None:
    """Raises a ValueError that says what changed since the run in ``path`` was begun."""
    for part, words in PARTS.items():
        if known.get(part) != now.get(part):
            raise ValueError(
                f"{words.format(data=recipe.data, model=recipe.model)} changed since {path} was begun: bring it back,"
                " choose another --out, or delete the folder to train again"
            )


def _files(name: str, folder: str | None) -> Iterable[str]:
    root = next((path for path in (Path(name).expanduser(), data_folder(folder) / name) if path.is_dir()), None)
    for place, folders, files in os.walk(root) if root else ():
        folders.sort()
        for file in sorted(file for file in files if not file.startswith(".")):
            path = os.path.join(place, file)
            yield f"{os.path.relpath(path, root)} {os.stat(path).st_size if os.path.exists(path) else None}"


def _sources(names: Iterable[str]) -> Iterable[str]:
    """A hash of the file of each of these modules that is neither torch's nor ours."""
    for module in sorted({one for one in names if one.partition(".")[0] not in ("torch", "ssgd")}):
        file = getattr(sys.modules.get(module), "__file__", None)
        with suppress(ImportError, ValueError):  # whoever needs the module says that it is not there
            file = file or getattr(find_spec(module), "origin", None)
        if file and os.path.isfile(file):
            yield f"{module} {hashlib.sha256(Path(file).read_bytes()).hexdigest()}"


def _weights(net: nn.Module) -> Iterable[str]:
    """Shape, sum and norm of each tensor, to digits that do not depend on the machine."""
    for name, tensor in net.state_dict().items():
        values = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        yield f"{name} {tuple(tensor.shape)} {float(values.double().sum()):.3g} {float(values.double().norm()):.3g}"


def _hash(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()
