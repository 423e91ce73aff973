"""A task: a model, a loss and data, of this library or the user's own; and the ways to run it and leave no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.utils._pytree import tree_leaves

from ..core.batchnorm import recompute_bn, tracking_layers
from ..core.checks import check_choice
from ..core.moving import as_real, drop_stale_copies
from ..core.parallel import bare
from ..core.random_state import Snapshot, put_back, snapshot
from .acceleration import full_precision, widest

PRECISIONS = ("fp32", "tf32", "bf16")
NO_BATCHES = "the task has no batches: give a loader that can be gone through more than once"


def samples(batch: Any) -> int:
    """Returns the number of samples in a batch: the length of its first tensor that has one."""
    for leaf in _leaves(batch):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return len(leaf)
    raise ValueError("no tensor of the batch says how many samples it holds: give Task(size=...), which counts them")


def _leaves(batch: Any) -> Iterator[Any]:
    """Yields a batch's entries, also of mappings that pytree takes for leaves, such as transformers' BatchEncoding."""
    for leaf in tree_leaves(batch):
        yield from _leaves(dict(leaf)) if isinstance(leaf, Mapping) else (leaf,)


class Again(Iterable[Any]):
    """Batches that a function makes anew each time they are gone through."""

    def __init__(self, batches: Callable[[], Iterable[Any]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches())


@dataclass(frozen=True)
class Task:
    """A loss of a model over a data set.

    Args:
        loss: ``loss(model, batch)`` returns the mean over the batch's samples.
        batches: can be gone through again and again (a DataLoader, a list), and lie on the model's device.
        size: ``size(batch)`` counts samples, so that ragged batches weigh what they should.
        wrong: ``wrong(model, batch)`` counts wrong answers, where there are any.
        inputs: ``inputs(batch)`` is what the model is called with, to gather batch-norm's statistics.
        loss_and_wrong: ``loss_and_wrong(model, batch)`` returns both from one forward pass, which is faster.
        as_trained: the batches to gather batch-norm's statistics from, by default ``batches``. Images that the training
            has moved and cropped have other statistics than whole ones.
        logits: ``logits(model, batch)`` returns class scores, a row each, and the labels, to tell calibration.
        answers: ``answers(batch)`` counts the answers that ``wrong`` is counted among, such as words of an utterance;
            by default ``size``.
    """

    model: nn.Module
    loss: Callable[[nn.Module, Any], Tensor]
    batches: Iterable[Any]
    size: Callable[[Any], int] = samples
    wrong: Callable[[nn.Module, Any], Tensor] | None = None
    inputs: Callable[[Any], Any] = lambda batch: batch[0] if isinstance(batch, (list, tuple)) else batch
    loss_and_wrong: Callable[[nn.Module, Any], tuple[Tensor, Tensor]] | None = None
    as_trained: Iterable[Any] | None = None
    logits: Callable[[nn.Module, Any], tuple[Tensor, Tensor]] | None = None
    answers: Callable[[Any], int] | None = None

    @property
    def counts_errors(self) -> bool:
        return self.wrong is not None or self.loss_and_wrong is not None

    def measure(self, sums: Callable[[Any], Tensor] | None = None) -> tuple[float, float | None]:
        """Returns the mean loss over all samples, in double precision, and the share of wrong answers in percent.

        ``sums(batch)`` replaces ``self.sums(self.model, batch)``, such as by a captured function.
        """
        (loss, wrong, answers), count = self.total(sums or (lambda batch: self.sums(self.model, batch)))
        return loss / count, 100 * wrong / answers if self.counts_errors else None

    def sums(self, model: nn.Module, batch: Any) -> Tensor:
        """Returns sums over a batch, on its device: the loss of all samples, the wrong answers, the answers."""
        wrong: Tensor | None
        if self.loss_and_wrong is not None:
            loss, wrong = self.loss_and_wrong(model, batch)
        else:
            loss, wrong = self.loss(model, batch), None if self.wrong is None else self.wrong(model, batch)
        check_loss(loss)
        wrong = torch.zeros_like(loss) if wrong is None else torch.as_tensor(wrong)
        wide = widest(loss.device)
        loss, wrong = loss.to(wide) * self.size(batch), wrong.to(loss.device, wide)
        return torch.stack([loss, wrong, torch.full_like(loss, (self.answers or self.size)(batch))])

    @torch.no_grad()
    def total(self, sums: Callable[[Any], Tensor]) -> tuple[Any, int]:
        """Returns the sum of ``sums(batch)`` over all batches, and the number of samples."""
        total, count = None, 0
        for batch in self.batches:
            found = sums(batch)
            total = found.clone() if total is None else total.add_(found)
            count += self.size(batch)
        if total is None or not count:
            raise ValueError(NO_BATCHES)
        return total.tolist(), count

    def recompute_batchnorm(self, forward: Callable[[Any], Any] | None = None) -> None:
        """Gathers batch-norm's statistics of the weights as they are now: the mean of those of all batches.

        ``forward(inputs)`` replaces the model, such as by a captured function.
        """
        model = bare(self.model)
        if tracking_layers(model) and not gather(model, self.inputs_for_batchnorm(), forward or model):
            recompute_bn(model, self.inputs_for_batchnorm())

    def replaying(self, stream: Snapshot) -> Task:
        """Returns the task with the random streams at ``stream`` before each pass over its batches."""

        def again(batches: Iterable[Any]) -> Iterable[Any]:
            put_back(stream)
            return batches

        found = replace(self, batches=Again(partial(again, self.batches)))
        return found if self.as_trained is None else replace(found, as_trained=Again(partial(again, self.as_trained)))

    def inputs_for_batchnorm(self) -> Iterator[Any]:
        """Yields the inputs that the statistics are gathered from."""
        return map(self.inputs, self.batches if self.as_trained is None else self.as_trained)


@torch.no_grad()
def gather(model: nn.Module, inputs: Iterable[Any], forward: Callable[[Any], object]) -> bool:
    """Sets batch-norm's statistics to the mean of those that ``forward(inputs)`` leaves, as torch's ``update_bn``.

    The device is not waited for until the end. Returns False where a layer runs more than once in a pass: of its
    statistics only the last would count.
    """
    layers, modes = tracking_layers(model), {module: module.training for module in model.modules()}
    statistics = [t for layer in layers for t in (layer.running_mean, layer.running_var) if t is not None]
    momenta = [layer.momentum for layer in layers]
    counters = [layer.num_batches_tracked for layer in layers if layer.num_batches_tracked is not None]
    device = statistics[0].device
    seen, total = 0, torch.zeros(sum(t.numel() for t in statistics), dtype=widest(device), device=device)
    try:
        model.train()
        for layer in layers:
            layer.momentum = 1.0  # a batch leaves its own statistics; update_bn's mean asks the device for a count
        torch._foreach_zero_(counters)
        for given in inputs:
            torch._foreach_zero_(statistics)  # 0 · inf of the batch before would be nan
            forward(given[0] if isinstance(given, (list, tuple)) else given)
            total += torch.cat([t.reshape(-1) for t in statistics])
            seen += 1
    finally:
        for module, training in modes.items():
            module.training = training
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
    if not seen:
        raise ValueError(NO_BATCHES)
    means = torch.split(total / seen, [t.numel() for t in statistics])
    torch._foreach_copy_(statistics, [mean.view_as(t) for mean, t in zip(means, statistics, strict=True)])
    return torch.stack(counters).eq(seen).all().item() is True


def check_task(task: object) -> None:
    if not isinstance(task, Task):
        raise TypeError(f"this needs a Task, such as Task(model, loss, batches), not a {type(task).__name__}")


def check_loss(loss: object) -> None:
    if not isinstance(loss, Tensor) or loss.dim():
        found = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
        raise ValueError(f"the loss must be a single number, a tensor with the mean over the samples, not {found}")


def gradients(loss: Tensor, weights: Sequence[Tensor], create_graph: bool = False) -> list[Tensor]:
    """Returns the loss's gradients by the weights; zeros for those it does not depend on, unless these are all."""
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


class WeightVector:
    """Some weights of a model as one vector, on the device of the first; complex ones are pairs of real numbers."""

    def __init__(self, weights: Iterable[Tensor], dtype: torch.dtype) -> None:
        self.tensors = [as_real(p.detach()) for p in weights]
        self.sizes = [t.numel() for t in self.tensors]
        self.dtype, self.device = dtype, self.tensors[0].device

    def now(self) -> Tensor:
        """Returns a copy of the weights as they are."""
        return self.flat(self.tensors)

    @torch.no_grad()
    def load(self, vector: Tensor) -> None:
        """Sets the weights, in their storage."""
        torch._foreach_copy_(self.tensors, self.cut(vector))
        drop_stale_copies()

    def flat(self, tensors: Iterable[Tensor]) -> Tensor:
        """Returns tensors that are shaped like the weights as one vector."""
        return torch.cat([t.detach().to(self.device, self.dtype).reshape(-1) for t in tensors])

    def cut(self, vector: Tensor) -> list[Tensor]:
        """Returns the parts of a vector in the weights' shapes."""
        return [part.view(t.shape) for part, t in zip(torch.split(vector, self.sizes), self.tensors, strict=True)]


@contextmanager
def replayed(task: Task, mode: str = "eval") -> Iterator[Task]:
    """Yields the task over an unmoved model (see there), with the same random numbers in each pass over its batches."""
    check_task(task)
    with unmoved(task.model, mode) as stream:
        yield task.replaying(stream)


@contextmanager
def unmoved(
    model: nn.Module, mode: str = "eval", precision: str = "fp32", stream: Snapshot | None = None
) -> Iterator[Snapshot]:
    """Lets the model be moved and run in a mode of ``evaluating()``; it and the random streams come back as they were.

    ``precision`` is ``"fp32"`` without TF32, whatever torch's settings are; ``"tf32"``; or ``"bf16"``, by autocast.
    Yields the state of the streams at the beginning, which is ``stream``, or what they are at.
    """
    devices = {p.device for p in model.parameters()}
    before = snapshot(devices)
    stream = before if stream is None else stream
    try:
        put_back(stream)
        with kept(model), evaluating(model, mode), full_precision(tf32=precision != "fp32"), ExitStack() as casts:
            for kind in {device.type for device in devices} if precision == "bf16" else ():
                casts.enter_context(torch.autocast(kind, torch.bfloat16, cache_enabled=False))  # the weights move
            yield stream
    finally:
        put_back(before)


def seeded(model: nn.Module, seed: int = 0) -> Snapshot:
    """Returns the state of the random streams after ``torch.manual_seed(seed)``; they stay as they are."""
    devices = {p.device for p in model.parameters()}
    before = snapshot(devices)
    torch.manual_seed(seed)
    found = snapshot(devices)
    put_back(before)
    return found


@contextmanager
def evaluating(model: nn.Module, mode: str = "eval") -> Iterator[None]:
    """Puts the model in eval mode, and afterwards every module back in the mode it was in.

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
    """Restores the model's parameters, buffers and gradients bit for bit, in their storage, whatever happens inside."""
    tensors = [*model.parameters(), *model.buffers()]
    values = [tensor.detach().clone() for tensor in tensors]
    gradients = [p.grad for p in model.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        drop_stale_copies()
        for p, gradient in zip(model.parameters(), gradients, strict=True):
            p.grad = gradient
