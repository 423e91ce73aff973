"""How many operators a step calls beside the passes and the base's own step."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

import ways
from measure import Row, dispatched_calls, operator_calls
from nets import resnet18
from ssgd import SSGD
from ways import Way

GOAL = 20


def rows(device: torch.device, repeats: int) -> list[Row]:
    """Calls for ResNet18's 62 tensors, beyond those of momentum SGD."""
    base = {"lr": 0.1, "momentum": 0.9, "foreach": True}
    own = count(partial(ways.sgd, **base), device, repeats)
    found = [_row("operator_calls_sgd", own, repeats)]
    for way in (ways.points, ways.split, ways.closure):
        for distribution in ("sphere", "sign", "uniform"):
            calls = count(partial(way, distribution=distribution, **base), device, repeats) - own
            goal = GOAL if way is ways.points else None
            found.append(_row(f"operator_calls_{way.__name__}_{distribution}", calls, repeats, goal))
    if ways.has_sam():
        found.append(
            _row("operator_calls_sam_foreach", count(partial(ways.sam, **base), device, repeats) - own, repeats)
        )
        base["foreach"] = None
        own = count(partial(ways.sgd, **base), device, repeats)
        found.append(_row("operator_calls_sam", count(partial(ways.sam, **base), device, repeats) - own, repeats))
    return found


def count(build: Callable[[list[nn.Parameter]], Way], device: torch.device, repeats: int) -> Counter[str]:
    """The top-level calls of one step, the same in each of ``repeats`` steps."""
    parameters = list(resnet18().to(device).parameters())
    way = build(parameters)
    run = GivenGradients(parameters)
    x, y = torch.zeros(64, 1, device=device), torch.zeros(64, device=device)

    def step() -> None:
        way.step(run, x, y)

    for _ in range(3):  # momentum and aliases are made on the first step
        step()
    counts = [operator_calls(step) for _ in range(repeats)]
    if any(calls != counts[0] for calls in counts):
        raise RuntimeError(f"the calls differ from step to step: {counts}")
    dispatched = dispatched_calls(step)
    if isinstance(way.optimizer, SSGD) and dispatched != counts[0].total():
        raise RuntimeError(f"the dispatcher saw {dispatched} calls, the profiler {counts[0].total()}: {counts[0]}")
    return counts[0]


class GivenGradients:
    """In the place of forward and backward: puts gradients there without calling an operator, others at each pass."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self.parameters = parameters
        sets = [[torch.ones_like(p, requires_grad=False) for p in parameters] for _ in range(2)]
        self.gradients = itertools.cycle(sets)
        self.loss = torch.zeros((), device=parameters[0].device)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        for parameter, gradient in zip(self.parameters, next(self.gradients), strict=True):
            parameter.grad = gradient
        return self.loss


def _row(name: str, calls: Counter[str], repeats: int, goal: int | None = None) -> Row:
    return Row(name, calls.total(), "calls", repeats, goal=goal, detail=dict(calls.most_common()))
