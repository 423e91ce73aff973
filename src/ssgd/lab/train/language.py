"""Language models: the loss of the next words, and perplexity."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .kinds import Autocast, Batches, judging

COMPILES = False  # cuDNN's LSTM is faster as it is
CAPTURES = True
INPUTS = 1
EVERY_EPOCH = ("valid", "test")
AT_THE_END = ()


def objective(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The loss, summed over time and averaged over the batch as Zaremba has it; and sums over the words."""
    logits = model(x).float().flatten(0, 1)
    loss = F.cross_entropy(logits, y.flatten(), reduction="sum")
    right = (logits.detach().argmax(1) == y.flatten()).sum()
    counted = torch.stack([loss.detach(), right.to(loss), torch.full_like(loss.detach(), y.numel())])
    return loss / len(y), counted


def progress(sums: list[float]) -> dict[str, float]:
    """An epoch's means over its passes, from objective()'s sums."""
    loss, right, words = sums
    return {"loss": loss / words, "accuracy": 100 * right / words, "perplexity": math.exp(min(loss / words, 700))}


def count(net: nn.Module, batches: Batches, autocast: Autocast, device: torch.device) -> Tensor:
    """Sums over all words: loss, words. The state is carried from batch to batch, and begins at zero."""
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    with judging(net):
        for i, (x, y) in enumerate(batches):
            if i == 0:
                net.reset(len(x))  # type: ignore[operator]
            with autocast():
                logits = net(x)
            loss = F.cross_entropy(logits.float().flatten(0, 1), y.flatten(), reduction="sum")
            sums += torch.stack([loss, torch.full_like(loss, y.numel())]).double()
    return sums


def summary(sums: list[float], part: str, classes: int) -> dict[str, float]:
    """Mean loss and perplexity, from count()'s sums."""
    loss, words = sums
    return {f"{part}_loss": loss / words, f"{part}_perplexity": math.exp(min(loss / words, 700))}
