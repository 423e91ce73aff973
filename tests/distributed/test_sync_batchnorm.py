"""Batch-norm over the batch of all ranks. torch has it on GPUs only: here its forward pass is ours."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ssgd.lab.train import Recipe
from ssgd.lab.train.distributed import total

from .by_hand import Weights, assert_bitwise
from .spawn import Ranks
from .test_train import RECIPE, assert_close, assert_metrics_close, trained


class MeanOverRanks(torch.autograd.Function):
    """All ranks' losses depend on it, and DDP and FSDP take their mean."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return total(tensor) / dist.get_world_size()

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Tensor:
        return total(slope) / dist.get_world_size()


def over_all_ranks(self: nn.SyncBatchNorm, x: Tensor) -> Tensor:
    """What torch's SyncBatchNorm does, in terms that the CPU has. Ranks have equal parts of the batch."""
    if not self.training:
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps)
    mean = MeanOverRanks.apply(x.mean((0, 2, 3), keepdim=True))
    variance = MeanOverRanks.apply((x - mean).square().mean((0, 2, 3), keepdim=True))
    samples = dist.get_world_size() * x.numel() // x.shape[1]
    assert self.num_batches_tracked is not None, "torch's own says so"
    with torch.no_grad():
        self.num_batches_tracked += 1
        share = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.flatten(), share)
        self.running_var.lerp_(variance.flatten() * samples / (samples - 1), share)
    normal = (x - mean) / (variance + self.eps).sqrt()
    return normal * self.weight[:, None, None] + self.bias[:, None, None]


def synchronised(rank: int, recipe: Recipe, out: Path) -> Weights:
    ours = mock.patch.object(nn.SyncBatchNorm, "forward", over_all_ranks)
    allowed = mock.patch.object(DistributedDataParallel, "_passing_sync_batchnorm_handle")  # asks for GPUs
    with ours, allowed:
        return trained(rank, replace(recipe, sync_batchnorm=True), out)


@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
def test_synchronised_batch_norm_ends_as_one_process_does(ranks: Ranks, tmp_path: Path, parallel: str) -> None:
    """Running statistics and metrics too, where batch-norm by rank ends elsewhere."""
    recipe = replace(RECIPE, model="small-cnn", batch=32, train_limit=64, lr=(0.02, 0.01), parallel=parallel)
    (alone,) = ranks(1, trained, recipe, tmp_path / "1")
    first, second = ranks(2, synchronised, recipe, tmp_path / "2")
    assert_close(first, alone)
    assert_metrics_close(tmp_path / "2", tmp_path / "1")
    assert_bitwise(second, first)
    by_rank, _ = ranks(2, trained, recipe, tmp_path / "by rank")
    assert max((by_rank[name] - alone[name]).abs().max() for name in alone) > 1e-2


def test_torch_still_has_none_on_the_cpu(ranks: Ranks) -> None:
    """Which is why recipes refuse it there."""
    ranks(1, refused_by_torch)


def refused_by_torch(rank: int) -> None:
    with pytest.raises(ValueError, match="SyncBatchNorm expected input tensor to be on GPU"):
        nn.SyncBatchNorm(3)(torch.randn(2, 3, 4, 4))
