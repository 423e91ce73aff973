"""Data parallel training on a GPU against the same training on the CPU, and gradients in memory that a graph owns.

Without pytest: PYTHONPATH=src python tests/test_cuda_ranks.py
"""

from __future__ import annotations

import sys
import tempfile
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from ssgd import SSGD, Unserved

try:
    import pytest

    pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    of_ways = pytest.mark.parametrize("way", ["points", "split", "closure"])
except ImportError:  # then the last lines run the tests

    def of_ways(test: Callable[..., None]) -> Callable[..., None]:
        def every_way() -> None:
            for way in ("points", "split", "closure"):
                test(way)

        return every_way


STEPS = 4
BATCH = 16


# --- several processes ----------------------------------------------------------------------------------------------


@of_ways
def test_ddp_with_nccl_and_one_rank_is_the_cpu(way: str) -> None:
    close(after_ranks(1, "nccl", "cuda", way), after_ranks(1, "gloo", "cpu", way))


@of_ways
def test_ddp_with_two_gloo_ranks_on_one_gpu_is_the_cpu(way: str) -> None:
    close(after_ranks(2, "gloo", "cuda", way), after_ranks(2, "gloo", "cpu", way))


@of_ways
def test_fsdp2_with_nccl_and_one_rank_is_the_cpu(way: str) -> None:
    close(after_ranks(1, "nccl", "cuda", way, kind="fsdp"), after_ranks(1, "gloo", "cpu", way, kind="fsdp"))


def test_sync_batchnorm_on_a_gpu_is_batchnorm_over_the_whole_batch_on_the_cpu() -> None:
    synchronised = after_ranks(1, "nccl", "cuda", "points", kind="sync_batchnorm")
    close(synchronised, after_ranks(1, "gloo", "cpu", "points", kind="batchnorm"))


def test_a_grad_scaler_with_fp16_under_ddp_is_near_the_cpu_and_skips_an_overflow() -> None:
    scaled = after_ranks(1, "nccl", "cuda", "points", kind="fp16")
    close(scaled, after_ranks(1, "gloo", "cpu", "points"), tolerance=2e-2)


def after_ranks(ranks: int, backend: str, device: str, way: str, kind: str = "plain") -> list[Tensor]:
    """The first rank's weights after some steps by ``ranks`` processes, each with its part of the batch."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(partial(one_rank, ranks, backend, device, way, kind, folder), nprocs=ranks)  # type: ignore[no-untyped-call]
        found: list[Tensor] = torch.load(Path(folder) / "weights.pt", weights_only=True)
        return found


def one_rank(ranks: int, backend: str, device: str, way: str, kind: str, folder: str, rank: int) -> None:
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    dist.init_process_group(backend, init_method=f"file://{folder}/meet", rank=rank, world_size=ranks)
    try:
        weights = train(ranks, rank, torch.device(device), way, kind)
        if rank == 0:
            torch.save(weights, Path(folder) / "weights.pt")
        dist.barrier()
    finally:
        dist.destroy_process_group()


def train(ranks: int, rank: int, device: torch.device, way: str, kind: str) -> list[Tensor]:
    net = small_net(batchnorm="batchnorm" in kind).to(device)
    if kind == "sync_batchnorm":
        net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
    model = sharded(net, device, ranks) if kind == "fsdp" else DistributedDataParallel(net)
    base = SGD(model.parameters(), lr=0.1, momentum=0.9)
    opt = SSGD(base, 0.2, model=model, seed=3, distribution=alike_on_every_device)
    scaler = torch.amp.GradScaler(device.type, enabled=kind == "fp16", init_scale=2.0**14)
    for step in range(STEPS):
        x, y = (part.to(device) for part in batch_of(rank, ranks, step))
        if kind == "fp16" and step == 1:  # an overflow, whose step the scaler skips
            before = whole(model)
            passes(opt, way, model, x * 1e6, y, scaler, "cuda")
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
            assert all(map(torch.equal, before, whole(model))), "a step with gradients that overflow was not skipped"
        passes(opt, way, model, x, y, scaler, "cuda" if kind == "fp16" else None)
        if way != "closure":
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
    return whole(model)


def passes(
    opt: SSGD, way: str, model: nn.Module, x: Tensor, y: Tensor, scaler: torch.amp.GradScaler, autocast: str | None
) -> None:
    """Forward and backward over one batch; by a closure the step too."""

    def backward(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast(autocast or x.device.type, torch.float16, enabled=autocast is not None):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return loss

    def closure() -> Tensor:
        opt.zero_grad()
        return backward(x, y)

    if way == "closure":
        opt.step(closure)
    elif way == "one_pass":
        with opt.one_pass():
            backward(x, y)
    elif way == "split":
        for point, half in opt.split(x, y):
            with point:
                backward(*half)
    else:
        for point in opt.points():
            with point:
                backward(x, y)


def sharded(net: nn.Module, device: torch.device, ranks: int) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh(device.type, (ranks,))
    for layer in net:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return fully_shard(net, mesh=mesh)


def whole(model: nn.Module) -> list[Tensor]:
    """The weights as whole tensors on the CPU."""
    tensors = [p.detach() for p in model.parameters()]
    return [(t.full_tensor() if hasattr(t, "full_tensor") else t).float().cpu().clone() for t in tensors]


# --- gradients in memory that a graph owns --------------------------------------------------------------------------


@of_ways
def test_reduce_overhead_is_the_eager_step(way: str) -> None:
    graphed_is_eager(way, lambda net, _: torch.compile(net, mode="reduce-overhead"))


def test_reduce_overhead_of_one_pass_is_the_eager_step() -> None:
    graphed_is_eager("one_pass", lambda net, _: torch.compile(net, mode="reduce-overhead"))


def test_graphed_callables_are_refused_in_one_pass() -> None:
    """They pass the weights' values to the graph, which no layer sees."""
    try:
        graphed_is_eager("one_pass", lambda net, x: torch.cuda.make_graphed_callables(net, (x,)))
    except Unserved as problem:
        assert "make_graphed_callables" in str(problem)
    else:
        raise AssertionError("not refused")


@of_ways
def test_max_autotune_is_the_eager_step(way: str) -> None:
    graphed_is_eager(way, lambda net, _: torch.compile(net, mode="max-autotune"))


@of_ways
def test_graphed_callables_are_the_eager_step(way: str) -> None:
    graphed_is_eager(way, lambda net, x: torch.cuda.make_graphed_callables(net, (x,)))


def graphed_is_eager(way: str, graphed: Callable[[nn.Module, Tensor], Any]) -> None:
    """The graph returns a gradient in the same memory at every backward: the first point's must outlive the second."""
    torch.backends.cuda.matmul.allow_tf32 = False
    found = []
    for make in (lambda net, _: net, graphed):
        net = small_net().cuda()
        x, y = (part.cuda() for part in batch_of(0, 1, 0))
        shown = x[: BATCH // 2] if way == "split" else x
        model = make(net, shown.clone())
        named = {"model": model} if way == "one_pass" else {}
        opt = SSGD(SGD(net.parameters(), lr=0.1, momentum=0.9), 0.2, seed=3, **named)
        off = torch.amp.GradScaler("cuda", enabled=False)
        for step in range(STEPS):
            x, y = (part.cuda() for part in batch_of(0, 1, step))
            passes(opt, way, model, x, y, off, None)
            if way != "closure":
                opt.step()
                opt.zero_grad()
        found.append(whole(net))
    close(*found)


# --- what they share ------------------------------------------------------------------------------------------------


def small_net(batchnorm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    norm = [nn.BatchNorm1d(32)] if batchnorm else []
    return nn.Sequential(nn.Linear(20, 32), *norm, nn.Tanh(), nn.Linear(32, 16), nn.Tanh(), nn.Linear(16, 4))


def batch_of(rank: int, ranks: int, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(BATCH, 20, generator=generator), torch.randint(4, (BATCH,), generator=generator)
    return x[rank::ranks], y[rank::ranks]


def alike_on_every_device(z: Tensor, generator: torch.Generator) -> None:
    """Normal noise whose numbers are the CPU's wherever the weights are."""
    own = torch.Generator().manual_seed(generator.initial_seed() % 2**63)
    z.copy_(torch.randn(z.shape, generator=own))


def close(found: list[Tensor], expected: list[Tensor], tolerance: float = 1e-4) -> None:
    assert len(found) == len(expected)
    start = [p.detach() for p in small_net(batchnorm=len(found) > 6).parameters()]
    for one, other, before in zip(found, expected, start, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        assert not torch.equal(one, before), "nothing was trained"


if __name__ == "__main__":
    tests = [(name, test) for name, test in list(globals().items()) if name.startswith("test_")]
    failed = 0
    for name, test in tests:
        try:
            test()
            print(f"passed {name}", flush=True)
        except Exception:
            failed += 1
            print(f"FAILED {name}", flush=True)
            traceback.print_exc()
    print(f"{len(tests) - failed} passed, {failed} failed")
    sys.exit(bool(failed))
