"""mode="mirror": even ranks take +n, odd ranks −n of the same noise, one pass a rank."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ssgd import SSGD

from ..problems import mlp, run_passes, take_step, vectors, weights
from .by_hand import (
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
from .test_ddp import LEVEL, SEED, momentum_sgd, parallel, plain_step, record_reduces, train_300_steps


def mirrored(ddp: nn.Module, **options: Any) -> SSGD:
    return SSGD(momentum_sgd(ddp), LEVEL, model=ddp, mode="mirror", seed=SEED, **options)


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


@pytest.mark.parametrize("way", ["points", "closure"])
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
        batch = vectors(seed=10 * step + rank)
        w = weights_of(net)
        found = [moved(w, n, 1 if rank % 2 == 0 else -1) for n in noises(w, LEVEL, SEED, step, key, pairs)]
        expected = mean_over_ranks(weighted_sum([gradient(net, at, batch) for at in found], [1 / pairs] * pairs))
        take_step(opt, way, ddp, *batch)
        assert_gradients(net, expected)
        plain_step(plain_opt, plain_ddp, [batch])
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


def test_split_is_refused(ranks: Ranks) -> None:
    ranks(2, split_mirrored)


def split_mirrored(rank: int) -> None:
    ddp = parallel(mlp())
    with pytest.raises(ValueError, match=r"split\(\) takes both signs on every rank"):
        run_passes(mirrored(ddp), "split", ddp, *vectors())
