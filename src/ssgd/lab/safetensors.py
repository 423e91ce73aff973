"""Tensors in the safetensors format, whole or not there at all, where the package of that name is not installed too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor

from ..files import write_whole

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


def write_safetensors(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Tensors by name in the safetensors format, without needing its package."""
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
    """The tensors of a safetensors file, on the CPU."""
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
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged, or no safetensors file of plain numbers: write it again") from error
    end = 0
    for offsets, name, tensor in entries:
        start, end = end, end + tensor.nbytes
        if offsets != [start, end]:
            raise ValueError(f"{path} is damaged: it has {name} at bytes {offsets}, not {[start, end]}: write it again")
    return {name: tensor for _, name, tensor in entries}


def _without_numbers(entry: dict[str, Any]) -> Tensor:
    return torch.empty(entry["shape"], dtype=DTYPES[entry["dtype"]], device="meta")
