"""DistributedDataParallel: as many all-reduces as without S-SGD, the right mean, and replicas that stay alike."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from ssgd import SSGD

from ..problems import mlp, run_passes, take_step, vectors, weights
from .by_hand import (
    Batch,
    Weights,
    assert_bitwise,
    assert_gradients,
    assert_same_on_every_rank,
    both,
    mean_over_ranks,
    momenta,
    noises,
    objects_of_every_rank,
    of_every_rank,
    split,
    weighted_sum,
    weights_of,
)
from .spawn import Ranks

LEVEL, SEED = 0.3, 5

CLOSURES = (
    "closure that calls opt.zero_grad()",
    "closure that calls opt.zero_grad(set_to_none=False)",
    "closure that calls model.zero_grad()",
    "closure that calls model.zero_grad(set_to_none=False)",
    "closure that calls module.zero_grad()",
    "closure that calls a zero_grad it got before",
    "closure that sets p.grad to None",
    "closure that does not zero",
)
ACCUMULATED = ("points, accumulated", "split, accumulated", "closure, accumulated")
WAYS = ("points", "points, two pairs", "split", *CLOSURES, *ACCUMULATED)
DDP_OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bucket view": {"gradient_as_bucket_view": True},
    "find unused": {"find_unused_parameters": True},
}


class WithSpare(nn.Module):
    """A net with a layer that no pass uses, unless told to."""

    def __init__(self) -> None:
        super().__init__()
        self.used = mlp()
        self.spare = nn.Linear(3, 3, dtype=torch.float64)
        self.use_spare = False

    def forward(self, x: Tensor) -> Tensor:
        return self.spare(self.used(x)) if self.use_spare else self.used(x)


def parallel(net: nn.Module, **options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(net, bucket_cap_mb=1e-4, **options)  # small, so that there are several buckets


def momentum_sgd(net: nn.Module) -> SGD:
    return SGD(net.parameters(), lr=0.1, momentum=0.9)


def record_reduces(ddp: DistributedDataParallel) -> list[int]:
    """The bucket of every gradient all-reduce from here on."""
    seen: list[int] = []

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        seen.append(bucket.index())
        return allreduce_hook(ddp.process_group, bucket)

    ddp.register_comm_hook(None, hook)
    return seen


# --- as many all-reduces as plain DDP, and the right gradient -------------------------------------------------------


@pytest.mark.parametrize("options", DDP_OPTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_reduces_as_often_as_plain_ddp_and_to_the_mean_over_ranks(ranks: Ranks, way: str, options: str) -> None:
    ranks(2, reduces_and_mean, way, DDP_OPTIONS[options], None)


@pytest.mark.parametrize("way", ["points", "split", CLOSURES[0]])
def test_shared_noise_reduces_to_the_mean_over_ranks(ranks: Ranks, way: str) -> None:
    ranks(2, reduces_and_mean, way, {}, False)


def test_four_ranks_reduce_to_their_mean(ranks: Ranks) -> None:
    ranks(4, reduces_and_mean, "points", {}, None)


def reduces_and_mean(rank: int, way: str, options: dict[str, Any], per_rank: bool | None) -> None:
    net, plain_net = (WithSpare() if options.get("find_unused_parameters") else mlp() for _ in range(2))
    pairs = 2 if "two pairs" in way else 1
    ddp, plain_ddp = parallel(net, **options), parallel(plain_net, **options)
    reduces, plain_reduces = record_reduces(ddp), record_reduces(plain_ddp)
    opt = SSGD(momentum_sgd(ddp), LEVEL, model=ddp, seed=SEED, per_rank=per_rank, pairs=pairs)
    plain_opt = momentum_sgd(plain_ddp)
    for step in range(3):
        batches = [vectors(samples=7, seed=100 * rank + 10 * step + i) for i in range(3 if "accumulated" in way else 1)]
        noise = noises(weights_of(net), LEVEL, SEED, step, key=0 if per_rank is False else rank, pairs=pairs)
        expected = mean_over_ranks(gradient_by_hand(net, way, noise, batches))
        step_by(way, opt, ddp, batches)
        assert_gradients(net, expected)
        opt.zero_grad()
        plain_step(plain_opt, plain_ddp, batches)
        assert plain_reduces, "plain DDP was not counted"
        assert reduces == plain_reduces, f"step {step}: all-reduced buckets {reduces}, plain DDP {plain_reduces}"
    assert_same_on_every_rank(weights_of(net))


def gradient_by_hand(net: nn.Module, way: str, noise: list[Weights], batches: list[Batch]) -> Weights:
    """This rank's mean gradient, summed over micro-batches, which all see the same n."""
    w = weights_of(net)
    parts = [split(net, w, noise[0], batch) if "split" in way else both(net, w, noise, batch) for batch in batches]
    return weighted_sum(parts, [1.0] * len(parts))


def step_by(way: str, opt: SSGD, ddp: DistributedDataParallel, batches: list[Batch]) -> None:
    """One step; p.grad is left for the test to look at."""
    if way in CLOSURES:
        opt.step(closure_that(way, opt, ddp, *batches))
        return
    if way == "closure, accumulated":
        opt.step(lambda: accumulated(opt, ddp, batches))
        return
    for i, batch in enumerate(batches):
        with nullcontext() if i == len(batches) - 1 else ddp.no_sync():
            run_passes(opt, way.partition(",")[0], ddp, *batch)
    opt.step()


def closure_that(way: str, opt: SSGD, ddp: DistributedDataParallel, batch: Batch) -> Any:
    zero_grad = opt.zero_grad  # looked up here, not when it is called

    def set_to_none() -> None:
        for p in ddp.parameters():
            p.grad = None

    zero = {
        "closure that calls opt.zero_grad()": lambda: opt.zero_grad(),
        "closure that calls opt.zero_grad(set_to_none=False)": lambda: opt.zero_grad(set_to_none=False),
        "closure that calls model.zero_grad()": lambda: ddp.zero_grad(),
        "closure that calls model.zero_grad(set_to_none=False)": lambda: ddp.zero_grad(set_to_none=False),
        "closure that calls module.zero_grad()": lambda: ddp.module.zero_grad(),
        "closure that calls a zero_grad it got before": lambda: zero_grad(),
        "closure that sets p.grad to None": set_to_none,
        "closure that does not zero": lambda: None,
    }[way]
    x, y = batch

    def closure() -> Tensor:
        zero()
        loss = F.cross_entropy(ddp(x), y)
        loss.backward()
        return loss

    return closure


def accumulated(opt: SSGD, ddp: DistributedDataParallel, batches: list[Batch]) -> Tensor:
    """A closure over several micro-batches, of which the last one reduces."""
    opt.zero_grad()
    losses = []
    for i, (x, y) in enumerate(batches):
        with nullcontext() if i == len(batches) - 1 else ddp.no_sync():
            losses.append(F.cross_entropy(ddp(x), y))
            losses[-1].backward()
    return torch.stack(losses).sum()


def plain_step(opt: SGD, ddp: DistributedDataParallel, batches: list[Batch]) -> None:
    for i, (x, y) in enumerate(batches):
        with nullcontext() if i == len(batches) - 1 else ddp.no_sync():
            F.cross_entropy(ddp(x), y).backward()
    opt.step()
    opt.zero_grad()


def test_a_layer_that_only_one_point_uses_is_reduced_too(ranks: Ranks) -> None:
    ranks(2, used_once)


def used_once(rank: int) -> None:
    """DDP finds it unused in the pass that reduces, and must reduce what the other pass has left there."""
    net = WithSpare()
    ddp = parallel(net, find_unused_parameters=True)
    opt = SSGD(momentum_sgd(ddp), LEVEL, model=ddp, seed=SEED)
    x, y = vectors(seed=rank)
    for _ in range(2):
        local_gradient = torch.zeros(3, 3, dtype=torch.float64)
        for point in opt.points():
            net.use_spare = point.sign > 0
            with point:
                F.cross_entropy(ddp(x), y).backward()
                if point.sign > 0:
                    local_gradient = net.spare.weight.grad.clone()
        expected = torch.stack(of_every_rank(local_gradient)).mean(0) / 2
        torch.testing.assert_close(net.spare.weight.grad, expected, rtol=1e-12, atol=1e-15)
        opt.step()
        opt.zero_grad()
    assert_same_on_every_rank(weights_of(net))


@pytest.mark.parametrize("options", DDP_OPTIONS)
@pytest.mark.parametrize("to_none", [True, False])
def test_clearing_by_the_model_inside_a_point_drops_nothing_or_raises(
    ranks: Ranks, options: str, to_none: bool
) -> None:
    ranks(2, cleared_inside, DDP_OPTIONS[options], to_none)


def cleared_inside(rank: int, options: dict[str, Any], to_none: bool) -> None:
    """Where DDP looks for unused layers, the points' sum has to lie in p.grad, where it can be cleared."""
    found = []
    for clears in (False, True):
        net = mlp()
        ddp = parallel(net, **options)
        opt = SSGD(momentum_sgd(ddp), LEVEL, model=ddp, seed=SEED)
        raises = clears and "find_unused_parameters" in options
        with pytest.raises(RuntimeError, match="cleared inside the last point") if raises else nullcontext():
            for point in opt.points():
                with point:
                    if clears:
                        ddp.zero_grad(to_none)
                    x, y = vectors(seed=rank)
                    F.cross_entropy(ddp(x), y).backward()
        found.append([p.grad for p in net.parameters()])
    if not raises:
        torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=1e-15)


def test_such_a_layer_in_a_closure_raises(ranks: Ranks) -> None:
    ranks(2, used_once_in_a_closure)


def used_once_in_a_closure(rank: int) -> None:
    """A closure's gradients are set aside, where DDP cannot find that of a layer its pass does not use: no step."""
    net = WithSpare()
    ddp = parallel(net, find_unused_parameters=True)
    opt = SSGD(momentum_sgd(ddp), LEVEL, model=ddp, seed=SEED)
    before = weights_of(net)
    x, y = vectors(seed=rank)
    net.use_spare = True

    def closure() -> Tensor:
        loss = F.cross_entropy(ddp(x), y)
        loss.backward()
        net.use_spare = False
        return loss

    with pytest.raises(RuntimeError, match="gradient"):
        opt.step(closure)
    assert_bitwise(weights_of(net), before)


@pytest.mark.parametrize("compiled", ["inside", "outside"])
def test_closures_clear_gradients_of_compiled_modules(ranks: Ranks, compiled: str) -> None:
    ranks(2, closures_and_compile, compiled)


def closures_and_compile(rank: int, compiled: str) -> None:
    net = mlp()
    inner = torch.compile(net, backend="eager") if compiled == "inside" else net
    ddp = DistributedDataParallel(inner)
    model = torch.compile(ddp, backend="eager") if compiled == "outside" else ddp
    x, y = vectors(seed=rank)
    w = weights_of(net)
    expected = mean_over_ranks(both(net, w, noises(w, LEVEL, SEED, 0, rank), (x, y)))
    for cleared in (model, ddp, inner, net, net[0]):
        opt = SSGD(SGD(net.parameters(), lr=0.0), LEVEL, model=model, seed=SEED)
        opt.zero_grad()

        def closure(cleared: nn.Module = cleared) -> Tensor:
            cleared.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        opt.step(closure)
        assert_gradients(net, expected)


@pytest.mark.parametrize("way", ["points", "split", "closure"])
def test_a_static_graph_is_refused_by_name_and_the_weights_stay(ranks: Ranks, way: str) -> None:
    ranks(2, static_graph, way)


def static_graph(rank: int, way: str) -> None:
    """torch itself cannot combine it with no_sync(); at level 0 there is one pass, and it works."""
    net = mlp()
    ddp = parallel(net, static_graph=True)
    opt = SSGD(momentum_sgd(ddp), LEVEL, model=ddp, seed=SEED)
    before = weights_of(net)
    with pytest.raises(RuntimeError, match=r"static_graph=True.*build it without static_graph"):
        take_step(opt, way, ddp, *vectors(seed=rank))
    assert_bitwise(weights_of(net), before)
    opt.zero_grad()
    opt.param_groups[0]["noise"] = 0.0
    take_step(opt, way, ddp, *vectors(seed=rank))
    assert_same_on_every_rank(weights_of(net))


# --- whose noise ----------------------------------------------------------------------------------------------------


def test_each_rank_has_noise_of_its_own_unless_shared(ranks: Ranks) -> None:
    own, shared = zip(*ranks(2, weights_inside_a_point), strict=True)
    assert not torch.equal(own[0], own[1])
    assert torch.equal(shared[0], shared[1])


def weights_inside_a_point(rank: int) -> list[Tensor]:
    """The first layer's w + n on this rank: by default, and with shared noise."""
    found = []
    for per_rank in (None, False):
        ddp = parallel(mlp())
        opt = SSGD(momentum_sgd(ddp), LEVEL, model=ddp, seed=SEED, per_rank=per_rank)
        with next(iter(opt.points())):
            found.append(weights(ddp)[0])
    return found


def test_ranks_agree_on_a_seed_that_nobody_gave(ranks: Ranks) -> None:
    seeds, first_weights, random_states_kept = zip(*ranks(2, without_seed), strict=True)
    assert seeds[0] == seeds[1] == 1000  # rank 0's
    assert torch.equal(first_weights[0], first_weights[1])
    assert all(random_states_kept)


def without_seed(rank: int) -> tuple[int, Tensor, bool]:
    ddp = parallel(mlp())
    torch.manual_seed(1000 + rank)
    before = torch.get_rng_state()
    opt = SSGD(momentum_sgd(ddp), LEVEL, model=ddp, per_rank=False)
    with next(iter(opt.points())):
        return opt.param_groups[0]["noise_seed"], weights(ddp)[0], torch.equal(before, torch.get_rng_state())


# --- replicas stay alike --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "dtype"),
    [("points", torch.float32), ("closure", torch.float32), ("split", torch.float32), ("points", torch.bfloat16)],
)
def test_replicas_are_bitwise_alike_after_300_steps(ranks: Ranks, way: str, dtype: torch.dtype) -> None:
    ranks(2, train_300_steps, way, dtype, "both")


def train_300_steps(rank: int, way: str, dtype: torch.dtype, mode: str) -> None:
    net = mlp(dtype)
    start = weights_of(net)
    ddp = parallel(net)
    opt = SSGD(SGD(ddp.parameters(), lr=0.01, momentum=0.9), LEVEL, model=ddp, seed=SEED, mode=mode)
    x, y = vectors(samples=300, dtype=dtype, seed=rank)
    for step in range(300):
        rows = torch.arange(8 * step, 8 * step + 8) % len(x)
        take_step(opt, way, ddp, x[rows], y[rows])
    assert all(bool(w.isfinite().all()) and not torch.equal(w, start[name]) for name, w in weights_of(net).items())
    assert_same_on_every_rank(weights_of(net))
    assert_same_on_every_rank(momenta(net, opt))
    assert objects_of_every_rank(opt.param_groups[0]["noise_step"]) == [300] * dist.get_world_size()


# --- beside other tools ---------------------------------------------------------------------------------------------


def test_clipping_sees_the_mean_gradient(ranks: Ranks) -> None:
    ranks(2, clip)


def clip(rank: int) -> None:
    net = mlp()
    ddp = parallel(net)
    opt = SSGD(SGD(ddp.parameters(), lr=0.1), LEVEL, model=ddp, seed=SEED)
    for step in range(2):
        batch = vectors(seed=10 * rank + step)
        before = weights_of(net)
        expected = mean_over_ranks(both(net, before, noises(before, LEVEL, SEED, step, rank), batch))
        norm = torch.stack([g.norm() for g in expected.values()]).norm()
        run_passes(opt, "points", ddp, *batch)
        torch.testing.assert_close(nn.utils.clip_grad_norm_(ddp.parameters(), 0.1), norm)
        opt.step()
        opt.zero_grad()
        assert norm > 0.1, "nothing was clipped"
        for name, w in weights_of(net).items():
            torch.testing.assert_close(w, before[name] - 0.1 * (0.1 / norm) * expected[name], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("cleared_by", ["optimizer", "model"])
def test_an_overflow_on_one_rank_skips_the_step_on_all(ranks: Ranks, cleared_by: str) -> None:
    ranks(2, overflow, cleared_by)


def overflow(rank: int, cleared_by: str) -> None:
    net = mlp(torch.float32)
    ddp = parallel(net)
    opt = SSGD(momentum_sgd(ddp), LEVEL, model=ddp, seed=SEED)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = vectors(dtype=torch.float32, seed=rank)
    scales, moves = [], []
    for step in range(4):
        before = weights_of(net)
        for point in opt.points():
            with point:
                loss = F.cross_entropy(ddp(x), y)
                broken = step == 1 and rank == 1 and point.sign > 0
                scaler.scale(loss * float("inf") if broken else loss).backward()
        scaler.step(opt)
        scaler.update()
        (opt if cleared_by == "optimizer" else ddp).zero_grad()
        scales.append(scaler.get_scale())
        moves.append(not all(torch.equal(w, before[name]) for name, w in weights_of(net).items()))
        assert_same_on_every_rank(weights_of(net))
    assert scales == [1024.0, 512.0, 512.0, 512.0]
    assert moves == [True, False, True, True]
    assert opt.param_groups[0]["noise_step"] == 4


@pytest.mark.parametrize("way", ["points", "split", "closure"])
def test_resumes_bitwise(ranks: Ranks, tmp_path: Path, way: str) -> None:
    ranks(2, resume, way, "both", tmp_path / "checkpoint.pt")


def resume(rank: int, way: str, mode: str, path: Path) -> None:
    def make(seed: int) -> tuple[nn.Module, SSGD]:
        ddp = parallel(mlp(torch.float32, seed=seed))
        return ddp, SSGD(momentum_sgd(ddp), LEVEL, model=ddp, mode=mode, seed=seed)

    def train(ddp: nn.Module, opt: SSGD, steps: range) -> None:
        for step in steps:
            take_step(opt, way, ddp, *vectors(dtype=torch.float32, seed=10 * step + rank))

    ddp, opt = make(seed=SEED)
    train(ddp, opt, range(3))
    if rank == 0:
        torch.save({"model": ddp.state_dict(), "optimizer": opt.state_dict()}, path)
    train(ddp, opt, range(3, 6))
    dist.barrier()
    saved = torch.load(path, weights_only=True)
    again, again_opt = make(seed=SEED + 1)
    again.load_state_dict(saved["model"])
    again_opt.load_state_dict(saved["optimizer"])
    train(again, again_opt, range(3, 6))
    assert_bitwise(weights_of(again), weights_of(ddp))
    assert_bitwise(momenta(again, again_opt), momenta(ddp, opt))


def test_batch_norm_moves_once_a_step(ranks: Ranks) -> None:
    ranks(2, batch_norm_once)


def batch_norm_once(rank: int) -> None:
    """Rank 0's statistics, which DDP hands to the others, move by the mean of what the two passes saw there."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).double()
    ddp = parallel(net)
    opt = SSGD(momentum_sgd(ddp), LEVEL, model=ddp, seed=SEED, bn_stats="once")
    for step in range(3):
        x, y = vectors(seed=10 * step + rank)
        before = of_every_rank(net[1].running_mean)[0]
        seen: list[Tensor] = []
        handle = net[0].register_forward_hook(lambda _, __, out, seen=seen: seen.append(out.detach().mean(0)))
        take_step(opt, "points", ddp, x, y)
        handle.remove()
        assert len(seen) == 2
        assert int(net[1].num_batches_tracked) == step + 1
        if rank == 0 or step == 0:
            torch.testing.assert_close(net[1].running_mean, 0.9 * before + 0.1 * (seen[0] + seen[1]) / 2)
    assert_same_on_every_rank(weights_of(net))
