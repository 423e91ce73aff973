"""States and weights on the disk, each of them whole or known to be damaged: checkpoints, and safetensors."""

from __future__ import annotations

import hashlib
import io
import json
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ...files import explained, remove_drafts, write_whole

DIGEST = 64  # hexadecimal digits of a sha256
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


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
            return position, _state(content, path)
        if files:
            raise ValueError(
                f"none of the {len(files)} checkpoints in {self.folder} is whole: copy one back from elsewhere,"
                " or delete the run's folder to start again"
            )
        return None

    def _files(self) -> dict[int, Path]:
        """By position, the newest first."""
        matches = ((re.fullmatch(r"step-(\d+)\.pt", path.name), path) for path in self.folder.glob("step-*.pt"))
        return dict(sorted(((int(match[1]), path) for match, path in matches if match), reverse=True))


def weights(path: str | Path) -> dict[str, Tensor]:
    """Returns the model's weights, ``state["model"]``, of a checkpoint file, or of the newest in a run's folder."""
    path = Path(path)
    if path.is_dir():
        newest = Checkpoints(path / "checkpoints" if (path / "checkpoints").is_dir() else path).load()
        if newest is None:
            raise FileNotFoundError(f"there is no checkpoint in {path}: name a run's folder, or one of its checkpoints")
        model: Any = newest[1].get("model")
    else:
        model = _state(_whole(path), path).get("model")
    if not isinstance(model, dict) or not all(isinstance(value, Tensor) for value in model.values()):
        raise ValueError(f"{path} holds no weights of a model: name another checkpoint")
    return model


def _whole(path: Path) -> bytes:
    content = path.read_bytes()
    if hashlib.sha256(memoryview(content)[:-DIGEST]).hexdigest().encode() != content[-DIGEST:]:
        raise ValueError(f"{path} is damaged or cut short, or no checkpoint of ssgd")
    return content


def _state(content: bytes, path: Path) -> dict[str, Any]:
    try:
        state: Any = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # of a forged file nearly any
        raise ValueError(f"{path} is no checkpoint of ssgd: delete it, or the run's folder to start again") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path} is no checkpoint of ssgd: delete it, or the run's folder to start again")
    return state


def write_safetensors(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors by name in the safetensors format, whole or not at all, without needing its package."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    header: dict[str, object] = {}
    end = 0
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))  # keeps each one aligned
    for name, tensor in ordered:
        if tensor.dtype not in names or name == "__metadata__":
            raise ValueError(f"{name} ({tensor.dtype}) does not fit into {path}: rename it, or use {', '.join(DTYPES)}")
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)

    def write(file: BinaryIO) -> None:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in ordered:
            file.write(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)

    write_whole(path, write)


def read_safetensors(path: str | Path) -> dict[str, Tensor]:
    """Returns the tensors of a safetensors file, on the CPU."""
    content = Path(path).read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    listed = _listed(content[8:start], path)
    if start + sum(tensor.nbytes for tensor in listed.values()) != len(content):
        raise ValueError(f"{path} is damaged or cut short: write it again")
    found = {}
    for name, tensor in listed.items():
        data = bytearray(content[start : start + tensor.nbytes])
        flat = torch.frombuffer(data, dtype=tensor.dtype) if data else torch.empty(0, dtype=tensor.dtype)
        found[name], start = flat.reshape(tensor.shape), start + tensor.nbytes
    return found


def _listed(header: bytes, path: str | Path) -> dict[str, Tensor]:
    """The tensors of a header without their numbers, as they follow each other: no gap, no overlap."""
    try:
        entries = json.loads(header)
        entries.pop("__metadata__", None)
        entries = sorted((entry["data_offsets"], name, _without_numbers(entry)) for name, entry in entries.items())
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, RecursionError, OverflowError) as error:
        raise ValueError(f"{path} is damaged, or no safetensors file of plain numbers: write it again") from error
    end = 0
    for offsets, name, tensor in entries:
        start, end = end, end + tensor.nbytes
        if offsets != [start, end]:
            raise ValueError(f"{path} is damaged: it has {name} at bytes {offsets}, not {[start, end]}: write it again")
    return {name: tensor for _, name, tensor in entries}


def _without_numbers(entry: dict[str, Any]) -> Tensor:
    return torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]], device="meta")
