"""Checkpoints: the last few states of a training, each of them whole or known to be damaged."""

from __future__ import annotations

import hashlib
import io
import re
import warnings
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ...files import explained, remove_drafts, write_whole

DIGEST = 64  # hexadecimal digits of a sha256


class Checkpoints:
    """The last ``keep`` states in a folder, as files ``step-00000123.pt``.

    A file is what ``torch.save`` writes, a zip, with the sha256 of all that precedes it as the zip's comment:
    ``torch.load(file, weights_only=True)`` reads it as it is. ``state`` is made of tensors and plain values.
    """

    def __init__(self, folder: str | Path, keep: int = 2) -> None:
        if keep < 1:
            raise ValueError(f"keep must be 1 or more checkpoints, not {keep}")
        self.folder, self.keep = Path(folder), keep

    def save(self, position: int, state: dict[str, Any]) -> None:
        """Keeps ``state`` as the newest, and removes the oldest once it is safe on the disk."""
        buffer = io.BytesIO()  # not straight to the disk, whose refusals torch would hide
        torch.save(state, buffer)
        content = buffer.getbuffer()
        content[-2:] = DIGEST.to_bytes(2, "little")  # a zip ends with the length of its comment
        digest = hashlib.sha256(content).hexdigest().encode()

        def write(file: BinaryIO) -> None:
            file.write(content)
            file.write(digest)

        with explained(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        remove_drafts(self.folder)
        write_whole(self.folder / f"step-{position:08d}.pt", write)
        files = self._files()
        kept = [at for at in files if at <= position][: self.keep]  # what lies ahead was damaged, and gone back behind
        with explained(self.folder):
            for at in files.keys() - set(kept):
                files[at].unlink(missing_ok=True)

    def load(self) -> tuple[int, dict[str, Any]] | None:
        """Position and state of the newest that is whole, on the CPU; None where there is no checkpoint at all."""
        files = self._files()
        for position, path in files.items():
            try:
                content = _whole(path)
            except (OSError, ValueError) as problem:
                warnings.warn(f"{problem}; it is passed over for the one before it", stacklevel=2)
                continue
            return position, _state(content)
        if files:
            raise ValueError(
                f"none of the {len(files)} checkpoints in {self.folder} is whole: copy one back from elsewhere,"
                " or delete the run's folder to start anew"
            )
        return None

    def _files(self) -> dict[int, Path]:
        """By position, the newest first."""
        matches = ((re.fullmatch(r"step-(\d+)\.pt", path.name), path) for path in self.folder.glob("step-*.pt"))
        return dict(sorted(((int(match[1]), path) for match, path in matches if match), reverse=True))


def weights(path: str | Path) -> dict[str, Tensor]:
    """The model's weights, ``state["model"]``, of a checkpoint file, or of the newest in a run's folder."""
    path = Path(path)
    if not path.is_dir():
        model: dict[str, Tensor] = _state(_whole(path))["model"]
        return model
    newest = Checkpoints(path / "checkpoints" if (path / "checkpoints").is_dir() else path).load()
    if newest is None:
        raise FileNotFoundError(f"there is no checkpoint in {path}: name a run's folder, or one of its checkpoints")
    model = newest[1]["model"]
    return model


def _whole(path: Path) -> bytes:
    content = path.read_bytes()
    if hashlib.sha256(memoryview(content)[:-DIGEST]).hexdigest().encode() != content[-DIGEST:]:
        raise ValueError(f"{path} is damaged or cut short, or no checkpoint of ssgd")
    return content


def _state(content: bytes) -> dict[str, Any]:
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state
