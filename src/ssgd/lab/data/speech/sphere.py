"""NIST sphere files (``.wv1``, ``.sph``) of uncompressed PCM, read without other programs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ssgd.lab.data.faults import Unusable

MAGIC = b"NIST_1A\n"


def read_sphere(path: Path) -> tuple[Tensor, int]:
    """Samples between −1 and 1, and how many a second."""
    content = path.read_bytes()
    header = _header(content, path)
    coding = header.get("sample_coding", "pcm")
    if "shorten" in coding:
        raise Unusable(
            "compressed audio",
            f"{path} is compressed by shorten: write `sph2pipe -f wav {path.name} {path.stem}.wav` beside it, which is"
            " then taken instead",
        )
    if coding != "pcm" or header.get("sample_n_bytes", "2") != "2" or header.get("channel_count", "1") != "1":
        raise Unusable("broken audio", f"{path} is not one channel of 16-bit PCM: convert it to that")
    try:
        count, rate, start = (int(header[name]) for name in ("sample_count", "sample_rate", "header size"))
    except (KeyError, ValueError) as problem:
        raise Unusable("broken audio", f"{path} lacks a number in its header ({problem}): get it again") from problem
    if count < 0 or rate < 1:
        raise Unusable("broken audio", f"{path} says it has {count} samples at {rate} a second: get it again")
    order = ">i2" if header.get("sample_byte_format", "01") == "10" else "<i2"
    if len(content) < start + 2 * count:
        raise Unusable("broken audio", f"{path} is cut short: it should have {count} samples. Get it again")
    return torch.from_numpy(np.frombuffer(content, order, count, start).astype(np.float32) / 32768), rate


def _header(content: bytes, path: Path) -> dict[str, str]:
    if not content.startswith(MAGIC):
        raise Unusable("broken audio", f"{path} is not a NIST sphere file: it does not begin with NIST_1A")
    size = content[len(MAGIC) : len(MAGIC) + 8].strip()
    found = {"header size": size.decode("ascii", "replace")}
    for line in content[: int(size) if size.isdigit() else 0].decode("ascii", "replace").splitlines():
        fields = line.split(None, 2)
        if fields == ["end_head"]:
            return found
        if len(fields) == 3 and fields[1].startswith("-"):
            found[fields[0]] = fields[2].strip()
    raise Unusable("broken audio", f"the header of {path} has no end: get the file again")
