"""Data parallel, sharded and tensor parallel training, as far as noise depends on it."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import torch.distributed as dist
from torch import Tensor, nn

from .checks import FSDP1

if dist.is_available():
    from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Sharding:
    """How a tensor is cut over a device mesh."""

    mesh: Any
    cut: tuple[bool, ...]  # a mesh dimension each: cut (shards differ) or replicated (they must stay alike)
    rows_are_whole: bool  # cut over the tensor's first dimension only

    def sum(self, tensor: Tensor) -> Tensor:
        """``tensor`` added up over all shards, in place."""
        for i, cut in enumerate(self.cut):
            if cut:
                dist.all_reduce(tensor, group=self.mesh.get_group(i))
        return tensor


def is_sharded(parameter: Tensor) -> bool:
    return type(parameter) not in (Tensor, nn.Parameter) and _is(parameter, "torch.distributed.tensor", "DTensor")


def _is(thing: object, module: str, name: str) -> bool:
    """Whether it is of a class that is slow to load: where nobody has loaded it, nothing is."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(thing, kind)


def local(parameter: Tensor) -> Tensor:
    """The part of the tensor that lies here."""
    return parameter._local_tensor if is_sharded(parameter) else parameter  # type: ignore[attr-defined]


def sharding(parameter: Tensor) -> Sharding | None:
    if not is_sharded(parameter):
        return None
    if any(placement.is_partial() for placement in parameter.placements):  # type: ignore[attr-defined]
        raise ValueError("a parameter with a Partial placement cannot be perturbed; redistribute it to Shard first")
    return Sharding(
        parameter.device_mesh,  # type: ignore[attr-defined]
        tuple(not placement.is_replicate() for placement in parameter.placements),  # type: ignore[attr-defined]
        all(placement.is_replicate() or placement.dim == 0 for placement in parameter.placements),  # type: ignore[attr-defined]
    )


def part_here(parameter: Tensor, whole: Tensor) -> Tensor:
    """Return the flat ``whole`` in the parameter's shape, complex numbers as pairs of reals; of a shard, its part."""
    part = whole.view(*parameter.shape, 2) if parameter.is_complex() else whole.view(parameter.shape)
    if not is_sharded(parameter):
        return part
    mesh = parameter.device_mesh  # type: ignore[attr-defined]
    cuts = [(i, placement) for i, placement in enumerate(parameter.placements) if not placement.is_replicate()]  # type: ignore[attr-defined]
    for i, cut in sorted(cuts, key=lambda cut: type(cut[1]).__name__ == "_StridedShard"):  # FSDP2 cuts what TP has cut
        pieces = part.chunk(mesh.size(i), cut.dim)
        here = mesh.get_local_rank(i)
        part = pieces[here] if here < len(pieces) else part.narrow(cut.dim, 0, 0)
    return part.clone()  # or all of it would stay in memory


def unwrap_ddp(model: nn.Module | None) -> DistributedDataParallel | None:
    """The DDP module, also behind torch.compile."""
    model = getattr(model, "_orig_mod", model)
    return model if dist.is_available() and isinstance(model, DistributedDataParallel) else None


def bare(model: nn.Module) -> nn.Module:
    """The user's own module, without DDP and torch.compile around it."""
    ddp = unwrap_ddp(model)
    return getattr(model, "_orig_mod", model) if ddp is None else ddp.module


def no_sync(ddp: DistributedDataParallel) -> AbstractContextManager[None]:
    """Passes whose gradients stay here, for a later pass to reduce."""
    if ddp.static_graph:  # torch then fails, or reduces nothing from the second step on (pytorch issue 143580)
        raise RuntimeError(
            "DistributedDataParallel(static_graph=True) cannot leave a pass unreduced, and a pair of points has one "
            'such pass: build it without static_graph, or use mode="mirror" with one pair'
        )
    return cast(AbstractContextManager[None], ddp.no_sync())


def find_place(
    model: nn.Module | None, parameters: list[Tensor], mirror: bool, per_rank: bool | None
) -> tuple[int, int]:
    """Return the sign that this process takes first and the rank of its noise, or say why it cannot be so."""
    ddp = unwrap_ddp(model)
    sharded = any(map(is_sharded, parameters))
    if mirror and ddp is None and not sharded:
        raise ValueError('mode="mirror" needs the data parallel module: pass model=DistributedDataParallel(...)')
    replica = _replica(ddp, parameters)
    if replica is None and (mirror or per_rank):
        raise ValueError(
            f"{'mode=mirror' if mirror else 'per_rank=True'} is impossible here: all ranks gather the same sharded "
            "weights. Shard over a mesh of (replicas, shards), whose replicas can differ"
        )
    rank, ranks = replica or (0, 1)
    if mirror and ranks % 2:
        raise ValueError(f'mode="mirror" needs an even number of ranks, not {ranks}')
    if per_rank is None:
        per_rank = ddp is not None and not mirror
    return -1 if mirror and rank % 2 else 1, 0 if not per_rank else rank // 2 if mirror else rank


def check_sharded(model: nn.Module | None, parameters: Iterable[Tensor]) -> None:
    """Refuse FSDP1's parameters, by which it is known where the model is not given, and FSDP2's without their model."""
    if any(getattr(p, "_is_flat_param", False) or getattr(p, "_fsdp_flattened", False) for p in parameters):
        raise TypeError(FSDP1)
    if model is None and any(map(is_sharded, parameters)):
        raise ValueError("sharded parameters need the module that was sharded: pass model=..., or call attach(model)")


def _replica(ddp: DistributedDataParallel | None, parameters: list[Tensor]) -> tuple[int, int] | None:
    """(index, count): the rank under DDP, the place along the replicated mesh dimension under HSDP.

    None where all processes hold parts of one replica, and so cannot have noise of their own.
    """
    sharded = [cut for cut in map(sharding, parameters) if cut is not None]
    if sharded:
        first = sharded[0]
        if first.cut != (False, True) or any(cut != first for cut in sharded):
            return None
        return first.mesh.get_local_rank(0), first.mesh.size(0)
    if ddp is not None:
        return dist.get_rank(ddp.process_group), dist.get_world_size(ddp.process_group)
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def agree(number: int, ddp: DistributedDataParallel | None, parameters: list[Tensor]) -> int:
    """The first rank's number, on every rank that shares the model."""
    box = [number]
    meshes = dict.fromkeys(cut.mesh for cut in map(sharding, parameters) if cut is not None)
    groups = [mesh.get_group(i) for mesh in meshes for i in range(mesh.ndim)]
    for group in groups if ddp is None else [ddp.process_group]:
        dist.broadcast_object_list(box, group=group, group_src=0)
    return box[0]


def sharded_modules(model: nn.Module | None) -> list[Any]:
    """Return the modules that FSDP2 gathers weights for."""
    modules = [] if model is None else model.modules()
    return [module for module in modules if _is(module, "torch.distributed.fsdp", "FSDPModule")]


def reshard(modules: list[Any]) -> None:
    """Free gathered weights, so that the next forward gathers what lies in the shards now."""
    for module in modules:
        if _is_gathering(module):
            module.unshard()  # to its end: what is on its way would hide the change too
        module.reshard()


def _is_gathering(module: Any) -> bool:
    """Whether unshard(async_op=True) has begun what the next forward would wait for."""
    state = module._get_fsdp_state()
    groups = [*getattr(state, "_fsdp_param_groups", ()), getattr(state, "_fsdp_param_group", None)]
    return any(getattr(group, "_all_gather_result", None) is not None for group in groups)


def reduce_gradients(modules: list[Any]) -> None:
    """Have every backward() leave its gradient in ``p.grad``, also where FSDP2 was told to hold it back.

    Gradients held back to accumulate are out of reach for the mean over points.
    """
    for module in modules:
        module.set_requires_gradient_sync(True, recurse=False)
