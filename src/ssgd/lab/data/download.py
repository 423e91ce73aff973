"""Fetch a file whole or not at all, going on where an earlier try was cut, and unpack archives without trust."""

from __future__ import annotations

import gzip
import hashlib
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any

from ssgd.files import locked

TIMEOUT = 30  # seconds without a byte
CHUNK = 1 << 18


def fetch(url: str, target: Path, md5: str | None = None, sha256: str | None = None) -> Path:
    """The file at ``url`` as ``target``. It arrives in ``target.part`` and gets its name once its sum is right."""
    sums = {name: expected for name, expected in (("md5", md5), ("sha256", sha256)) if expected}
    if target.exists():
        wrong = _wrong_sum(target, sums)
        if wrong:
            raise ValueError(f"{target} is damaged or cut short ({wrong}): delete it, and it is downloaded again")
        return target
    with _explained(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    before = -1
    while not _receive(url, part, target):
        now = part.stat().st_size
        if now <= before:
            raise OSError(
                f"the connection to {url} was cut after {now} bytes: run this again to go on from there, or download it"
                f" by hand and put it into {target.parent}"
            )
        before = now
    wrong = _wrong_sum(part, sums)
    if wrong:
        part.unlink()
        raise ValueError(f"what came from {url} is not the published file ({wrong}) and was deleted: run this again")
    part.replace(target)
    return target


def unpack(archive: Path, folder: Path) -> None:
    """The files of a tar archive into ``folder``, which gets each top-level entry whole or not at all."""
    with _explained(folder), tempfile.TemporaryDirectory(prefix=".unpacking-", dir=folder) as scratch:
        try:
            with tarfile.open(archive) as tar:
                members = tar.getmembers()
                for member in members:
                    _check_member(archive, member)
                if hasattr(tarfile, "data_filter"):  # Python 3.10.12 and newer
                    tar.extractall(scratch, members, filter="data")
                else:
                    tar.extractall(scratch, members)
        except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as problem:
            raise ValueError(
                f"{archive} is damaged or cut short ({problem}): delete it, and it is downloaded again"
            ) from problem
        for entry in Path(scratch).iterdir():
            entry.rename(folder / entry.name)


@contextmanager
def one_at_a_time(folder: Path) -> Iterator[None]:
    """Lets one process at a time into ``folder``, so that the ranks of a training do not all download."""
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with locked(folder):
        yield


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """What a disk refuses, as a sentence about the folder."""
    try:
        yield
    except OSError as problem:
        raise OSError(
            f"{folder} cannot be written to ({problem.strerror or problem}): free some space there, or choose another"
            " folder for data, such as by SSGD_DATA"
        ) from problem


def _receive(url: str, part: Path, target: Path) -> bool:
    """Asks for what ``part`` lacks and appends it. Whether the file is whole now."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "ssgd"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    by_hand = f"download {url} by hand and put it into {target.parent}"
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as answer:
        if answer.code == 416 and have:  # nothing lies beyond what is there
            return True
        raise OSError(f"the server answered {answer.code} ({answer.reason}): {by_hand}") from answer
    except (OSError, HTTPException) as problem:
        raise OSError(f"no network ({problem}): {by_hand}") from problem
    with response:
        if response.status != 206:
            have = 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        with (
            _explained(target.parent),
            part.open("ab" if have else "wb") as file,
            _progress(target.name, have, total) as shown,
        ):
            for chunk in _chunks(response):
                file.write(chunk)
                shown.update(len(chunk))
    return total is None or part.stat().st_size >= total


def _chunks(response: HTTPResponse) -> Iterator[bytes]:
    while True:
        try:
            chunk = response.read(CHUNK)
        except (OSError, HTTPException):  # cut: the length tells
            return
        if not chunk:
            return
        yield chunk


def _wrong_sum(path: Path, sums: dict[str, str]) -> str:
    """Says which sum is not the expected one; nothing if all are."""
    for name, expected in sums.items():
        digest = hashlib.new(name, usedforsecurity=False)
        with path.open("rb") as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
        if digest.hexdigest() != expected:
            return f"its {name} is {digest.hexdigest()}, not {expected}"
    return ""


def _check_member(archive: Path, member: tarfile.TarInfo) -> None:
    path = Path(member.name)
    if not (member.isfile() or member.isdir()) or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{archive} wants to write {member.name}, which no data set needs: do not unpack it")


def _progress(name: str, have: int, total: int | None) -> Any:
    try:
        from tqdm import tqdm
    except ImportError:
        return _Lines(name, have, total)
    return tqdm(desc=name, initial=have, total=total, unit="B", unit_scale=True)


class _Lines:
    """Stands in for tqdm: a line on stderr now and then."""

    def __init__(self, name: str, have: int, total: int | None) -> None:
        self.name, self.have = name, have
        self.total = f" of {total / 2**20:.0f}" if total else ""
        self.next = time.monotonic()

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *_: object) -> None:
        self._say()

    def update(self, more: int) -> None:
        self.have += more
        if time.monotonic() > self.next:
            self._say()

    def _say(self) -> None:
        print(f"{self.name}: {self.have / 2**20:.0f}{self.total} MiB", file=sys.stderr)
        self.next = time.monotonic() + 10
