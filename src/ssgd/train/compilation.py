"""torch.compile as steps of a fixed shape want it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch

Result = TypeVar("Result")


def compiled_for(device: torch.device, function: Callable[..., Result]) -> Callable[..., Result]:
    """``function`` compiled. From Hopper on, each kernel is set up while the one before still runs.

    Where only deterministic algorithms are asked for, nothing is chosen by a race between kernels.
    """
    options: dict[str, str | int | bool | Callable[..., Any]] = {}
    if torch.are_deterministic_algorithms_enabled():
        options["deterministic"] = True
    elif device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0):
        options["triton.enable_pdl"] = True
    return torch.compile(function, dynamic=False, options=options)
