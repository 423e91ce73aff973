"""What the analysis looks at: a model, a loss and data, of this library or the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves

from ..core import stale
from ..core.batchnorm import recompute_bn, tracking_layers
from ..core.checks import check_choice
from ..core.random_state import Snapshot, put_back, snapshot
from .gathering import NO_BATCHES, gather
from .precision import widest


def samples(batch: Any) -> int:
    """How many samples a batch holds: the length of its first tensor that has one."""
    for leaf in _leaves(batch):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return len(leaf)
    raise ValueError("no tensor of the batch says how many samples it holds: give Task(size=...), which counts them")


def _leaves(batch: Any) -> Iterator[Any]:
    """All that a batch holds, also in mappings that pytree takes for leaves, such as Hugging Face's BatchEncoding."""
    for leaf in tree_leaves(batch):
        yield from _leaves(dict(leaf)) if isinstance(leaf, Mapping) else (leaf,)


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
        wrong: Tensor | None
        if self.loss_and_wrong is not None:
            loss, wrong = self.loss_and_wrong(model, batch)
        else:
            loss, wrong = self.loss(model, batch), None if self.wrong is None else self.wrong(model, batch)
        check_loss(loss)
        wrong = torch.zeros_like(loss) if wrong is None else torch.as_tensor(wrong)
        wide = widest(loss.device)
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
            raise ValueError(NO_BATCHES)
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


def check_task(task: object) -> None:
    if not isinstance(task, Task):
        raise TypeError(f"this needs a Task, such as Task(model, loss, batches), not a {type(task).__name__}")


def check_loss(loss: object) -> None:
    if not isinstance(loss, Tensor) or loss.dim():
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise ValueError(f"the loss must be a single number, a tensor with the mean over the samples, not {found}")


def gradients(loss: Tensor, weights: Sequence[Tensor], create_graph: bool = False) -> list[Tensor]:
    """Of a batch's loss by the weights; zeros for those that it does not depend on, unless these are all."""
    check_loss(loss)
    found: Sequence[Tensor | None] = ()
    if loss.requires_grad:
        found = torch.autograd.grad(loss, weights, create_graph=create_graph, allow_unused=True)
    if all(gradient is None for gradient in found):
        raise ValueError(
            "no gradient reaches the weights: the loss must depend on those of the model that it is given, without "
            "detach() or no_grad(), and checkpoint() needs use_reentrant=False"
        )
    return [torch.zeros_like(w) if g is None else g for g, w in zip(found, weights, strict=True)]


@contextmanager
def replayed(task: Task) -> Iterator[Task]:
    """The task with the same random numbers in each pass over its batches; afterwards the streams are as they were."""
    check_task(task)
    stream = snapshot({p.device for p in task.model.parameters()})
    try:
        yield replace(task, batches=_Replayed(task.batches, stream))
    finally:
        put_back(stream)


@dataclass(frozen=True)
class _Replayed:
    batches: Iterable[Any]
    stream: Snapshot

    def __iter__(self) -> Iterator[Any]:
        put_back(self.stream)
        return iter(self.batches)


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
        stale.forget()
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = gradient
