"""S-SGD in a loop that Hugging Face's Accelerate drives."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..core.point_optimizer import PointOptimizer

try:
    from accelerate import Accelerator, DistributedType
    from accelerate.optimizer import AcceleratedOptimizer
except ImportError as error:
    raise ImportError("ssgd.integrations.accelerate needs accelerate: pip install 'ssgd[accelerate]'") from error


def prepare(accelerator: Accelerator, *objects: Any) -> Any:
    """``accelerator.prepare(*objects)``, after which an SSGD among them knows the module that Accelerate has made.

    The optimizer that comes back is Accelerate's, with ``points()`` and ``split()`` besides. ::

        model, opt, loader = prepare(accelerator, model, SSGD(base, noise=0.29), loader)
    """
    refuse(accelerator)
    prepared = accelerator.prepare(*objects)
    together = (prepared,) if len(objects) == 1 else prepared
    for optimizer in together:
        inner = unwrapped(optimizer)
        if isinstance(inner, PointOptimizer):
            for model in (each for each in together if isinstance(each, nn.Module) and _trained(each, inner)):
                inner.attach(model)
            optimizer.points, optimizer.split = inner.points, inner.split
    return prepared


def unwrapped(optimizer: Any) -> Any:
    """Return the optimizer that Accelerate has wrapped, or the object itself."""
    return optimizer.optimizer if isinstance(optimizer, AcceleratedOptimizer) else optimizer


def refuse(accelerator: Accelerator) -> None:
    """Say why noise cannot reach the weights, where it cannot."""
    kind = accelerator.distributed_type
    if kind == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise ValueError(
            "FSDP1 keeps the weights flat, and layers cannot be told apart: use FSDP2, with "
            "FullyShardedDataParallelPlugin(fsdp_version=2) or fsdp_version: 2 in the configuration"
        )
    if kind in (DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM):
        raise ValueError(f"{kind.value} steps on weights of its own, which S-SGD cannot move: use DDP or FSDP2")


def _trained(model: nn.Module, optimizer: Optimizer) -> bool:
    """Whether the optimizer updates this module."""
    known = {id(p) for p in model.parameters()}
    return any(id(p) in known for group in optimizer.param_groups for p in group["params"])
