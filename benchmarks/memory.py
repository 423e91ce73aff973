"""What a step holds in memory beside the passes and the base's own tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn

import ways
from measure import Meter, Row, meter
from nets import resnet18
from ssgd import SSGD
from ways import Way


def rows(device: torch.device) -> list[Row]:
    """Bytes kept between steps, and copies of the selected weights held inside one, for ResNet18 beyond SGD's."""
    base = {"lr": 0.1, "momentum": 0.9, "foreach": True}
    own = footprint(partial(ways.sgd, **base), device)
    found = []
    for way in (ways.points, ways.split, ways.closure, *([ways.sam] if ways.has_sam() else [])):
        used = footprint(partial(way, **base), device)
        selected = selected_bytes(device)
        limit = 2.0  # w and n at a time, or w and the first half of the gradient
        goal_kept, goal_held = (0, limit) if way is ways.points else (None, None)
        name = way.__name__
        found += [
            Row(f"kept_between_steps_{name}", used.kept - own.kept, "bytes", 1, goal=goal_kept),
            Row(f"held_in_pass_{name}", (used.held - own.held) / selected, "× selected weights", 1, goal=goal_held),
            Row(f"peak_in_step_{name}", (used.peak - own.peak) / selected, "× selected weights", 1),
        ]
    return found


@dataclass
class Footprint:
    """Bytes beyond weights and batch: between two steps, at the end of a pass (the largest), at any time."""

    kept: int
    held: int
    peak: int


def footprint(build: Callable[[list[nn.Parameter]], Way], device: torch.device) -> Footprint:
    """That of the third step."""
    gc.collect()  # nothing from before may be freed while the meter runs
    parameters = list(resnet18().to(device).parameters())
    x, y = torch.zeros(64, 1, device=device), torch.zeros(64, device=device)
    with meter(device, [*parameters, x, y]) as reading:
        way = build(parameters)
        for _ in range(3):
            reading.reset_peak()
            run = AccumulatedGradients(parameters, reading)
            way.step(run, x, y)
        peak = reading.peak()
        gc.collect()  # kept is what something still refers to
        return Footprint(kept=reading.current(), held=max(run.held), peak=peak)


@dataclass
class AccumulatedGradients:
    """In the place of forward and backward: makes the gradients that are missing, and reads the meter."""

    parameters: list[nn.Parameter]
    reading: Meter
    held: list[int] = field(default_factory=list)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter, requires_grad=False)
            else:
                parameter.grad.zero_()
        self.held.append(self.reading.current())
        return torch.zeros((), device=x.device)


def selected_bytes(device: torch.device) -> int:
    """Bytes of the weights that get noise by default."""
    optimizer = ways.points(list(resnet18().to(device).parameters()), lr=0.1).optimizer
    assert isinstance(optimizer, SSGD)
    return sum(p.numel() * p.element_size() for p in optimizer.selected)
