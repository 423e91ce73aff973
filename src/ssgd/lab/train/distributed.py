"""Many processes, one training: what ``torchrun`` starts, and everything that must agree between them."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from ...core.parallel import is_sharded
from ..versions import FSDP2, need
from .recipe import Execution, Recipe

T = TypeVar("T")
Batch = tuple[Tensor, ...]
NEED_REPLICAS = ("mirror", "swa", "ema")
PATIENCE = timedelta(minutes=10)  # with a rank that does not answer
LOST = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Broken pipe")


class RankLost(ConnectionError):
    """Another process of a training was killed, or does not answer."""


@dataclass(frozen=True)
class Ranks:
    """Which of how many processes this is."""

    rank: int = 0
    count: int = 1
    on_this_host: int = 0

    @cached_property
    def first(self) -> bool:
        return self.rank == 0

    @cached_property
    def several(self) -> bool:
        return self.count > 1


@contextmanager
def joined(device: str) -> Iterator[Ranks]:
    """The process group that ``torchrun`` prepared: gloo on the CPU, NCCL on GPUs. Without ``torchrun``: alone."""
    if "RANK" not in os.environ or dist.is_initialized():
        yield _present() if dist.is_initialized() else Ranks()
        return
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    store, rank, count = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    backend = "nccl" if device == "cuda" else "gloo"
    part = fresh_part(store, rank, count)
    dist.init_process_group(backend, store=part, rank=rank, world_size=count, timeout=PATIENCE)
    try:
        yield _present()
        dist.barrier()  # who leaves first would close what others still talk through
    except BaseException as problem:
        if device == "cpu":  # its closed sockets tell the others; NCCL would wait for them, who may wait for us
            dist.destroy_process_group()
        if isinstance(problem, RuntimeError) and any(word in str(problem) for word in LOST):
            raise RankLost(
                "another process of this training ended, or did not answer for"
                f" {PATIENCE.total_seconds() / 60:g} minutes: see what it said; the same torchrun command goes on from"
                " the last checkpoint"
            ) from problem
        raise
    dist.destroy_process_group()


def fresh_part(store: Any, rank: int, count: int) -> Any:
    """Returns a part of torch's ``store`` that no process started earlier has written to, the same on all ranks.

    ``torchrun`` keeps one store over all restarts, and torch would find in it the addresses of processes that are gone
    (pytorch issue 135712). So rank 0 hands a new name to whoever asks, until each rank has said that it got it.
    """
    mine = secrets.token_hex(8)
    if rank:
        store.set(f"asks {rank}", mine)
        name = store.get(f"for {mine}").decode()
        store.set(f"{name} has {rank}", "")
        return dist.PrefixStore(name, store)  # type: ignore[attr-defined]
    missing, end = set(range(1, count)), time.monotonic() + store.timeout.total_seconds()
    while missing:
        if time.monotonic() > end:
            raise TimeoutError(
                f"{len(missing)} of {count} processes did not come: see why, and start all of them again"
            )
        for other in missing:
            if store.check([f"asks {other}"]):  # perhaps one that is gone: the next look finds who took its place
                store.set(f"for {store.get(f'asks {other}').decode()}", mine)
        missing = {other for other in missing if not store.check([f"{mine} has {other}"])}
        time.sleep(0.01)
    return dist.PrefixStore(mine, store)  # type: ignore[attr-defined]


def is_first_process() -> bool:
    """Whether this is the one of ``torchrun``'s processes that says what all of them would."""
    return os.environ.get("RANK", "0") == "0"


def check(recipe: Recipe, execution: Execution, ranks: Ranks) -> None:
    """Refuses what so many processes cannot do, before anything is made."""
    methods = [phase.method for phase in recipe.schedule.phases]
    if ranks.count % 2 and "mirror" in methods:
        raise ValueError(
            f"method=mirror needs an even number of processes, not {ranks.count}: use torchrun --nproc-per-node 2, say"
        )
    if not ranks.several:
        return
    if recipe.devices not in (1, ranks.count):
        raise ValueError(
            f"devices={recipe.devices} takes one process or {recipe.devices}, not {ranks.count}: use torchrun"
            f" --nproc-per-node {recipe.devices}, or none"
        )
    if recipe.parallel == "fsdp":
        need(FSDP2, "parallel=fsdp")
    if recipe.parallel == "fsdp" and (unserved := [name for name in methods if name in NEED_REPLICAS]):
        raise ValueError(f"method={unserved[0]} does not go with sharded weights: use parallel=ddp")
    if recipe.parallel == "fsdp" and recipe.per_rank:
        raise ValueError("per_rank=true does not go with sharded weights, which all ranks share: use parallel=ddp")
    if recipe.batch % ranks.count:
        raise ValueError(
            f"batch={recipe.batch} cannot be divided evenly among {ranks.count} processes: use a multiple of"
            f" {ranks.count}"
        )
    if recipe.sync_batchnorm and execution.kind == "cpu":
        raise ValueError("sync_batchnorm=true needs GPUs: torch has no SyncBatchNorm on the CPU")
    if execution.graph or execution.pair:
        raise ValueError("graph=true and pair=true are for one process: leave them out under torchrun")


def wrap(net: nn.Module, parallel: str, sync_batchnorm: bool, device: torch.device) -> nn.Module:
    """The module to call: gradients averaged over all ranks, batch-norm by device unless asked otherwise."""
    if sync_batchnorm:
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net)  # type: ignore[no-untyped-call]
    if parallel == "ddp":
        return DistributedDataParallel(net, [device.index] if device.type == "cuda" else None)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for unit in _units(net):
        fully_shard(unit, mesh=mesh)
    fully_shard(net, mesh=mesh)
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


def of_each_rank(tensor: Tensor, ranks: Ranks) -> Tensor:
    """A row for each rank, on all of them."""
    rows = [torch.empty_like(tensor) for _ in range(ranks.count)]
    if ranks.several:
        dist.all_gather(rows, tensor)
    else:
        rows[0].copy_(tensor)
    return torch.stack(rows)


def any_rank(yes: bool, ranks: Ranks, device: torch.device | str) -> bool:
    """Whether any rank says yes; all must ask."""
    return bool(total(torch.tensor(float(yes), device=device))) if ranks.several else yes


def by_first(ranks: Ranks, work: Callable[[], T]) -> T:
    """Calls ``work()`` on rank 0 and returns its result on all ranks. Where it fails there, all end."""
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


def in_step(
    batches: Iterator[Batch], spare: Callable[[], object], ranks: Ranks, device: torch.device
) -> Iterator[Batch]:
    """``batches``, and where other ranks have more of them ``spare()``, one pass: shards are gathered by all."""
    for batch in batches:
        any_rank(True, ranks, device)
        yield batch
    while any_rank(False, ranks, device):
        spare()


def whole_state(net: nn.Module, opt: Optimizer) -> dict[str, Any]:
    """Weights and optimizer with their shards put together, for any number of ranks. All must call it.

    Not torch's ``get_state_dict``, which drops what a method adds to ``opt.state_dict()``.
    """
    found: dict[str, Any] = pytree.tree_map(_whole, {"model": dict(net.state_dict()), "optimizer": opt.state_dict()})
    return found


def load_whole_state(net: nn.Module, opt: Optimizer, state: dict[str, Any]) -> None:
    """Each rank takes its shards, where the net has any."""
    net.load_state_dict({name: _laid_out(state["model"][name], like) for name, like in net.state_dict().items()})
    parameters = [p for group in opt.param_groups for p in group["params"]]
    entries = {
        i: pytree.tree_map(lambda value, like=parameters[i]: _laid_out(value, like), entry)
        for i, entry in state["optimizer"]["state"].items()
    }
    opt.load_state_dict({**state["optimizer"], "state": entries})


def _units(net: nn.Module) -> list[nn.Module]:
    """The modules whose weights are gathered at once. The rest stays with the net, which has it all the time:
    vectors, as batch-norm's, which are not worth a message, and weights that stand in several places.
    """
    counts = Counter(p for _, p in net.named_parameters(remove_duplicate=False))
    held = [(block, list(block.parameters())) for block in _blocks(net)]
    return [block for block, ps in held if any(p.dim() > 1 for p in ps) and all(counts[p] == 1 for p in ps)]


def _blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The children, as FSDP needs modules that are called: where one only hands on to its own, those."""
    for child in module.children():
        if type(child).forward in (nn.Sequential.forward, nn.Module.forward):  # a list of modules has nn.Module's
            yield from _blocks(child)
        else:
            yield child


def _whole(value: Any) -> Any:
    return value.full_tensor().cpu() if is_sharded(value) else value


def _laid_out(value: Any, like: Tensor) -> Any:
    """``value`` cut and strided as ``like`` is, if it has its shape."""
    if not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    if is_sharded(like):
        from torch.distributed.tensor import distribute_tensor

        mesh, placements = like.device_mesh, like.placements  # type: ignore[attr-defined]
        return distribute_tensor(value.to(like.device), mesh, placements, src_data_rank=None)
    return torch.empty_like(like, dtype=value.dtype).copy_(value)  # fused optimizers take no mixture of strides


def _present() -> Ranks:
    return Ranks(dist.get_rank(), dist.get_world_size(), int(os.environ.get("LOCAL_RANK", 0)))
