"""Tensor parallel, alone and under FSDP2: the whole tensor's ratio, and copies of a weight that stay alike."""

from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim import SGD

from ssgd import SSGD, select
from ssgd.methods import RWP

from ..problems import run_passes, vectors
from .beside import Observer, gathered, observed_step
from .by_hand import (
    Weights,
    assert_bitwise,
    assert_gradients,
    assert_same_on_every_rank,
    assert_shards_draw_for_themselves,
)
from .spawn import Ranks

LEVEL, SEED = 0.3, 5
WAYS = ("points", "closure", "split")


def whole_net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 6), nn.LayerNorm(6), nn.Linear(6, 3, bias=False)
    ).double()


def cut_net(mesh: DeviceMesh) -> nn.Sequential:
    """The first layer cut by rows, the second by columns with a replicated bias, the others ordinary tensors."""
    net = whole_net()
    parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    return net


def line() -> DeviceMesh:
    return init_device_mesh("cpu", (2,))


def perturbing(net: nn.Module, **options: Any) -> SSGD:
    """Perturbs every parameter, those too that all ranks hold."""
    everything = select(net, where=lambda name, parameter: True)
    return SSGD(SGD(net.parameters(), lr=0.1, momentum=0.9), LEVEL, model=net, perturb=everything, seed=SEED, **options)


def noise_inside(net: nn.Module, opt: SSGD) -> list[Weights]:
    """What the points add to the whole tensors."""
    w = gathered(net, opt)
    found = []
    for point in opt.points():
        with point:
            found.append({name: at - w[name] for name, at in gathered(net, opt).items()})
    assert_bitwise(gathered(net, opt), w)
    return found


# --- alone ----------------------------------------------------------------------------------------------------------


def test_noise_of_the_whole_tensor_has_the_level(ranks: Ranks) -> None:
    ranks(2, noise_of_whole_tensors)


def noise_of_whole_tensors(rank: int) -> None:
    net = cut_net(line())
    opt = perturbing(net)
    w = gathered(net, opt)
    plus, minus = noise_inside(net, opt)
    for name, n in plus.items():
        if w[name].norm() > 0:  # layer-norm's bias starts at zero, and gets none
            assert abs(float(n.norm() / w[name].norm()) - LEVEL) < 1e-5, name
        torch.testing.assert_close(n, -minus[name], rtol=0, atol=1e-15)
    assert_same_on_every_rank(plus)
    for name, dim in (("0.weight", 0), ("2.weight", 1)):
        assert_shards_draw_for_themselves(plus[name].chunk(2, dim), w[name].chunk(2, dim), LEVEL)


@pytest.mark.parametrize("way", WAYS)
def test_trains_like_a_whole_net_with_the_same_perturbations(ranks: Ranks, way: str) -> None:
    ranks(2, train_beside_whole_net, way)


def train_beside_whole_net(rank: int, way: str) -> None:
    net = cut_net(line())
    opt = perturbing(net)
    observer = Observer(net, opt, whole_net())
    for step in range(5):
        observed_step(way, opt, observer, vectors(samples=7, seed=step))  # the same batch on both ranks
        assert_gradients(net, observer.finish())
        for name, p in observer.replica.named_parameters():
            torch.testing.assert_close(gathered(net, opt)[name], p.detach(), rtol=1e-9, atol=1e-12)


def test_copies_stay_bitwise_alike(ranks: Ranks) -> None:
    ranks(2, train_many_steps)


def train_many_steps(rank: int) -> None:
    net = cut_net(line())
    opt = perturbing(net)
    for step in range(60):
        run_passes(opt, "points", net, *vectors(seed=step))
        opt.step()
        opt.zero_grad()
    copies = {"2.bias": net[2].bias.to_local(), "3.weight": net[3].weight, "4.weight": net[4].weight}
    assert_same_on_every_rank(copies)
    assert_same_on_every_rank({name: opt.state[net.get_parameter(name)]["momentum_buffer"] for name in ["4.weight"]})


@pytest.mark.parametrize("broken", ["0.weight", "2.bias", "4.weight"])
def test_both_ranks_skip_when_one_shard_is_not_finite(ranks: Ranks, broken: str) -> None:
    ranks(2, one_bad_shard, broken)


def one_bad_shard(rank: int, broken: str) -> None:
    net = cut_net(line())
    opt = perturbing(net, nonfinite="skip")
    before = gathered(net, opt)
    run_passes(opt, "points", net, *vectors())
    bad = net.get_parameter(broken).grad
    if rank == 1 or broken != "0.weight":  # of the others, every rank has computed the same
        (bad.to_local() if isinstance(bad, DTensor) else bad).view(-1)[0] = float("nan")
    opt.step()
    assert_bitwise(gathered(net, opt), before)


def test_a_backward_after_its_point_was_left_is_refused(ranks: Ranks) -> None:
    ranks(2, late_backward)


def late_backward(rank: int) -> None:
    """Of an ordinary weight torch itself would complain; of cut ones it does not notice the change."""
    net = cut_net(line())[:3]
    opt = perturbing(net)
    w = gathered(net, opt)
    x, y = vectors()
    with pytest.raises(RuntimeError, match=r"a backward\(\) ran after its point was left"):
        for point in opt.points():
            with point:
                loss = F.cross_entropy(net(x), y)
                loss.backward(retain_graph=True)
            loss.backward()
    assert_bitwise(gathered(net, opt), w)


def test_what_all_ranks_must_share_cannot_differ_by_rank(ranks: Ranks) -> None:
    ranks(2, refusals)


def refusals(rank: int) -> None:
    net = cut_net(line())
    for options in ({"per_rank": True}, {"mode": "mirror"}):
        with pytest.raises(ValueError, match="impossible here"):
            perturbing(net, **options)


def test_noise_by_filter_needs_whole_rows(ranks: Ranks) -> None:
    ranks(2, filters)


def filters(rank: int) -> None:
    net = cut_net(line())
    by_rows, by_columns = (RWP(SGD(layer.parameters(), lr=0.1), LEVEL, model=net) for layer in (net[0], net[2]))
    assert all(ratio > 0 for ratio in by_rows.realised_ratios())
    before = gathered(net[2], by_columns)
    with pytest.raises(ValueError, match="noise by filter needs whole rows"):
        by_columns.realised_ratios()
    assert_bitwise(gathered(net[2], by_columns), before)


# --- under FSDP2: a mesh of (data parallel, tensor parallel) --------------------------------------------------------


def grid_net() -> nn.Sequential:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    net = cut_net(mesh["tensor"])
    for layer in (net[0], net[2], net):
        fully_shard(layer, mesh=mesh["data"])
    return net


def test_under_fsdp_all_four_shards_have_noise_of_their_own(ranks: Ranks) -> None:
    ranks(4, noise_on_a_grid)


def noise_on_a_grid(rank: int) -> None:
    net = grid_net()
    opt = perturbing(net)
    w = gathered(net, opt)
    plus, _ = noise_inside(net, opt)
    for name, n in plus.items():
        if w[name].norm() > 0:
            assert abs(float(n.norm() / w[name].norm()) - LEVEL) < 1e-5, name
    assert_same_on_every_rank(plus)
    assert_shards_draw_for_themselves(plus["0.weight"].chunk(4), w["0.weight"].chunk(4), LEVEL)


@pytest.mark.parametrize("way", WAYS)
def test_under_fsdp_trains_like_a_whole_net(ranks: Ranks, way: str) -> None:
    ranks(4, train_on_a_grid, way)


def train_on_a_grid(rank: int, way: str) -> None:
    net = grid_net()
    opt = perturbing(net)
    observer = Observer(net, opt, whole_net())
    for step in range(5):
        observed_step(way, opt, observer, vectors(samples=7, seed=10 * step + rank // 2))
        assert_gradients(net, observer.finish())
    for name, p in observer.replica.named_parameters():
        torch.testing.assert_close(gathered(net, opt)[name], p.detach(), rtol=1e-9, atol=1e-12)


def test_under_fsdp_all_ranks_ask_the_others_in_the_same_order(ranks: Ranks) -> None:
    first, *others = ranks(4, order_of_reduces)
    assert {"data", "tensor"} <= set(first)
    assert others == [first] * 3  # or they could wait for each other for ever


def order_of_reduces(rank: int) -> list[str]:
    """The mesh dimension of every all-reduce of a step that looks for gradients that are not finite."""
    net = grid_net()
    opt = perturbing(net, nonfinite="skip")
    before = gathered(net, opt)
    run_passes(opt, "points", net, *vectors(seed=rank // 2))
    seen: list[str] = []

    def note(tensor: Tensor, group: dist.ProcessGroup) -> None:
        low, high = dist.get_process_group_ranks(group)
        seen.append("tensor" if high == low + 1 else "data")

    with patch.object(dist, "all_reduce", note):  # nothing is sent, so that no rank waits
        opt.step()
    assert any(not torch.equal(w, before[name]) for name, w in gathered(net, opt).items())
    return seen


def test_under_fsdp_noise_by_rank_is_refused(ranks: Ranks) -> None:
    ranks(4, refusals_on_a_grid)


def refusals_on_a_grid(rank: int) -> None:
    net = grid_net()
    for options in ({"per_rank": True}, {"mode": "mirror"}):
        with pytest.raises(ValueError, match="impossible here"):
            perturbing(net, **options)


def one_ordinary_weight(rank: int) -> None:
    net = cut_net(line())
    torch.manual_seed(rank)
    opt = SSGD(SGD(net.parameters(), lr=0.1), LEVEL, model=net, perturb=[net[4].weight])
    with next(opt.points()):
        assert_same_on_every_rank({"4.weight": net[4].weight.detach().clone()})


def test_noise_on_ordinary_weights_alone_is_the_same_on_every_rank(ranks: Ranks) -> None:
    ranks(2, one_ordinary_weight)
