"""One step of training, in every way that is compared: given a pass (forward and backward), do the rest."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ssgd import SSGD

Pass = Callable[[Tensor, Tensor], Tensor]  # forward and backward over (a part of) the batch; gives the loss


@dataclass(frozen=True)
class Way:
    """``step(run, x, y)`` is a whole step, gradients cleared at its end."""

    optimizer: Optimizer
    step: Callable[[Pass, Tensor, Tensor], None]


def sgd(parameters: Sequence[nn.Parameter], **base: Any) -> Way:
    """Plain SGD: what the others are measured against."""
    optimizer = SGD(parameters, **base)

    def step(run: Pass, x: Tensor, y: Tensor) -> None:
        run(x, y)
        optimizer.step()
        optimizer.zero_grad()

    return Way(optimizer, step)


def points(
    parameters: Sequence[nn.Parameter], level: float | Tensor = 0.2, distribution: str = "sphere", **base: Any
) -> Way:
    """S-SGD, both signs on the whole batch."""
    optimizer = SSGD(SGD(parameters, **base), level, distribution=distribution)

    def step(run: Pass, x: Tensor, y: Tensor) -> None:
        for point in optimizer.points():
            with point:
                run(x, y)
        optimizer.step()
        optimizer.zero_grad()

    return Way(optimizer, step)


def split(
    parameters: Sequence[nn.Parameter], level: float | Tensor = 0.2, distribution: str = "sphere", **base: Any
) -> Way:
    """S-SGD, one sign on each half of the batch."""
    optimizer = SSGD(SGD(parameters, **base), level, distribution=distribution)

    def step(run: Pass, x: Tensor, y: Tensor) -> None:
        for point, (half_x, half_y) in optimizer.split(x, y):
            with point:
                run(half_x, half_y)
        optimizer.step()
        optimizer.zero_grad()

    return Way(optimizer, step)


def closure(
    parameters: Sequence[nn.Parameter], level: float | Tensor = 0.2, distribution: str = "sphere", **base: Any
) -> Way:
    """S-SGD, both signs on the whole batch, with a closure that clears gradients as torch's examples do."""
    optimizer = SSGD(SGD(parameters, **base), level, distribution=distribution)

    def step(run: Pass, x: Tensor, y: Tensor) -> None:
        def evaluate() -> Tensor:
            optimizer.zero_grad()
            return run(x, y)

        optimizer.step(evaluate)
        optimizer.zero_grad()

    return Way(optimizer, step)


def two_passes(parameters: Sequence[nn.Parameter], **base: Any) -> Way:
    """SGD that runs the whole batch twice: what no method of two passes can undercut."""
    optimizer = SGD(parameters, **base)

    def step(run: Pass, x: Tensor, y: Tensor) -> None:
        run(x, y)
        run(x, y)
        optimizer.step()
        optimizer.zero_grad()

    return Way(optimizer, step)


def two_halves(parameters: Sequence[nn.Parameter], **base: Any) -> Way:
    """SGD that runs the batch in two halves: what split cannot undercut."""
    optimizer = SGD(parameters, **base)

    def step(run: Pass, x: Tensor, y: Tensor) -> None:
        for half_x, half_y in zip(x.chunk(2), y.chunk(2), strict=True):
            run(half_x, half_y)
        optimizer.step()
        optimizer.zero_grad()

    return Way(optimizer, step)


def sam(parameters: Sequence[nn.Parameter], **base: Any) -> Way:
    """pytorch_optimizer's SAM, used as its documentation shows; ``foreach=True`` is for it and its base."""
    from pytorch_optimizer import SAM

    optimizer = SAM(parameters, SGD, rho=0.05, **base)

    def step(run: Pass, x: Tensor, y: Tensor) -> None:
        def evaluate() -> Tensor:
            optimizer.zero_grad()
            return run(x, y)

        evaluate()
        optimizer.step(evaluate)
        optimizer.zero_grad()

    return Way(optimizer, step)


def has_sam() -> bool:
    return importlib.util.find_spec("pytorch_optimizer") is not None
