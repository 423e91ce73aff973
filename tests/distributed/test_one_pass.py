"""one_pass() under DistributedDataParallel: exact, one reduction a step, and weights left out alike on every rank."""

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD

from ssgd import SSGD, Unserved

from ..problems import mlp, vectors
from .by_hand import assert_same_on_every_rank
from .spawn import Ranks


def test_gradients_are_those_of_split(ranks: Ranks) -> None:
    ranks(2, compare_with_split)


def compare_with_split(rank: int) -> None:
    reductions = []

    def count(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        reductions.append(1)
        return allreduce_hook(None, bucket)

    x, y = vectors(7, seed=rank)
    nets = [DistributedDataParallel(mlp(), gradient_as_bucket_view=view) for view in (False, True)]
    nets[0].register_comm_hook(None, count)
    one, split = (SSGD(SGD(net.parameters(), lr=0.1), 0.3, model=net, seed=5) for net in nets)
    for _ in range(3):
        with one.one_pass():
            F.cross_entropy(nets[0](x), y).backward()
        for point, (a, b) in split.split(x, y):
            with point:
                F.cross_entropy(nets[1](a), b).backward()
        for opt in (one, split):
            opt.step()
            opt.zero_grad()
    assert len(reductions) == 3
    assert_same_on_every_rank(dict(nets[0].named_parameters()))
    for a, b in zip(nets[0].parameters(), nets[1].parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-9, atol=1e-12)


def test_all_ranks_leave_out_the_same(ranks: Ranks) -> None:
    ranks(2, leave_out)


class Uneven(nn.Module):
    """Rank 0 uses a weight in a way that is not served."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank, self.a, self.b = rank, nn.Linear(5, 8).double(), nn.Linear(8, 3).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.a.weight.data if self.rank == 0 else self.a.weight
        y: torch.Tensor = self.b(F.linear(x, w + 0 * self.a.weight) + self.a.bias)
        return y


def leave_out(rank: int) -> None:
    net = DistributedDataParallel(Uneven(rank))
    opt = SSGD(SGD(net.parameters(), lr=0.1), 0.3, model=net, seed=5)
    x, y = vectors()
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        with opt.one_pass():
            F.cross_entropy(net(x), y).backward()
    assert [str(w.message).startswith("a.weight: without noise") for w in found] == [True]
    assert opt.param_groups[0]["without_noise"] == ["a.weight"]


def test_sharded_weights_are_refused_with_the_remedy(ranks: Ranks) -> None:
    ranks(2, refuse_shards)


def refuse_shards(rank: int) -> None:
    net = mlp()
    fully_shard(net)
    opt = SSGD(SGD(net.parameters(), lr=0.1), 0.3, model=net, seed=5)
    with pytest.raises(Unserved, match=r"a sharded weight \(FSDP2.*use points\(\) or split\(\)"), opt.one_pass():
        pass
