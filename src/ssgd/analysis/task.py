"""What the analysis looks at: a model, a loss and data, of this library or the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..core.batchnorm import recompute_bn
from ..core.checks import check_choice


def samples(batch: Any) -> int:
    """How many samples a batch holds: the length of its first tensor."""
    first = batch
    while not isinstance(first, Tensor):
        first = next(iter(first.values() if isinstance(first, dict) else first))
    return len(first)


@dataclass(frozen=True)
class Task:
    """A loss over a data set.

    ``loss(model, batch)`` is the mean over the batch's samples; ``batches`` can be gone through again and again (a
    DataLoader, a list), on the model's device; ``size(batch)`` counts samples, so that ragged batches weigh what they
    should; ``wrong(model, batch)`` counts wrong answers, where there are any; ``inputs(batch)`` is what batch-norm's
    statistics are gathered from.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Any], Tensor]
    batches: Iterable[Any]
    size: Callable[[Any], int] = samples
    wrong: Callable[[nn.Module, Any], Tensor] | None = None
    inputs: Callable[[Any], Any] = lambda batch: batch[0] if isinstance(batch, (list, tuple)) else batch

    @torch.no_grad()
    def measure(self) -> tuple[float, float | None]:
        """Mean loss over all samples, in double precision, and the share of wrong answers in percent."""
        loss, wrong, count = 0.0, 0.0, 0
        for batch in self.batches:
            size = self.size(batch)
            loss += self.loss(self.model, batch).double().item() * size
            if self.wrong is not None:
                wrong += float(self.wrong(self.model, batch))
            count += size
        if not count:
            raise ValueError("the task has no batches: give a loader that can be gone through more than once")
        return loss / count, None if self.wrong is None else 100 * wrong / count

    def recompute_batchnorm(self) -> None:
        """Batch-norm's statistics again, of the weights as they are now, over all batches."""
        recompute_bn(self.model, (self.inputs(batch) for batch in self.batches))


@contextmanager
def evaluating(model: nn.Module, mode: str = "eval") -> Iterator[None]:
    """The model in eval mode, and afterwards every module in the mode it was in.

    ``mode="train"`` lets batch-norm, and nothing else, work with the statistics of each batch; the running ones stay.
    """
    check_choice("mode", mode, ("eval", "train"))
    modes = {module: module.training for module in model.modules()}
    dropouts = {module: module.dropout for module in modes if isinstance(module, nn.RNNBase)}
    tracking = {module: module.track_running_stats for module in modes if isinstance(module, _NormBase)}
    model.eval()
    for norm in tracking if mode == "train" else ():
        norm.training, norm.track_running_stats = True, False
    for recurrent in dropouts:  # cuDNN has no backward in eval mode, and without dropout the other is the same
        recurrent.training, recurrent.dropout = True, 0.0
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        for recurrent, dropout in dropouts.items():
            recurrent.dropout = dropout
        for norm, tracked in tracking.items():
            norm.track_running_stats = tracked


@contextmanager
def kept(model: nn.Module) -> Iterator[None]:
    """Whatever happens inside, the model's parameters, buffers and gradients return bit for bit, in their storage."""
    tensors = [*model.parameters(), *model.buffers()]
    values = [tensor.detach().clone() for tensor in tensors]
    gradients = [p.grad for p in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = gradient
