"""Files that are whole or not there at all, also after a crash, and a disk's refusals as sentences."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

FULL = "there is no space left for {path}: free some on that disk or in your quota, then run the same command again"
DENIED = "{path} cannot be written for lack of permission: choose another folder, or change who may write there"
REFUSALS = {
    errno.ENOSPC: FULL,
    errno.EDQUOT: FULL,
    errno.EFBIG: "{path} would be larger than a file may be here: raise the limit (ulimit -f) or choose another folder",
    errno.EROFS: "{path} cannot be written because its disk is read-only: choose another folder, or mount it writable",
    errno.EACCES: DENIED,
    errno.EPERM: DENIED,
}


class DiskProblem(OSError):
    """A disk refused; the message is one sentence for the user, ``errno`` is the disk's."""


def write_whole(path: str | Path, data: bytes | Callable[[BinaryIO], object]) -> None:
    """Bytes, or what a function writes, at ``path``: after an error or a crash the file is the old one or the new."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with explained(path):
        try:
            with open(draft, "xb") as file:
                if isinstance(data, bytes):
                    file.write(data)
                else:
                    data(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, path)
        except BaseException:
            with suppress(OSError):
                draft.unlink()
            raise
        _sync_folder(path.parent)


def make_room(path: Path) -> None:
    """The folder that a file is to lie in."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)


def append_line(path: str | Path, text: str) -> None:
    """``text`` as the last line of a file; where the disk refuses, the file stays as it was."""
    path, line = Path(path), f"{text}\n".encode()
    with explained(path), open(path, "ab", buffering=0) as file:
        before, written = file.tell(), 0
        try:
            while written < len(line):  # a disk that is filling up takes a part first and says no to the rest
                written += file.write(line[written:])
            os.fsync(file.fileno())
        except OSError:
            if os.fstat(file.fileno()).st_size == before + written:  # else another process wrote after us
                with suppress(OSError):  # no plain file
                    file.truncate(before)
            raise


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """No other process is inside for this folder; where a system or a disk has no such locks, nobody waits."""
    if fcntl is None:
        yield
        return
    with explained(folder):
        descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some network file systems have none
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def drop_cut_line(path: Path) -> None:
    """Removes what a crash left of a last line, so that the next one does not continue it."""
    content = path.read_bytes() if path.exists() else b""
    whole = content[: content.rfind(b"\n") + 1]
    if whole != content:
        write_whole(path, whole)


def remove_drafts(folder: Path) -> None:
    """Removes what a killed ``write_whole`` left. Only for the one process that writes in this folder."""
    with explained(folder):
        for draft in folder.glob(".*.tmp"):
            draft.unlink(missing_ok=True)


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """An error of the disk inside becomes a ``DiskProblem`` about ``path``."""
    try:
        yield
    except DiskProblem:
        raise
    except OSError as error:
        other = f"{{path}} could not be written ({error.strerror or error}): check the disk, or choose another folder"
        problem = DiskProblem(REFUSALS.get(error.errno or 0, other).format(path=path))
        problem.errno = error.errno
        raise problem from error


def _sync_folder(folder: Path) -> None:
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some network file systems cannot, and need not
            raise
    finally:
        os.close(descriptor)
