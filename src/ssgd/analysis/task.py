"""What the analysis looks at: a model, a loss and data, of this library or the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from ..core.batchnorm import recompute_bn, tracking_layers
from ..core.checks import check_choice
from .gathering import gather


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
    should; ``wrong(model, batch)`` counts wrong answers, where there are any. ``loss_and_wrong(model, batch)``, where
    given, is both from one forward pass. Batch-norm's statistics are gathered from the ``inputs(batch)`` of
    ``batches``, or of ``as_trained``: images that the training has moved and cropped have statistics of their own.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Any], Tensor]
    batches: Iterable[Any]
    size: Callable[[Any], int] = samples
    wrong: Callable[[nn.Module, Any], Tensor] | None = None
    inputs: Callable[[Any], Any] = lambda batch: batch[0] if isinstance(batch, (list, tuple)) else batch
    loss_and_wrong: Callable[[nn.Module, Any], tuple[Tensor, Tensor]] | None = None
    as_trained: Iterable[Any] | None = None

    @property
    def counts_errors(self) -> bool:
        return self.wrong is not None or self.loss_and_wrong is not None

    def measure(self, sums: Callable[[Any], Tensor] | None = None) -> tuple[float, float | None]:
        """Mean loss over all samples, in double precision, and the share of wrong answers in percent.

        ``sums(batch)`` is that of the model, where it is to be computed in another way.
        """
        return self.means(*self.total(sums or (lambda batch: self.sums(self.model, batch))))

    def sums(self, model: nn.Module, batch: Any) -> Tensor:
        """Loss, and wrong answers, summed over a batch's samples: two numbers that stay on the device."""
        if self.loss_and_wrong is not None:
            loss, wrong = self.loss_and_wrong(model, batch)
        else:
            loss = self.loss(model, batch)
            wrong = torch.zeros_like(loss) if self.wrong is None else torch.as_tensor(self.wrong(model, batch))
        wide = torch.float32 if loss.device.type == "mps" else torch.float64
        return torch.stack([loss.to(wide) * self.size(batch), wrong.to(loss.device, wide)])

    @torch.no_grad()
    def total(self, sums: Callable[[Any], Tensor]) -> tuple[Any, int]:
        """``sums(batch)``, of one model or of several, added up over all batches, and the number of samples."""
        total, count = None, 0
        for batch in self.batches:
            found = sums(batch)
            total = found.clone() if total is None else total.add_(found)
            count += self.size(batch)
        if total is None or not count:
            raise ValueError("the task has no batches: give a loader that can be gone through more than once")
        return total.tolist(), count

    def means(self, sums: tuple[float, float], count: int) -> tuple[float, float | None]:
        """Of a model's sums and the number of samples, what ``measure()`` gives."""
        loss, wrong = sums
        return loss / count, 100 * wrong / count if self.counts_errors else None

    def recompute_batchnorm(self, forward: Callable[[Any], Any] | None = None) -> None:
        """Batch-norm's statistics again, of the weights as they are now: the mean of those of all batches.

        ``forward(inputs)`` is the model, where it is to be called in another way.
        """
        bare = getattr(self.model, "_orig_mod", self.model)
        bare = getattr(bare, "module", bare) if isinstance(bare, nn.parallel.DistributedDataParallel) else bare
        layers = tracking_layers(bare)
        moved = [t for layer in layers for t in (layer.running_mean, layer.running_var) if t is not None]
        if layers and not gather(bare, self.inputs_for_batchnorm(), forward or bare, moved):
            recompute_bn(bare, self.inputs_for_batchnorm())

    def inputs_for_batchnorm(self) -> Iterator[Any]:
        """What the statistics are gathered from."""
        return map(self.inputs, self.batches if self.as_trained is None else self.as_trained)


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
