"""Whether kernels of our own can be built here."""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec

import torch


@cache
def has_kernels(device: torch.device) -> bool:
    """Whether Triton can build kernels for the device: it may be missing, or the C compiler that it calls."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    try:
        from .kernels import check

        check(device)
    except Exception as error:
        warnings.warn(
            "torch's operations take the place of our kernels, slower and, where noise is made, for a moment with two"
            f" copies of the weights, because Triton cannot build kernels here: {error}",
            stacklevel=2,
        )
        return False
    return True
