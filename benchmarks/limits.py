"""What a training step must move and compute at the least, where each layer is a kernel of its own."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

ACTIVATION = 2  # bytes: bf16
WEIGHT = 4
PASSES_OVER_WEIGHTS = 8  # forward, both gradients, and the update: w, g and momentum read, w and momentum written


class Limit(NamedTuple):
    """Of a step of plain SGD."""

    bytes: float
    operations: float


def limit(net: nn.Module, batch: int) -> Limit:
    """Counted over a forward pass on the CPU, with one image.

    A convolution reads its input and writes its output; its gradients read the output's gradient twice, the input
    once, and write the input's gradient. Batch-norm reads once for the statistics, once to apply them, and writes;
    its gradient reads both tensors twice and writes. What follows (ReLU, the sum) is counted as part of it.
    """
    moved = computed = 0.0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], out: Tensor) -> None:
        nonlocal moved, computed
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            first = not inputs[0].requires_grad
            moved += (3 * out.numel() + (2 if first else 3) * inputs[0].numel()) * ACTIVATION
            per_output = module.weight.numel() / module.weight.shape[0]
            computed += 2 * (2 if first else 3) * out.numel() * per_output
        elif isinstance(module, nn.BatchNorm2d):
            moved += 8 * out.numel() * ACTIVATION

    handles = [module.register_forward_hook(count) for module in net.modules()]
    net(torch.zeros(1, 3, 32, 32))
    for handle in handles:
        handle.remove()
    weights = sum(p.numel() for p in net.parameters()) * WEIGHT * PASSES_OVER_WEIGHTS
    return Limit(moved * batch + weights, computed * batch)


def copy_rate(device: torch.device) -> float:
    """Bytes read and written a second by a large copy."""
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() / seconds(lambda: target.copy_(source))


def product_rate(device: torch.device) -> float:
    """Operations a second of a large matrix product in bf16."""
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    return 2 * 8192**3 / seconds(lambda: a @ a)


def seconds(work: Callable[[], object]) -> float:
    found = []
    for _ in range(13):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / 1000)
    return statistics.median(found[3:])
