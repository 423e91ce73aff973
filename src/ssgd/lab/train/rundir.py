"""A run's directory: what was asked, where it ran, what came out, and where to go on."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import nn

import ssgd

from ...files import append_line, drop_cut_line, explained, remove_drafts, write_whole
from .. import models
from ..data.download import data_folder
from ..data.registry import NAMES
from .checkpoint import Checkpoints
from .recipe import Recipe

if sys.platform != "win32":
    import fcntl

FORMAT = 2  # of the folder and its files
State = Literal["new", "resume", "finished"]


class RunDir:
    """One run's directory.

    ``recipe.json``: what was asked. ``environment.json``: where it ran; ``resumed.jsonl``: where it was taken up again.
    ``fingerprint.json``: model and data as they were. ``metrics.jsonl``: what was measured, byte-equal in equal runs.
    ``timings.jsonl``: what is never equal. ``checkpoints/``: where to go on. ``result.json``: the outcome, there once
    the run is finished.

    All of it is strict JSON: nan, inf and -inf are written as the strings "nan", "inf" and "-inf", and come back as
    numbers. Reading needs no ``open``; after ``open`` the directory is this process's own until ``close`` or its death.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._unlock: Callable[[], object] = lambda: None
        self._locked: os.stat_result | None = None  # the file of the lock, as long as this process holds it

    def open(self, recipe_json: Mapping[str, Any], environment: Mapping[str, Any]) -> State:
        """Makes the directory one of this recipe, or refuses where it is another's; says what is there to do."""
        state = self._state(recipe_json)
        if state == "finished":  # no lock, so that a read-only copy will do
            return state
        self._lock()
        state = self._state(recipe_json)  # another process may have been here before the lock
        remove_drafts(self.path)
        for name in ("metrics.jsonl", "timings.jsonl", "resumed.jsonl"):
            drop_cut_line(self.path / name)
        if state == "new":
            with explained(self.path):
                (self.path / "fingerprint.json").unlink(missing_ok=True)
            self._write("environment.json", environment)
            self._write("recipe.json", {"format": FORMAT, **recipe_json})  # the last, for it marks a run
        elif state == "resume":
            append_line(self.path / "resumed.jsonl", _line(environment))
        else:
            self.close()
        return state

    def close(self) -> None:
        """Lets others train here."""
        self._locked = None
        self._unlock()

    def check_mine(self) -> None:
        """Raises a ValueError where the folder was deleted, or is another one now, since this process opened it."""
        try:
            there = self._locked is None or os.path.samestat(self._locked, os.stat(self.path / "lock"))
        except FileNotFoundError:
            there = False
        if not there:
            raise ValueError(
                f"{self.path} was deleted or replaced while this run trained in it: give the command again"
            )

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.path / "checkpoints")

    def add_metrics(self, row: Mapping[str, Any]) -> None:
        self.check_mine()
        append_line(self.path / "metrics.jsonl", _line(row))

    def metrics(self) -> list[dict[str, Any]]:
        """All rows; a last line that was cut is ignored."""
        return _rows(self.path / "metrics.jsonl")

    def rewrite_metrics(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """These rows and no others: on resuming, those that the checkpoint knows."""
        write_whole(self.path / "metrics.jsonl", "".join(_line(row) + "\n" for row in rows).encode())

    def add_timing(self, row: Mapping[str, Any]) -> None:
        self.check_mine()
        append_line(self.path / "timings.jsonl", _line(row))

    def timings(self) -> list[dict[str, Any]]:
        """All rows, of 0 seconds where none are said; a last line that was cut is ignored."""
        return [{"seconds": 0.0, **row} for row in _rows(self.path / "timings.jsonl")]

    def write_result(self, row: Mapping[str, Any]) -> None:
        """The outcome; with it the run is finished."""
        self._write("result.json", row)

    def result(self) -> dict[str, Any] | None:
        return self._read("result")

    def recipe(self) -> dict[str, Any] | None:
        found = self._read("recipe")
        if found is not None and (format := found.pop("format", None)) != FORMAT:
            raise ValueError(
                f"{self.path} is a run's folder of format {format}, and this ssgd reads format {FORMAT}: use the ssgd"
                " that wrote it, or choose another --out"
            )
        return found

    def fingerprint(self) -> dict[str, Any] | None:
        return self._read("fingerprint")

    def write_fingerprint(self, row: Mapping[str, Any]) -> None:
        """What the run is trained with besides its recipe."""
        self._write("fingerprint.json", row)

    def _state(self, asked: Mapping[str, Any]) -> State:
        here, left = self.recipe(), self._left()
        if here is None and left:
            raise ValueError(
                f"{self.path} holds {' and '.join(left)} but no recipe.json to say of what:"
                " choose another --out, or delete the folder"
            )
        if here is None:
            return "new"
        differing = _differing(here, json.loads(_line(asked)))
        if differing and not left:
            return "new"  # it never came to a first epoch or checkpoint: a mistyped recipe
        if differing:
            raise ValueError(
                f"{self.path} holds a run of another recipe:\n  "
                + "\n  ".join(differing)
                + "\nchoose another --out, or delete the folder to start again"
            )
        result = self.result()
        if result is not None and _differing(here, json.loads(_line(result.get("recipe", here)))):
            raise ValueError(f"{self.path} has the result.json of another recipe: delete the folder to train again")
        return "resume" if result is None else "finished"

    def _left(self) -> list[str]:
        """The files of a run that would be lost."""
        names = ("metrics.jsonl", "checkpoints", "result.json")
        return [name for name in names if _content(self.path / name)]

    def _lock(self) -> None:
        with explained(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        if sys.platform == "win32":
            return
        with explained(self.path / "lock"):
            descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT, 0o666)
        self._unlock = weakref.finalize(self, os.close, descriptor)
        os.register_at_fork(after_in_child=self._unlock)  # else a data worker that outlives us would keep the lock
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"another process trains in {self.path}: wait for it, or choose another --out") from None
        except OSError:
            pass  # a file system without locks
        self._locked = os.fstat(descriptor)
        self.check_mine()

    def _write(self, name: str, row: Mapping[str, Any]) -> None:
        self.check_mine()
        write_whole(self.path / name, (_line(row, indent=2) + "\n").encode())

    def _read(self, what: str) -> dict[str, Any] | None:
        path = self.path / f"{what}.json"
        return _parsed(path.read_bytes(), str(path), what) if path.exists() else None


def _content(path: Path) -> bool:
    """Whether there is anything in a file or folder."""
    if path.is_dir():
        return any(path.iterdir())
    return path.exists() and path.stat().st_size > 0


def find_runs(folder: str | Path) -> list[RunDir]:
    """The runs in a folder and in all folders below it, by path."""
    return [RunDir(path) for path in sorted(recipe.parent for recipe in Path(folder).rglob("recipe.json"))]


def environment() -> dict[str, Any]:
    """All that a run's numbers may depend on besides its recipe. The host's name is not among it."""
    cuda = torch.cuda.is_available()
    return {
        "command": sys.orig_argv,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "ssgd": ssgd.__version__,
        **_source(Path(ssgd.__file__).parent),
        "platform": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "devices": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if cuda else [],
        "cuda": torch.version.cuda if cuda else None,
        "cudnn": torch.backends.cudnn.version() if cuda else None,  # type: ignore[no-untyped-call]
    }


def _source(package: Path) -> dict[str, Any]:
    """The commit that the package's files are tracked in, not that of a project which has it installed somewhere.

    Copied without its repository, as into a container, the package can be told by SSGD_COMMIT.
    """
    try:
        _git(package, "ls-files", "--error-unmatch", "__init__.py")
        commit = _git(package, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    except (OSError, subprocess.SubprocessError):
        return {"commit": os.environ.get("SSGD_COMMIT"), "dirty": None}
    return {"commit": commit.removesuffix("-dirty"), "dirty": commit.endswith("-dirty")}


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "--no-optional-locks", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.strip()


def _differing(here: dict[str, Any], asked: dict[str, Any]) -> list[str]:
    here, asked = _fields(_words(here)), _fields(asked)
    return [
        f"{name}: here {_line(here.get(name))}, asked {_line(asked.get(name))}"
        for name in here | asked
        if _compared(name, here.get(name)) != _compared(name, asked.get(name))
    ]


def _compared(name: str, value: Any) -> Any:
    """A folder of data is the same one with a slash behind it or without."""
    return Path(os.path.expanduser(value)) if name == "data" and isinstance(value, str) else value


def _fields(value: Any, name: str = "") -> dict[str, Any]:
    """A nested dictionary as a flat one: ``{"optimizer.lr": 0.1}``."""
    if not isinstance(value, dict) or not value:
        return {name: value}
    inner = (_fields(part, f"{name}.{key}" if name else key) for key, part in value.items())
    return {field: leaf for fields in inner for field, leaf in fields.items()}


def _line(value: Any, indent: int | None = None) -> str:
    """Strict JSON; floats as repr writes them, keys in their order."""
    return json.dumps(_words(value), ensure_ascii=False, allow_nan=False, indent=indent)


def _rows(path: Path) -> list[dict[str, Any]]:
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return [_parsed(line, f"line {number} of {path}", "row") for number, line in enumerate(lines, 1)]


def _parsed(line: bytes, where: str, what: str) -> dict[str, Any]:
    try:
        row: dict[str, Any] = _numbers(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{where} is not JSON: repair it, or delete the run's folder") from error
    if not isinstance(row, dict) or not row:
        raise ValueError(f"{where} is no {what}: repair it, or delete the run's folder")
    return row


def _words(value: Any) -> Any:
    """Numbers that JSON lacks become strings, ..."""
    return _each(value, lambda leaf: str(leaf) if isinstance(leaf, float) and not math.isfinite(leaf) else leaf)


def _numbers(value: Any) -> Any:
    """... and numbers again."""
    return _each(value, lambda leaf: float(leaf) if leaf in ("nan", "inf", "-inf") else leaf)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _each(part, change) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_each(part, change) for part in value]
    return change(value)


# --- what a run was trained with --------------------------------------------------------------------------------------


Fingerprint = dict[str, Any]
PARTS = {  # of a fingerprint, in words
    "words": "the vocabulary of {data}",
    "files": "the files of {data}, by their names and sizes,",
    "loader": "the source of {data}",
    "classes": "the number of classes of {data}",
    "channels": "the number of channels of {data}",
    "source": "the source of {model}, or of a layer it uses,",
    "method": "the source of {method}",
    "weights": "the shape or the initialisation of {model}",
}


def of_model(recipe: Recipe, classes: int, channels: int) -> Fingerprint:
    """Of those of ssgd itself only the numbers are kept: they come with a release, which a run may outlive."""
    found: Fingerprint = {"classes": classes, "channels": channels}
    if ":" in recipe.method:
        found["method"] = _hash(_sources([recipe.method.partition(":")[0]]))
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
                f"{words.format_map(vars(recipe))} changed since {path} was begun: bring it back,"
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
