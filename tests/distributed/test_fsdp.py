"""FSDP2: the ratio is that of the whole tensor, and the module computes with perturbed weights, never with old ones.

The net has weights of 7, 1 and 3 rows, so that shards are uneven and one of them is empty.
"""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.optim import SGD, AdamW, Optimizer

from ssgd import SSGD
from ssgd.lab.versions import FSDP2, at_least

from ..problems import run_passes, take_step, vectors
from .beside import Observer, gathered, observed_step
from .by_hand import (
    assert_bitwise,
    assert_gradients,
    assert_same_on_every_rank,
    assert_shards_draw_for_themselves,
    loss_at,
    of_every_rank,
    whole,
)
from .spawn import Ranks

pytestmark = pytest.mark.skipif(not at_least(FSDP2), reason="before torch 2.9 fully_shard fails on the CPU")
LEVEL, SEED = 0.3, 5
WAYS = ("points", "closure", "split")


def bottleneck(dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 1), nn.Linear(1, 3)).to(dtype)


def sharded(mesh: DeviceMesh, seed: int = 0, **options: Any) -> nn.Sequential:
    """The first layer in a group of its own; the root has the others, and keeps them gathered after its forward."""
    net = bottleneck(seed=seed)
    fully_shard(net[0], mesh=mesh, **options)
    fully_shard(net, mesh=mesh, **options)
    return net


def line() -> DeviceMesh:
    return init_device_mesh("cpu", (dist.get_world_size(),))


def grid() -> DeviceMesh:
    """Two replicas of two shards."""
    return init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))


def momentum_sgd(net: nn.Module) -> SGD:
    return SGD(net.parameters(), lr=0.1, momentum=0.9)


def perturbing(net: nn.Module, **options: Any) -> SSGD:
    return SSGD(momentum_sgd(net), LEVEL, model=net, **{"seed": SEED, **options})


def local_shards(opt: Optimizer) -> list[Tensor]:
    return [p.to_local().detach().clone() for group in opt.param_groups for p in group["params"]]


# --- the noise ------------------------------------------------------------------------------------------------------


def test_noise_of_the_whole_tensor_has_the_level(ranks: Ranks) -> None:
    ranks(2, noise_of_whole_tensors)


def noise_of_whole_tensors(rank: int) -> None:
    net = sharded(line())
    opt = perturbing(net)
    rows = {name: [len(part) for part in shards_of(p)] for name, p in net.named_parameters() if p.dim() > 1}
    assert rows == {"0.weight": [4, 3], "2.weight": [1, 0], "3.weight": [2, 1]}
    shards = local_shards(opt)
    w = gathered(net, opt)
    noise = []
    for point in opt.points():
        with point:
            noise.append({name: at - w[name] for name, at in gathered(net, opt).items()})
            for name, n in noise[-1].items():
                level = LEVEL if n.dim() > 1 else 0.0
                assert abs(float(n.norm() / w[name].norm()) - level) < 1e-5, name
            for ratio in opt.realised_ratios():
                assert abs(float(ratio) - LEVEL) < 1e-5
        for before, after in zip(shards, local_shards(opt), strict=True):
            assert torch.equal(before, after), "not restored bitwise"
    plus, minus = noise
    for name in plus:
        torch.testing.assert_close(plus[name], -minus[name], rtol=0, atol=1e-15, msg=f"{name}: w + n, w − n asymmetric")
    assert_shards_draw_for_themselves(plus["0.weight"].split([4, 3]), w["0.weight"].split([4, 3]), LEVEL)


def test_shards_have_the_noise_of_the_whole_tensor(ranks: Ranks) -> None:
    ranks(2, noise_beside_unsharded)


def noise_beside_unsharded(rank: int) -> None:
    net, whole_net = sharded(line()), bottleneck()
    opt, alone = perturbing(net), SSGD(SGD(whole_net.parameters(), lr=0.1), LEVEL, seed=SEED)
    for point, other in zip(opt.points(), alone.points(), strict=True):
        with point, other:
            for name, w in whole_net.named_parameters():
                torch.testing.assert_close(gathered(net, opt)[name], w.detach(), rtol=1e-12, atol=1e-15)


def shards_of(p: Tensor) -> list[Tensor]:
    """What each rank holds of a tensor."""
    sizes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(sizes, p.to_local().detach().clone())
    return sizes


def test_ranks_agree_on_a_seed_that_nobody_gave(ranks: Ranks) -> None:
    assert ranks(2, seed_without_one) == [1000, 1000]


def seed_without_one(rank: int) -> int:
    net = sharded(line())
    torch.manual_seed(1000 + rank)
    return perturbing(net, seed=None).param_groups[0]["noise_seed"]


# --- training -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_trains_like_an_unsharded_replica_with_the_same_perturbations(ranks: Ranks, way: str) -> None:
    ranks(2, train_beside_replica, way, "line", {})


def train_beside_replica(rank: int, way: str, mesh: str, options: dict[str, Any]) -> None:
    net = sharded(grid() if mesh == "grid" else line())
    opt = perturbing(net, **options)
    observer = Observer(net, opt, bottleneck())
    for step in range(6):
        observed_step(way, opt, observer, vectors(samples=7, seed=10 * step + rank))
        expected = observer.finish()
        assert_gradients(net, expected)
        for name, p in observer.replica.named_parameters():
            torch.testing.assert_close(gathered(net, opt)[name], p.detach(), rtol=1e-9, atol=1e-12)
    assert_same_on_every_rank(gathered(net, opt))


def test_three_micro_batches_see_the_same_noise(ranks: Ranks) -> None:
    ranks(2, accumulate)


def accumulate(rank: int) -> None:
    net = sharded(line())
    opt = perturbing(net)
    observer = Observer(net, opt, bottleneck())
    at_plus = []
    for i in range(3):
        for point in opt.points():
            with point:
                if point.sign > 0:
                    at_plus.append(gathered(net, opt))
                observer.run(*vectors(seed=10 * i + rank))
    assert_gradients(net, {name: 3 * g for name, g in observer.finish().items()})
    assert_bitwise(at_plus[1], at_plus[0])
    assert_bitwise(at_plus[2], at_plus[0])


def test_gradients_that_were_to_be_held_back_are_reduced_at_every_point(ranks: Ranks) -> None:
    ranks(2, held_back)


def held_back(rank: int) -> None:
    """As a trainer has it for all but the last of a step's batches: out of p.grad no mean could be taken."""
    net = sharded(line())
    opt = perturbing(net)
    observer = Observer(net, opt, bottleneck())
    net.set_requires_gradient_sync(False)
    for point in opt.points():
        with point:
            observer.run(*vectors(seed=rank))
    assert_gradients(net, observer.finish())


@pytest.mark.parametrize("when", ["before the points", "between the points", "before a pass", "after a pass"])
def test_a_forward_without_gradient_does_not_hide_the_perturbation(ranks: Ranks, when: str) -> None:
    ranks(2, after_no_grad_forward, when)


def after_no_grad_forward(rank: int, when: str) -> None:
    """Such a forward leaves the root's weights gathered; the pass that follows must not compute with them."""
    net = sharded(line())
    opt = perturbing(net)
    observer = Observer(net, opt, bottleneck())
    x, y = vectors(seed=rank)

    def evaluate() -> None:
        with torch.no_grad():
            net(x)

    def loss_outside() -> float:
        with torch.no_grad():
            return float(F.cross_entropy(net(x), y))

    for _ in range(2):
        if when == "before the points":
            evaluate()
        for point in opt.points():
            with point:
                if when == "before a pass":
                    evaluate()
                observer.run(x, y)
                if when == "after a pass":
                    evaluate()
            if when == "between the points" and point.sign > 0:
                evaluate()
        if when == "after a pass":
            clean = gathered(net, opt)
            torch.testing.assert_close(loss_outside(), loss_at(observer.replica, clean, (x, y)), rtol=1e-9, atol=1e-12)
            net.reshard()  # or torch itself would evaluate with these weights after the step
        opt.step()
        opt.zero_grad()
    clean = gathered(net, opt)
    torch.testing.assert_close(loss_outside(), loss_at(observer.replica, clean, (x, y)), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_level_zero_is_bitwise_the_base(ranks: Ranks, way: str) -> None:
    ranks(2, level_zero, way)


def level_zero(rank: int, way: str) -> None:
    mesh = line()
    net, plain_net = sharded(mesh), sharded(mesh)
    opt, plain = SSGD(momentum_sgd(net), 0.0, model=net), momentum_sgd(plain_net)
    for step in range(3):
        batch = vectors(seed=10 * step + rank)
        take_step(opt, way, net, *batch)
        take_step(plain, "plain", plain_net, *batch)
    assert_bitwise(gathered(net, opt), gathered(plain_net, plain))


def test_looks_beside_w_are_at_the_whole_tensors(ranks: Ranks) -> None:
    ranks(2, excess_and_ratios)


def excess_and_ratios(rank: int) -> None:
    """The symmetric excess and the ratios of the next step's noise, without a step."""
    net = sharded(line())
    opt = perturbing(net)
    replica = bottleneck()
    batch = vectors(seed=rank)
    w = gathered(net, opt)
    losses = []
    for point in opt.points():
        with point:
            losses.append(loss_at(replica, gathered(net, opt), batch))
    opt.zero_grad()
    opt.param_groups[0]["noise_step"] = 0  # the same noise again
    excess = opt.symmetric_excess(lambda: F.cross_entropy(net(batch[0]), batch[1]))
    torch.testing.assert_close(float(excess), sum(losses) / 2 - loss_at(replica, w, batch), rtol=1e-6, atol=1e-12)
    with torch.no_grad():  # the last look has left nothing gathered
        after = float(F.cross_entropy(net(batch[0]), batch[1]))
    torch.testing.assert_close(after, loss_at(replica, w, batch), rtol=1e-9, atol=1e-12)
    assert all(abs(float(ratio) - LEVEL) < 1e-5 for ratio in opt.realised_ratios())
    assert_bitwise(gathered(net, opt), w)


def test_mixed_precision_gathers_the_perturbed_weights(ranks: Ranks) -> None:
    ranks(2, mixed_precision)


def mixed_precision(rank: int) -> None:
    net = sharded(line(), mp_policy=MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float64))
    opt = perturbing(net)
    replica = bottleneck()
    x, y = vectors(seed=rank)
    for _ in range(2):
        losses = []
        for point in opt.points():
            with point:
                at = gathered(net, opt)
                loss = F.cross_entropy(net(x), y)
                loss.backward()
                torch.testing.assert_close(float(loss), loss_at(replica, at, (x, y)), rtol=1e-6, atol=1e-6)
                losses.append(float(loss))
        opt.step()
        opt.zero_grad()
        assert abs(losses[0] - losses[1]) > 1e-4, "the two points cannot be told apart"


# --- what goes wrong ------------------------------------------------------------------------------------------------


def test_a_backward_after_its_point_was_left_is_refused(ranks: Ranks) -> None:
    ranks(2, late_backward)


def late_backward(rank: int) -> None:
    net = sharded(line())
    opt = perturbing(net)
    w = gathered(net, opt)
    x, y = vectors(seed=rank)
    with pytest.raises(RuntimeError, match="backward"):
        for point in opt.points():
            with point:
                loss = F.cross_entropy(net(x), y)
                loss.backward(retain_graph=True)
            loss.backward()
    assert_bitwise(gathered(net, opt), w)


def test_an_exception_inside_a_point_leaves_the_weights_as_they_were(ranks: Ranks) -> None:
    ranks(2, exception_inside)


def exception_inside(rank: int) -> None:
    net = sharded(line())
    opt = perturbing(net)
    observer = Observer(net, opt, bottleneck())
    shards = local_shards(opt)
    batch = vectors(seed=rank)
    for failing in (1, -1):
        with pytest.raises(KeyboardInterrupt):
            for point in opt.points():
                with point:
                    F.cross_entropy(net(batch[0]), batch[1])
                    if point.sign == failing:
                        raise KeyboardInterrupt
        assert all(torch.equal(a, b) for a, b in zip(shards, local_shards(opt), strict=True))
        assert all(p.grad is None for p in opt.param_groups[0]["params"])
        with torch.no_grad():
            loss = float(F.cross_entropy(net(batch[0]), batch[1]))
        torch.testing.assert_close(loss, loss_at(observer.replica, gathered(net, opt), batch), rtol=1e-9, atol=1e-12)
    observed_step("points", opt, observer, batch)
    assert_gradients(net, observer.finish())


@pytest.mark.parametrize("broken_rank", [0, 1])
def test_all_ranks_skip_when_one_shard_is_not_finite(ranks: Ranks, broken_rank: int) -> None:
    ranks(2, one_bad_shard, broken_rank)


def one_bad_shard(rank: int, broken_rank: int) -> None:
    net = sharded(line())
    opt = perturbing(net, nonfinite="skip")
    moves = []
    for step in range(3):
        before = gathered(net, opt)
        run_passes(opt, "points", net, *vectors(seed=rank))
        if step == 1 and rank == broken_rank:
            net[0].weight.grad.to_local()[0, 0] = float("nan")
        opt.step()
        opt.zero_grad()
        after = gathered(net, opt)
        moves.append(not all(torch.equal(after[name], before[name]) for name in after))
    assert moves == [True, False, True]
    assert opt.param_groups[0]["noise_step"] == 3


@pytest.mark.parametrize("fused", [False, True])
def test_all_ranks_skip_adam_when_one_shard_is_not_finite(ranks: Ranks, fused: bool) -> None:
    """Fused kernels are told to skip; others are not called."""
    ranks(2, one_bad_shard_with_adam, fused)


def one_bad_shard_with_adam(rank: int, fused: bool) -> None:
    net = sharded(line())
    opt = SSGD(AdamW(net.parameters(), lr=0.1, fused=fused), LEVEL, model=net, seed=SEED, nonfinite="skip")
    for broken in (False, True):
        before = gathered(net, opt)
        run_passes(opt, "points", net, *vectors(seed=rank))
        if broken and rank == 1:
            net[0].weight.grad.to_local()[0, 0] = float("inf")
        opt.step()
        opt.zero_grad()
        after = gathered(net, opt)
        assert all(torch.equal(after[name], before[name]) for name in after) == broken


def test_an_overflow_on_one_rank_skips_the_step_on_all(ranks: Ranks) -> None:
    ranks(2, overflow)


def overflow(rank: int) -> None:
    net = sharded(line())
    opt = perturbing(net)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = vectors(seed=rank)
    scales, moves, counters = [], [], []
    for step in range(3):
        before = gathered(net, opt)
        for point in opt.points():
            with point:
                loss = F.cross_entropy(net(x), y)
                broken = step == 1 and rank == 1 and point.sign > 0
                scaler.scale(loss * float("inf") if broken else loss).backward()
        scaler.step(opt)
        scaler.update()
        opt.zero_grad()
        scales.append(scaler.get_scale())
        moves.append(not all(torch.equal(w, before[name]) for name, w in gathered(net, opt).items()))
        counters.append(opt.param_groups[0]["noise_step"])
    assert scales == [1024.0, 512.0, 512.0]
    assert moves == [True, False, True]
    assert counters == [1, 2, 3]


def test_clipping_sees_the_mean_gradient(ranks: Ranks) -> None:
    ranks(2, clip)


def clip(rank: int) -> None:
    net = sharded(line())
    opt = SSGD(SGD(net.parameters(), lr=0.1), LEVEL, model=net, seed=SEED)
    observer = Observer(net, opt, bottleneck())
    before = gathered(net, opt)
    for point in opt.points():
        with point:
            observer.run(*vectors(seed=rank))
    expected = observer.finish()
    norm = torch.stack([g.norm() for g in expected.values()]).norm()
    assert norm > 0.1, "nothing will be clipped"
    torch.testing.assert_close(whole(nn.utils.clip_grad_norm_(net.parameters(), 0.1)), norm)
    opt.step()
    for name, w in gathered(net, opt).items():
        torch.testing.assert_close(w, before[name] - 0.1 * (0.1 / norm) * expected[name], rtol=1e-5, atol=1e-7)


def test_what_all_ranks_must_share_cannot_differ_by_rank(ranks: Ranks) -> None:
    ranks(2, refusals)


def refusals(rank: int) -> None:
    net = sharded(line())
    with pytest.raises(
        ValueError, match=r"per_rank=True is impossible here: all ranks gather the same sharded weights"
    ):
        perturbing(net, per_rank=True)
    with pytest.raises(ValueError, match="mode=mirror is impossible here: all ranks gather the same sharded weights"):
        perturbing(net, mode="mirror")
    with pytest.raises(ValueError, match="sharded parameters need the module that was sharded: pass model="):
        SSGD(momentum_sgd(net), LEVEL)


# --- hybrid sharding: two replicas of two shards --------------------------------------------------------------------

BY_REPLICA: dict[str, dict[str, Any]] = {"shared": {}, "per replica": {"per_rank": True}, "mirror": {"mode": "mirror"}}


@pytest.mark.parametrize(
    "options", [{}, {"per_rank": True}, {"mode": "mirror"}], ids=["shared", "per replica", "mirror"]
)
def test_replicas_train_on_the_mean_of_their_gradients(ranks: Ranks, options: dict[str, Any]) -> None:
    ranks(4, train_beside_replica, "points", "grid", options)


def test_noise_can_differ_between_replicas(ranks: Ranks) -> None:
    ranks(4, noise_by_replica)


def noise_by_replica(rank: int) -> None:
    net = sharded(grid())
    for kind, options in BY_REPLICA.items():
        opt = perturbing(net, **options)
        w = gathered(net, opt)
        with next(iter(opt.points())):
            noise = {name: at - w[name] for name, at in gathered(net, opt).items() if at.dim() > 1}
        assert_bitwise(gathered(net, opt), w)
        for name, n in noise.items():
            assert abs(float(n.norm() / w[name].norm()) - LEVEL) < 1e-5
            first, second, third, fourth = of_every_rank(n)
            assert torch.equal(first, second) and torch.equal(third, fourth), "shards of one replica disagree"
            if kind == "per replica":
                assert not torch.allclose(first.abs(), third.abs())
            elif kind == "mirror":
                torch.testing.assert_close(first, -third, rtol=0, atol=1e-15)
            else:
                assert torch.equal(first, third)


@pytest.mark.parametrize("options", BY_REPLICA.values(), ids=BY_REPLICA)
def test_replicas_stay_bitwise_alike(ranks: Ranks, options: dict[str, Any]) -> None:
    ranks(4, train_many_steps, options)


def train_many_steps(rank: int, options: dict[str, Any]) -> None:
    net = sharded(grid())
    opt = perturbing(net, **options)
    for step in range(60):
        take_step(opt, "points", net, *vectors(seed=10 * step + rank))
    assert_same_on_every_rank(gathered(net, opt))
    assert_same_on_every_rank({n: whole(opt.state[p]["momentum_buffer"]) for n, p in net.named_parameters()})


# --- distributed checkpoint -----------------------------------------------------------------------------------------

BASES: dict[str, Callable[[nn.Module], Optimizer]] = {
    "momentum": momentum_sgd,
    "adamw": lambda net: AdamW(net.parameters(), lr=0.01),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("flatten", [False, True], ids=["nested", "flat"])
def test_distributed_checkpoint_resumes_bitwise(
    ranks: Ranks, tmp_path: Path, flatten: bool, base: str, way: str
) -> None:
    ranks(2, save_and_resume, way, base, flatten, tmp_path)


def save_and_resume(rank: int, way: str, base: str, flatten: bool, folder: Path) -> None:
    mesh = line()
    options = StateDictOptions(flatten_optimizer_state_dict=flatten)

    def train(net: nn.Module, opt: SSGD, steps: range) -> None:
        for step in steps:
            take_step(opt, way, net, *vectors(samples=7, seed=10 * step + rank))

    def state(net: nn.Module, opt: SSGD) -> dict[str, Any]:
        return {"model": get_model_state_dict(net), "optimizer": get_optimizer_state_dict(net, opt, options=options)}

    net = sharded(mesh)
    opt = perturbing_with(base, net, LEVEL, SEED)
    again = sharded(mesh, seed=1)
    again_opt = perturbing_with(base, again, LEVEL / 2, SEED + 1)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        train(net, opt, range(3))
        dcp.save(state(net, opt), checkpoint_id=folder)
        train(net, opt, range(3, 6))
        loaded = state(again, again_opt)
        dcp.load(loaded, checkpoint_id=folder)
        set_model_state_dict(again, loaded["model"])
        set_optimizer_state_dict(again, again_opt, loaded["optimizer"], options=options)
    assert not [str(w.message) for w in caught if "SSGD" in str(w.message)]
    own = {key: again_opt.param_groups[0][key] for key in ("noise", "noise_seed", "noise_step")}
    assert own == {"noise": LEVEL, "noise_seed": SEED, "noise_step": 3}
    train(again, again_opt, range(3, 6))
    assert_bitwise(gathered(again, again_opt), gathered(net, opt))
    for p, q in zip(net.parameters(), again.parameters(), strict=True):
        for key, value in opt.state[p].items():
            assert torch.equal(whole(value), whole(again_opt.state[q][key])), key


def perturbing_with(base: str, net: nn.Module, level: float, seed: int) -> SSGD:
    return SSGD(BASES[base](net), level, model=net, seed=seed)


def async_unshard(rank: int) -> None:
    x, y = vectors()
    losses = []
    for begun in (False, True):
        net = sharded(line())
        opt = SSGD(momentum_sgd(net), LEVEL, model=net, seed=SEED)
        if begun:
            net.unshard(async_op=True)
            net[0].unshard(async_op=True)
        for point in opt.points():
            with point:
                point.loss = F.cross_entropy(net(x), y)
                point.loss.backward()
        opt.step()
        losses.append([float(loss) for loss in opt.losses])
    assert losses[0] == losses[1]


def test_weights_on_their_way_do_not_hide_the_noise(ranks: Ranks) -> None:
    ranks(2, async_unshard)


def part_of_the_world(rank: int) -> int | None:
    mesh = DeviceMesh("cpu", [0, 1])
    if rank == 2:
        return None  # has other things to do
    torch.manual_seed(rank)
    net = sharded(mesh)
    torch.manual_seed(rank)
    return int(SSGD(momentum_sgd(net), LEVEL, model=net).param_groups[0]["noise_seed"])


def test_those_who_share_a_model_agree_on_a_seed_without_the_others() -> None:
    ranks = Ranks()  # of its own: processes that have been apart count their groups differently
    try:
        first, second, other = ranks(3, part_of_the_world)
    finally:
        ranks.close()
    assert first == second is not None and other is None
