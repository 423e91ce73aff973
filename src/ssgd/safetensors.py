"""Tensors in the safetensors format, whole or not there at all, where the package of that name is not installed too."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from .files import write_whole

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
    found, last = {}, 0
    try:
        for name, entry in json.loads(content[8:start]).items():
            if name != "__metadata__":
                first, last_here = entry["data_offsets"]
                data = bytearray(content[start + first : start + last_here])
                dtype = DTYPES[entry["dtype"]]
                flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
                found[name], last = flat.reshape(entry["shape"]), max(last, last_here)
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"{path} is damaged, or no safetensors file of plain numbers: write it again") from error
    if start + last != len(content):
        raise ValueError(f"{path} is damaged or cut short: write it again")
    return found
