"""The global random streams, put back so that two passes draw the same dropout masks; and CUDA graphs."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

Snapshot = dict[torch.device, Tensor]


def snapshot(devices: Iterable[torch.device]) -> Snapshot:
    """The state of the stream of each device, and of the CPU's."""
    states = {torch.device("cpu"): torch.get_rng_state()}
    for device in devices:
        if device.type != "cpu":
            states[device] = torch.get_device_module(device).get_rng_state(device)
    return states


def put_back(states: Snapshot) -> None:
    for device, state in states.items():
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


def capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
