"""The laboratory: trains, reproduces and reports. The library knows nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from .data.preprocess import Preprocess

__all__ = ["load"]


def load(path: str | Path) -> tuple[nn.Module, Preprocess | None]:
    """Returns the net of a run, in eval mode on the CPU with the weights that were evaluated, and its preprocessing.

    ``net(preprocess(images))`` takes images in bytes (N, C, H, W), of a run that learned from a folder a list of image
    files. Of a language model ``preprocess(text)`` returns the numbers of its words, of a speech model
    ``preprocess(file)`` features and their length. It is None where the training took inputs as they are.

    ``path``: a run's folder, one of its checkpoints, or its weights.safetensors.
    """
    from .solutions import load

    return load(path)
