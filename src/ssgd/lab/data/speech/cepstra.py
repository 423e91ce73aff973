"""Cepstra from Sphinx's ``.mfc`` files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ssgd.lab.data.faults import Unusable
from ssgd.lab.data.speech.deltas import with_deltas
from ssgd.lab.data.speech.utterances import Utterance


@dataclass(frozen=True)
class Cepstra:
    """Features that lie in files: ``coefficients`` a frame, followed by ``deltas`` rounds of differences."""

    coefficients: int = 13
    deltas: int = 0

    @property
    def count(self) -> int:
        return self.coefficients * (1 + self.deltas)

    def __call__(self, utterance: Utterance) -> Tensor:
        """Frames (time, features)."""
        frames = [read_mfc(clip.path, self.coefficients) for clip in utterance.clips if clip.path is not None]
        return with_deltas(torch.cat(frames), self.deltas)


def read_mfc(path: Path, coefficients: int = 13) -> Tensor:
    """Frames (time, coefficients). The count of numbers at the beginning tells the byte order."""
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        raise Unusable("missing audio", f"{path} is not there, or may not be read")
    content = path.read_bytes()
    count = len(content) // 4 - 1
    orders = [order for order in (">", "<") if content[:4] == np.array(count, f"{order}i4").tobytes()]
    if not orders or count < 1 or count % coefficients or len(content) % 4:
        sentence = f"{path} is cut short or no .mfc of {coefficients} coefficients: its length does not fit its count"
        raise Unusable("broken audio", sentence)
    frames = np.frombuffer(content, f"{orders[0]}f4", count, 4).astype(np.float32)
    if not np.isfinite(frames).all():
        raise Unusable("broken audio", f"{path} contains numbers that are not finite")
    return torch.from_numpy(frames.reshape(-1, coefficients))
