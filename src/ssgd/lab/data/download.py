"""Where data sets lie, downloads that go on where they were cut, and archives unpacked without trust."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from pathlib import Path

from ssgd.files import locked

TIMEOUT = 30  # seconds without a byte
CHUNK = 1 << 18
REPLIES = 50  # to one call, which may each be cut


def data_folder(given: str | Path | None = None) -> Path:
    """Returns the folder of data sets: the one given, else that of SSGD_DATA, else the user's cache."""
    if given or os.environ.get("SSGD_DATA"):
        return Path(given or os.environ["SSGD_DATA"]).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ssgd"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ssgd"


def fetch(url: str, target: Path, md5: str) -> Path:
    """Downloads ``url`` to ``target``. It arrives in ``target.part`` and gets its name once its MD5 sum is right.

    A reply that is cut is followed by a request for the rest, ``REPLIES`` times at most and as long as each brings
    something. What has arrived is kept, so that the next call goes on from there.
    """
    if target.exists():
        if wrong := _wrong_sum(target, md5):
            raise ValueError(f"{target} is damaged or cut short ({wrong}): delete it, and it is downloaded again")
        return target
    with _explained(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(target.name + ".part")
    before, whole = -1, False
    for _ in range(REPLIES):
        whole = _receive(url, part, target)
        if whole or not _wrong_sum(part, md5):  # where the server does not tell the length, the sum does
            break
        now = part.stat().st_size
        if now <= before:
            break
        before = now
    if not (wrong := _wrong_sum(part, md5)):
        part.replace(target)
        return target
    if whole:
        part.unlink()
        raise ValueError(f"the file from {url} is not the published one ({wrong}) and was deleted: run this again")
    raise OSError(
        f"the connection to {url} was cut after {part.stat().st_size} bytes: run this again to go on from there, or"
        f" download it by hand and put it into {target.parent}"
    )


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a tar archive into ``folder``, which gets each top-level entry whole or not at all."""
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
    """Turns an error of the disk into a sentence about the folder."""
    try:
        yield
    except OSError as problem:
        raise OSError(
            f"{folder} cannot be written to ({problem.strerror or problem}): free some space there, or choose another"
            " folder for data, such as by SSGD_DATA"
        ) from problem


def _receive(url: str, part: Path, target: Path) -> bool:
    """Requests the bytes that ``part`` lacks and adds them. Returns whether the file is known to be whole now."""
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"User-Agent": "ssgd"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    by_hand = f"download {url} by hand and put it into {target.parent}"
    try:
        response: HTTPResponse = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as answer:
        if answer.code == 416 and have:  # nothing lies beyond the bytes that are there
            return True
        raise OSError(f"the server answered {answer.code} ({answer.reason}): {by_hand}") from answer
    except (OSError, HTTPException) as problem:
        raise OSError(f"no network ({problem}): {by_hand}") from problem
    start = have if response.status == 206 else 0  # a server may send all: then the same bytes are written again
    length = response.headers.get("Content-Length", "")
    total = start + int(length) if re.fullmatch(r"[0-9]{1,18}", length) else None
    with (
        response,
        _explained(target.parent),
        part.open("r+b" if have else "wb") as file,
        _progress(target.name, start, total) as shown,
    ):
        file.seek(start)
        while chunk := _next_bytes(response):
            file.write(chunk)
            shown(len(chunk))
        if total is None or file.tell() < total:
            return False
        file.truncate()
        return True


def _next_bytes(response: HTTPResponse) -> bytes:
    """Returns bytes as they arrive; none at the end of the reply, after a cut, and after ``TIMEOUT`` without any."""
    try:
        return response.read1(CHUNK)
    except (OSError, HTTPException):
        return b""


def _wrong_sum(path: Path, expected: str) -> str:
    """Returns what is wrong with the file's sum, or nothing."""
    digest = hashlib.md5(usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return "" if digest.hexdigest() == expected else f"its md5 is {digest.hexdigest()}, not {expected}"


def _check_member(archive: Path, member: tarfile.TarInfo) -> None:
    path = Path(member.name)
    if not (member.isfile() or member.isdir()) or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{archive} wants to write {member.name}, which no data set needs: do not unpack it")


@contextmanager
def _progress(name: str, have: int, total: int | None) -> Iterator[Callable[[int], object]]:
    """Yields a function to call with every few bytes that came: a bar, or where tqdm is missing a line at first."""
    try:
        from tqdm import tqdm
    except ImportError:
        print(f"{name}: downloading{f' {total / 2**20:.0f} MiB' if total else ''}", file=sys.stderr)
        yield lambda more: None
        return
    with tqdm(desc=name, initial=have, total=total, unit="B", unit_scale=True) as bar:
        yield bar.update
