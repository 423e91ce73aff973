"""Lightning's DDP and FSDP2 strategies: the steps of a loop written by hand, ranks alike, an exact resume."""

import os
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from ssgd import SSGD

from ..problems import mlp, vectors
from .by_hand import assert_bitwise, assert_same_on_every_rank, weights_of
from .spawn import Ranks

pytest.importorskip("lightning")
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy

from ssgd.integrations.lightning import SymmetricNoise

LEVEL, SEED, SIZE, EPOCHS = 0.3, 5, 6, 2


class Net(LightningModule):
    """``given``: an SSGD from configure_optimizers, with or without the module that Lightning has wrapped."""

    def __init__(self, given: str | None = None, shard: bool = False) -> None:
        super().__init__()
        self.net = mlp(torch.float32)
        self.given, self.shard = given, shard

    def configure_model(self) -> None:
        if self.shard and self.device_mesh is not None:
            shards(self.net, self.device_mesh["data_parallel"])
            self.shard = False  # Lightning may call this again

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        return F.cross_entropy(self.net(x), y)

    def configure_optimizers(self) -> Optimizer:
        base = momentum_sgd(self.net)
        if self.given is None:
            return base
        return SSGD(base, LEVEL, seed=SEED, model=self.trainer.model if self.given == "with model" else None)


def momentum_sgd(net: nn.Module) -> SGD:
    return SGD(net.parameters(), lr=0.1, momentum=0.9)


def shards(net: nn.Module, mesh: Any) -> None:
    fully_shard(net[0], mesh=mesh)  # type: ignore[index]
    fully_shard(net, mesh=mesh)


def loader(rank: int) -> DataLoader[Any]:
    return DataLoader(TensorDataset(*vectors(4 * SIZE, dtype=torch.float32, seed=rank)), SIZE)


def fit(rank: int, net: Net, *callbacks: Any, ckpt: Path | None = None, strategy: Strategy, **options: Any) -> None:
    with mock.patch.dict(os.environ, LOCAL_RANK=str(rank)):  # so that Lightning starts no processes
        trainer = Trainer(
            strategy=strategy,
            accelerator="cpu",
            devices=dist.get_world_size(),
            logger=False,
            enable_checkpointing=any(isinstance(c, ModelCheckpoint) for c in callbacks),
            enable_progress_bar=False,
            enable_model_summary=False,
            use_distributed_sampler=False,
            callbacks=list(callbacks),
            **{"max_epochs": EPOCHS, **options},
        )
        trainer.fit(net, loader(rank), ckpt_path=ckpt)


def by_hand(
    rank: int, net: nn.Module, model: nn.Module, accumulate: int = 1, clip: float | None = None, **options: Any
) -> None:
    opt = SSGD(momentum_sgd(net), LEVEL, seed=SEED, model=model, **options)
    for _ in range(EPOCHS):
        for i, (x, y) in enumerate(loader(rank), start=1):
            if isinstance(model, DistributedDataParallel):
                model.require_backward_grad_sync = i % accumulate == 0
            for point in opt.points():
                with point:
                    (F.cross_entropy(model(x), y) / accumulate).backward()
            if i % accumulate == 0:
                if clip is not None:
                    nn.utils.clip_grad_norm_(net.parameters(), clip)
                opt.step()
                opt.zero_grad()


# --- DDP --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [None, "with model", "without model"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_ddp_takes_the_steps_of_a_loop_and_ranks_stay_alike(ranks: Ranks, given: str | None, accumulate: int) -> None:
    ranks(2, ddp_steps, given, accumulate)


def ddp_steps(rank: int, given: str | None, accumulate: int) -> None:
    net, hand = Net(given), mlp(torch.float32)
    callback = SymmetricNoise(LEVEL, seed=SEED, excess_every=1) if given is None else SymmetricNoise()
    fit(rank, net, callback, strategy=DDPStrategy(), accumulate_grad_batches=accumulate, gradient_clip_val=0.05)
    by_hand(rank, hand, DistributedDataParallel(hand), accumulate, clip=0.05)
    assert_same_on_every_rank(weights_of(net.net))
    assert_bitwise(weights_of(net.net), weights_of(hand))


def test_ddp_with_a_closure_alone_and_with_mirrored_ranks(ranks: Ranks) -> None:
    ranks(2, ddp_variants)


def ddp_variants(rank: int) -> None:
    for given, callbacks, options in (
        ("with model", [], {}),
        (None, [SymmetricNoise(LEVEL, seed=SEED, mode="mirror")], {"mode": "mirror"}),
    ):
        net, hand = Net(given), mlp(torch.float32)
        fit(rank, net, *callbacks, strategy=DDPStrategy())
        by_hand(rank, hand, DistributedDataParallel(hand), **options)
        assert_bitwise(weights_of(net.net), weights_of(hand))


# --- FSDP2 ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "accumulate"), [(None, 1), (None, 2), ("with model", 1)])
def test_fsdp_takes_the_steps_of_a_loop(ranks: Ranks, given: str | None, accumulate: int) -> None:
    ranks(2, fsdp_steps, given, accumulate)


def fsdp_steps(rank: int, given: str | None, accumulate: int) -> None:
    net, hand = Net(given, shard=True), mlp(torch.float32)
    callbacks = [SymmetricNoise(LEVEL, seed=SEED, excess_every=1)] if given is None else []
    fit(rank, net, *callbacks, strategy=ModelParallelStrategy(2, 1), accumulate_grad_batches=accumulate)
    assert all(hasattr(p, "full_tensor") for p in net.net.parameters())
    shards(hand, init_device_mesh("cpu", (2,)))
    by_hand(rank, hand, hand, accumulate)
    assert_same_on_every_rank(weights_of(net.net))
    assert_bitwise(weights_of(net.net), weights_of(hand))


# --- resume -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["DDP", "FSDP2, one file", "FSDP2, a folder"])
def test_resume_is_bitwise(ranks: Ranks, kind: str, tmp_path: Path) -> None:
    ranks(2, resumed, kind, tmp_path)


def resumed(rank: int, kind: str, folder: Path) -> None:
    def part(seed: int, epochs: int, name: str, ckpt: Path | None = None) -> dict[str, Tensor]:
        net = Net(shard=kind != "DDP")
        torch.manual_seed(seed + rank)
        strategy = DDPStrategy()
        if kind != "DDP":
            strategy = ModelParallelStrategy(2, 1, save_distributed_checkpoint=kind == "FSDP2, a folder")
        saving = ModelCheckpoint(folder, filename=name)
        fit(rank, net, SymmetricNoise(LEVEL), saving, strategy=strategy, max_epochs=epochs, ckpt=ckpt)
        return weights_of(net.net)

    whole = part(1, 2, "whole")
    part(1, 1, "half")
    again = part(7, 2, "again", ckpt=folder / "half.ckpt")
    assert (folder / "half.ckpt").is_dir() == (kind == "FSDP2, a folder")
    assert_bitwise(again, whole)
