"""The nets, data and ways in that the tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer, RMSprop

from ssgd import SSGD

BASES: dict[str, Callable[[Any], Optimizer]] = {
    "sgd": lambda p: SGD(p, lr=0.1),
    "nesterov": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adam": lambda p: Adam(p, lr=0.01),
    "adamw": lambda p: AdamW(p, lr=0.01),
    "rmsprop": lambda p: RMSprop(p, lr=0.01),
    "adagrad": lambda p: Adagrad(p, lr=0.1),
}
DISTRIBUTIONS = ("sphere", "sign", "uniform")
WAYS = ("points", "closure", "split")


def mlp(dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 3)).to(dtype)


def convnet(seed: int = 0) -> nn.Module:
    """Two convolutions with batch-norm and dropout."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, stride=2),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.LazyLinear(3),
    )


def vectors(samples: int = 8, dtype: torch.dtype = torch.float64, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 5, generator=generator, dtype=torch.float64).to(dtype)
    return x, torch.randint(0, 3, (samples,), generator=generator)


def images(samples: int = 8, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(samples, 1, 7, 7, generator=generator), torch.randint(0, 3, (samples,), generator=generator)


def run_passes(
    opt: SSGD, way: str, model: nn.Module, x: Tensor, y: Tensor, scale: Callable[[Tensor], Tensor] = lambda loss: loss
) -> None:
    """Forward and backward for one batch, by points() or split()."""
    if way == "points":
        for point in opt.points():
            with point:
                point.loss = F.cross_entropy(model(x), y)
                scale(point.loss).backward()
    elif way == "split":
        for point, (xb, yb) in opt.split(x, y):
            with point:
                point.loss = F.cross_entropy(model(xb), yb)
                scale(point.loss).backward()
    else:
        raise ValueError(way)


def take_step(opt: Optimizer, way: str, model: nn.Module, x: Tensor, y: Tensor) -> Any:
    """One whole step by any way in, or of a plain optimizer."""
    if way == "closure":

        def closure() -> Tensor:
            opt.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return opt.step(closure)
    opt.zero_grad()
    if way == "plain":
        F.cross_entropy(model(x), y).backward()
    else:
        run_passes(opt, way, model, x, y)
    return opt.step()


def weights(model: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in model.parameters()]


def same(a: nn.Module | list[Tensor], b: nn.Module | list[Tensor]) -> bool:
    """Bitwise."""
    a, b = (weights(m) if isinstance(m, nn.Module) else m for m in (a, b))
    return len(a) == len(b) and all(torch.equal(p, q) for p, q in zip(a, b, strict=True))
