"""Triton kernels: an accelerator beside torch's operations, never the only way."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec

import torch

from ..core.moving import Chosen
from ..core.noise import Distribution
from ..core.weights import NoisyWeights


@cache
def has_kernels(device: torch.device) -> bool:
    """Say whether Triton can build kernels for the device: it may be missing, or the C compiler that it calls."""
    if device.type != "cuda" or find_spec("triton") is None:
        return False
    try:
        from .noise import check

        check(device)
    except Exception as error:
        warnings.warn(
            "torch's operations take the place of our kernels, slower and, where noise is made, for a moment with two"
            f" copies of the weights, because Triton cannot build kernels here: {error}",
            stacklevel=2,
        )
        return False
    return True


def noise_kernels(chosen: Sequence[Chosen], distribution: Distribution) -> type[NoisyWeights] | None:
    """The class that moves these weights by kernels, or None where they cannot."""
    if not all(map(has_kernels, {p.device for p, *_ in chosen})):
        return None
    from .noise import FusedWeights, serve

    return FusedWeights if serve(chosen, distribution) else None
