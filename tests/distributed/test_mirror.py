"""mode="mirror": even ranks take +n, odd ranks −n of the same noise, one pass a rank."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from ssgd import SSGD

from ..problems import mlp, run_passes, take_step, vectors, weights
from .by_hand import (
    assert_bitwise,
    assert_gradients,
    assert_same_on_every_rank,
    gradient,
    mean_over_ranks,
    moved,
    noises,
    weighted_sum,
    weights_of,
)
from .spawn import Ranks
from .test_ddp import (
    CLOSURES,
    LEVEL,
    SEED,
    WithSpare,
    momentum_sgd,
    parallel,
    plain_step,
    record_reduces,
    resume,
    step_by,
    train_300_steps,
)


def mirrored(ddp: nn.Module, base: SGD | None = None, **options: Any) -> SSGD:
    return SSGD(base or momentum_sgd(ddp), LEVEL, model=ddp, mode="mirror", seed=SEED, **options)


# --- which noise, which sign ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 4])
def test_even_ranks_take_plus_and_odd_ranks_minus_of_the_same_noise(ranks: Ranks, count: int) -> None:
    clean, inside = zip(*ranks(count, weights_inside_the_points, {}), strict=True)
    (w, *_), first = clean, [points[0] for points in inside]
    assert all(len(points) == 1 for points in inside), "one pass a rank"
    torch.testing.assert_close((first[0] - w).norm(), LEVEL * w.norm())
    for rank in range(count):
        assert torch.equal(first[rank], first[rank % 2])
    torch.testing.assert_close(first[0] + first[1], 2 * w, rtol=0, atol=1e-15)


def test_every_pair_of_a_step_is_mirrored(ranks: Ranks) -> None:
    (w, even), (_, odd) = ranks(2, weights_inside_the_points, {"pairs": 3})
    assert len(even) == len(odd) == 3
    for plus, minus in zip(even, odd, strict=True):
        torch.testing.assert_close((plus - w).norm(), LEVEL * w.norm())
        torch.testing.assert_close(plus + minus, 2 * w, rtol=0, atol=1e-15)
    assert not torch.equal(even[0], even[1]) and not torch.equal(even[0], odd[1])


def test_couples_of_ranks_can_have_noise_of_their_own(ranks: Ranks) -> None:
    clean, inside = zip(*ranks(4, weights_inside_the_points, {"per_rank": True}), strict=True)
    noise = [points[0] - w for w, points in zip(clean, inside, strict=True)]
    for even, odd in ((0, 1), (2, 3)):
        torch.testing.assert_close(noise[even], -noise[odd], rtol=0, atol=1e-15)
    assert not torch.allclose(noise[0], noise[2]) and not torch.allclose(noise[0], noise[3])


def weights_inside_the_points(rank: int, options: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
    """The first layer's w, and what it is at each point."""
    ddp = parallel(mlp())
    clean = weights(ddp)
    opt = mirrored(ddp, **options)
    inside = []
    for point in opt.points():
        with point:
            assert point.sign == (1 if rank % 2 == 0 else -1)
            inside.append(weights(ddp)[0])
        assert all(torch.equal(a, b) for a, b in zip(weights(ddp), clean, strict=True)), "not restored"
    return clean[0], inside


# --- the gradient, and how often it is reduced ----------------------------------------------------------------------


@pytest.mark.parametrize("way", ["points", "points, accumulated", CLOSURES[0], "closure, accumulated"])
@pytest.mark.parametrize(("count", "options"), [(2, {}), (4, {}), (4, {"per_rank": True}), (2, {"pairs": 2})])
def test_gradient_is_the_mean_over_ranks_of_each_at_its_own_sign(
    ranks: Ranks, count: int, options: dict[str, Any], way: str
) -> None:
    ranks(count, gradients_and_reduces, options, way)


def gradients_and_reduces(rank: int, options: dict[str, Any], way: str) -> None:
    net, plain_net = mlp(), mlp()
    ddp, plain_ddp = parallel(net), parallel(plain_net)
    reduces, plain_reduces = record_reduces(ddp), record_reduces(plain_ddp)
    opt, plain_opt = mirrored(ddp, **options), momentum_sgd(plain_ddp)
    pairs, key = options.get("pairs", 1), rank // 2 if options.get("per_rank") else 0
    for step in range(3):
        batches = [vectors(seed=100 * step + 10 * i + rank) for i in range(2 if "accumulated" in way else 1)]
        w = weights_of(net)
        found = [moved(w, n, 1 if rank % 2 == 0 else -1) for n in noises(w, LEVEL, SEED, step, key, pairs)]
        parts = [gradient(net, at, batch) for at in found for batch in batches]
        expected = mean_over_ranks(weighted_sum(parts, [1 / pairs] * len(parts)))
        step_by(way, opt, ddp, batches)
        assert_gradients(net, expected)
        opt.zero_grad()
        plain_step(plain_opt, plain_ddp, batches)
        assert reduces == plain_reduces != []
    assert_same_on_every_rank(weights_of(net))


def test_two_ranks_with_one_batch_do_what_both_does_alone(ranks: Ranks) -> None:
    alone = mlp()
    opt = SSGD(momentum_sgd(alone), LEVEL, seed=SEED)
    for step in range(5):
        take_step(opt, "points", alone, *vectors(seed=step))
    for found in ranks(2, train_on_one_batch, 5):
        for a, b in zip(found, weights(alone), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


def train_on_one_batch(rank: int, steps: int) -> list[Tensor]:
    ddp = parallel(mlp())
    opt = mirrored(ddp)
    for step in range(steps):
        take_step(opt, "points", ddp, *vectors(seed=step))
    return weights(ddp)


@pytest.mark.parametrize("count", [2, 4])
def test_replicas_are_bitwise_alike_after_300_steps(ranks: Ranks, count: int) -> None:
    ranks(count, train_300_steps, "points", torch.float32, "mirror")


# --- beside other tools ---------------------------------------------------------------------------------------------


def test_one_autocast_block_around_everything_equals_one_around_each_pass(ranks: Ranks) -> None:
    ranks(2, under_autocast)


def under_autocast(rank: int) -> None:
    """Inside the one block a clean forward comes first: its casts must not serve the points."""
    trained, seen = [], []
    for around_all in (True, False):
        net = mlp(torch.float32)
        ddp = parallel(net)
        opt = mirrored(ddp, pairs=2)
        for step in range(3):
            x, y = vectors(dtype=torch.float32, seed=10 * step + rank)
            with torch.autocast("cpu", torch.bfloat16, enabled=around_all):
                net(x)
                for point in opt.points():
                    with point:
                        with torch.autocast("cpu", torch.bfloat16):
                            out = ddp(x)
                            loss = F.cross_entropy(out, y)
                        loss.backward()
                        seen.append(out.detach())
            opt.step()
            opt.zero_grad()
        trained.append(weights_of(net))
    assert all(out.dtype == torch.bfloat16 for out in seen) and not torch.equal(seen[0], seen[1])
    assert_bitwise(*trained)
    assert_same_on_every_rank(trained[0])


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler_equals_training_without(ranks: Ranks, fused: bool) -> None:
    ranks(2, with_grad_scaler, fused)


def with_grad_scaler(rank: int, fused: bool) -> None:
    """An overflow on one rank skips the step on both, and its noise is over."""
    net, plain_net = mlp(torch.float32), mlp(torch.float32)
    ddp, plain_ddp = parallel(net), parallel(plain_net)
    opt = mirrored(ddp, SGD(ddp.parameters(), lr=0.1, momentum=0.9, fused=fused))
    plain = mirrored(plain_ddp)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scales, moves = [], []
    for step in range(4):
        x, y = vectors(dtype=torch.float32, seed=10 * step + rank)
        before = weights_of(net)
        broken = float("inf") if step == 2 and rank == 1 else 1.0
        run_passes(opt, "points", ddp, x, y, scale=lambda loss, factor=broken: scaler.scale(loss * factor))
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        run_passes(plain, "points", plain_ddp, x, y)
        if step != 2:
            plain.step()
        plain.zero_grad()
        scales.append(scaler.get_scale())
        moves.append(any(not torch.equal(w, before[name]) for name, w in weights_of(net).items()))
        assert_same_on_every_rank(weights_of(net))
    assert scales == [1024.0, 1024.0, 512.0, 512.0]
    assert moves == [True, True, False, True]
    for name, w in weights_of(plain_net).items():
        torch.testing.assert_close(weights_of(net)[name], w, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("way", ["points", "closure"])
def test_resumes_bitwise(ranks: Ranks, tmp_path: Path, way: str) -> None:
    ranks(2, resume, way, "mirror", tmp_path / "checkpoint.pt")


@pytest.mark.parametrize("compiled", ["inside", "outside"])
def test_no_recompilation_on_the_second_step_and_the_noise_is_seen(ranks: Ranks, compiled: str) -> None:
    ranks(2, compile_and_train, compiled)


def compile_and_train(rank: int, compiled: str) -> None:
    """The net is a class of ours: behind DDP torch compiles no forward of its own classes, such as Sequential's."""
    torch._dynamo.reset()
    counters.clear()
    net, eager_net = WithSpare(), WithSpare()
    net.use_spare = eager_net.use_spare = True
    ddp = DistributedDataParallel(torch.compile(net, backend="aot_eager") if compiled == "inside" else net)
    model = torch.compile(ddp, backend="aot_eager") if compiled == "outside" else ddp
    eager_ddp = parallel(eager_net)
    opt, eager = mirrored(model), mirrored(eager_ddp)
    for step in range(4):
        batch = vectors(seed=10 * step + rank)
        with torch._dynamo.config.patch(error_on_recompile=step > 0):
            take_step(opt, "points", model, *batch)
        take_step(eager, "points", eager_ddp, *batch)
    assert counters["aot_autograd"]["ok"] > 0, "nothing was compiled"
    torch._dynamo.reset()
    for name, w in weights_of(eager_net).items():
        torch.testing.assert_close(weights_of(net)[name], w, rtol=1e-10, atol=1e-12)
    assert_same_on_every_rank(weights_of(net))


# --- refusals -------------------------------------------------------------------------------------------------------


def test_an_odd_number_of_ranks_is_refused(ranks: Ranks) -> None:
    ranks(3, odd_number)


def odd_number(rank: int) -> None:
    ddp = parallel(mlp())
    with pytest.raises(ValueError, match="even number of ranks, not 3"):
        mirrored(ddp)


def test_the_ranks_that_count_are_those_of_the_models_group(ranks: Ranks) -> None:
    ranks(3, in_a_group_of_two)


def in_a_group_of_two(rank: int) -> None:
    """World ranks 1 and 2 are a couple: 1 comes first, so it takes +n."""
    group = dist.new_group([1, 2])
    if rank:
        ddp = DistributedDataParallel(mlp(), process_group=group)
        opt = SSGD(momentum_sgd(ddp), LEVEL, model=ddp, mode="mirror")
        assert [point.sign for point in passes(opt, ddp)] == [1 if rank == 1 else -1]


def passes(opt: SSGD, ddp: nn.Module) -> list[Any]:
    seen = []
    for point in opt.points():
        with point:
            seen.append(point)
    return seen


def test_a_model_that_is_not_data_parallel_is_refused() -> None:
    net = mlp()
    for model in (None, net):
        with pytest.raises(ValueError, match=r"mirror.*pass model=DistributedDataParallel"):
            SSGD(momentum_sgd(net), LEVEL, model=model, mode="mirror")


def test_split_and_both_points_are_refused(ranks: Ranks) -> None:
    ranks(2, both_signs_mirrored)


def both_signs_mirrored(rank: int) -> None:
    ddp = parallel(mlp())
    opt = mirrored(ddp)
    with pytest.raises(ValueError, match=r"split\(\) takes both signs on every rank"):
        run_passes(opt, "split", ddp, *vectors())
    with pytest.raises(ValueError, match=r'both_points\(\) needs .*mode="both"'):
        opt.both_points()
