"""Many processes, one training: what ``torchrun`` starts, and everything that must agree between them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is."""

    rank: int = 0
    count: int = 1
    on_this_host: int = 0

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def several(self) -> bool:
        return self.count > 1


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """The process group that ``torchrun`` prepared: gloo on the CPU, NCCL on GPUs. Without ``torchrun``: alone."""
    if "RANK" not in os.environ or dist.is_initialized():
        yield _present() if dist.is_initialized() else Ranks()
        return
    local = int(os.environ.get("LOCAL_RANK", 0))
    if device == "cuda":
        torch.cuda.set_device(local)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield _present()
    finally:
        dist.destroy_process_group()


def wrap(net: nn.Module, parallel: str, sync_batchnorm: bool, device: torch.device) -> nn.Module:
    """The module to call: gradients averaged over all ranks, batch-norm by device unless asked otherwise."""
    if sync_batchnorm:
        if device.type == "cpu":
            raise ValueError("sync_batchnorm=true needs GPUs: torch has no SyncBatchNorm on the CPU")
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net)  # type: ignore[no-untyped-call]
    if parallel == "ddp":
        return DistributedDataParallel(net, [device.index] if device.type == "cuda" else None)
    from torch.distributed.fsdp import fully_shard

    for child in net.children():
        if any(True for _ in child.parameters()):
            fully_shard(child)
    fully_shard(net)
    return net


@torch.no_grad()
def same_buffers(net: nn.Module) -> None:
    """Rank 0's running statistics for everyone: each rank gathered its own."""
    for buffer in net.buffers():
        dist.broadcast(buffer, 0)


def total(sums: Tensor) -> Tensor:
    """The sum over ranks, on all of them."""
    sums = sums.clone()
    dist.all_reduce(sums)
    return sums


def by_first(ranks: Ranks, work: Callable[[], T]) -> T:
    """What ``work()`` gives on rank 0, for all ranks. Where it fails there, all end."""
    if not ranks.several:
        return work()
    held: list[Any] = [None, True]
    try:
        if ranks.first:
            held = [work(), False]
    finally:
        dist.broadcast_object_list(held, 0)
    if held[1]:
        raise SystemExit(1)  # rank 0 says why
    return held[0]  # type: ignore[no-any-return]


def whole_state(net: nn.Module, opt: Optimizer, sharded: bool) -> dict[str, Any]:
    """Weights and optimizer, gathered from all shards; independent of how many ranks there are."""
    if not sharded:
        return {"model": net.state_dict(), "optimizer": opt.state_dict()}
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict

    model, optimizer = get_state_dict(net, opt, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    return {"model": model, "optimizer": optimizer}


def load_whole_state(net: nn.Module, opt: Optimizer, state: dict[str, Any], sharded: bool) -> None:
    if not sharded:
        net.load_state_dict(state["model"])
        opt.load_state_dict(state["optimizer"])
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_state_dict

    set_state_dict(
        net,
        opt,
        model_state_dict=state["model"],
        optim_state_dict=state["optimizer"],
        options=StateDictOptions(full_state_dict=True),
    )


def _present() -> Ranks:
    return Ranks(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", 0)))
