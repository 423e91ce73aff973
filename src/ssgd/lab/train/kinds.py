"""Kinds of learning: what a batch's loss is, and what is told of an epoch. Each kind has a module of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

Autocast = Callable[[], AbstractContextManager[None]]
Batches = Iterable[tuple[Tensor, ...]]
Objective = Callable[..., tuple[Tensor, Tensor]]
MODULES = {"images": "classify", "language": "language", "speech": "speech"}
SAMPLES = {"images": "images", "language": "rows", "speech": "utterances"}  # what a batch is made of
FIGURES = {"accuracy": " %", "perplexity": "", "wer": " %", "cer": " %"}


class Kind(Protocol):
    """What a kind offers: the module itself, or what its ``of(source)`` gives."""

    COMPILES: bool  # whether torch.compile may have the objective
    CAPTURES: bool  # whether batches come in one shape or a few, and a CUDA graph can hold a step
    INPUTS: int  # of a batch's tensors, how many go into the net
    EVERY_EPOCH: tuple[str, ...]  # the parts of the data that are evaluated after each epoch
    AT_THE_END: tuple[str, ...]  # and those for the result

    def objective(self, model: Any, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """The loss to go down, and three sums: loss, right answers, what both are shared among."""

    def progress(self, sums: list[float]) -> dict[str, float]:
        """An epoch's means over its passes."""

    def count(self, net: nn.Module, batches: Batches, autocast: Autocast, device: torch.device) -> Tensor:
        """Sums over a part of the data, with clean weights."""

    def summary(self, sums: list[float], part: str, classes: int) -> dict[str, float]:
        """What is told of them."""


def kind_of(source: Any) -> Kind:
    """The kind that a data source is for."""
    module: Any = import_module(f".{MODULES[source.kind]}", __package__)
    return cast(Kind, module.of(source) if hasattr(module, "of") else module)


@contextmanager
def judging(net: nn.Module) -> Iterator[None]:
    """The net in eval mode, without gradients; afterwards every module is in the mode it was in."""
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def judged(row: Mapping[str, Any], part: str = "test") -> str | None:
    """The one figure that a result or an epoch is known by, in words; None where that part was not evaluated."""
    for name, unit in FIGURES.items():
        if (value := row.get(f"{part}_{name}")) is not None:
            return f"{name} {value:.2f}{unit}"
    return None


def figure(row: Mapping[str, Any], part: str = "test") -> float | None:
    """The same as a number."""
    found = (row.get(f"{part}_{name}") for name in FIGURES)
    return next((value for value in found if value is not None), None)
