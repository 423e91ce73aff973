"""Image classification: a batch's loss, and how good a net is on a whole set."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .kinds import Autocast, Batches, judging

COMPILES = True
CAPTURES = True
INPUTS = 1
EVERY_EPOCH = ("test",)
AT_THE_END = ("train",)


def objective(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The mean loss; and summed over the images: loss, right answers, images."""
    logits = model(x).float()
    loss = F.cross_entropy(logits, y)
    right = (logits.detach().argmax(1) == y).sum()
    return loss, torch.stack([loss.detach() * len(y), right.to(loss), torch.full_like(loss.detach(), len(y))])


def progress(sums: list[float]) -> dict[str, float]:
    """An epoch's means over its passes, from objective()'s sums."""
    loss, right, images = sums
    return {"loss": loss / images, "accuracy": 100 * right / images}


def count(net: nn.Module, batches: Batches, autocast: Autocast, device: torch.device) -> Tensor:
    """Sums over all images: loss, right answers, right ones among the first five, images. Weights stay as they are."""
    sums = torch.zeros(4, dtype=torch.float64, device=device)
    with judging(net):
        for x, y in batches:
            with autocast():
                logits = net(x)
            logits = logits.float()
            best = logits.topk(min(5, logits.shape[1])).indices == y[:, None]
            loss = F.cross_entropy(logits, y, reduction="sum")
            sums += torch.stack([loss, best[:, 0].sum(), best.sum(), torch.ones_like(y).sum()]).double()
    return sums


def summary(sums: list[float], part: str, classes: int) -> dict[str, float]:
    """Mean loss and accuracies in percent, from count()'s sums."""
    loss, right, among_five, images = sums
    found = {f"{part}_loss": loss / images, f"{part}_accuracy": 100 * right / images}
    if classes > 5:
        found[f"{part}_top5_accuracy"] = 100 * among_five / images
    return found
