"""The laboratory: trains, reproduces and reports. The library knows nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

__all__ = ["load"]


def load(path: str | Path) -> nn.Module:
    """Returns the net of a run, in eval mode on the CPU, with the weights that were evaluated.

    ``path``: a run's folder, one of its checkpoints, or its weights.safetensors.
    """
    from .solutions import load

    return load(path)
