"""Batch-norm's statistics of the weights as they are, without a word from the device in between."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..core.batchnorm import tracking_layers
from .precision import widest

NO_BATCHES = "the task has no batches: give a loader that can be gone through more than once"


@torch.no_grad()
def gather(model: nn.Module, inputs: Iterable[Any], forward: Callable[[Any], object], statistics: list[Tensor]) -> bool:
    """``statistics``, which ``forward(inputs)`` moves, become their mean over all inputs, as by torch's ``update_bn``.

    False where a layer runs more than once in a pass: of these only the last would count.
    """
    layers, modes = tracking_layers(model), {module: module.training for module in model.modules()}
    momenta = [layer.momentum for layer in layers]
    counters = [layer.num_batches_tracked for layer in layers if layer.num_batches_tracked is not None]
    device = statistics[0].device
    seen, total = 0, torch.zeros(sum(t.numel() for t in statistics), dtype=widest(device), device=device)
    try:
        model.train()
        for layer in layers:
            layer.momentum = 1.0  # what a batch leaves is its own; update_bn's asks the device for a count each time
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
