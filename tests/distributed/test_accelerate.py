"""S-SGD through Accelerate and Hugging Face's Trainer over two processes is the loop by hand over two processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from ssgd import SSGD

from ..problems import mlp, vectors
from .by_hand import Weights, assert_bitwise, assert_same_on_every_rank, weights_of
from .spawn import Ranks

pytest.importorskip("accelerate", reason="accelerate is missing: pip install 'ssgd[accelerate]'")

ACCUMULATED = 2


def environment(rank: int) -> Any:
    """What torchrun would set, and nothing else afterwards."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "OMP_NUM_THREADS": 1}
    return patch.dict(os.environ, {name: str(number) for name, number in numbers.items()})


@contextmanager
def accelerated(rank: int, sharded: bool) -> Iterator[Any]:
    """An Accelerator over the processes of the test. It takes FSDP2 for a thing of GPUs, and must be told otherwise."""
    from accelerate import Accelerator, DistributedType, FullyShardedDataParallelPlugin
    from accelerate.state import AcceleratorState, GradientState, PartialState

    with environment(rank):
        try:
            plugin = FullyShardedDataParallelPlugin(fsdp_version=2) if sharded else None
            accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED, fsdp_plugin=plugin)
            if sharded:
                PartialState._shared_state["distributed_type"] = DistributedType.FSDP
                accelerator.state.distributed_type = DistributedType.FSDP
                accelerator.state.fsdp_plugin = plugin
            yield accelerator
        finally:
            AcceleratorState._reset_state(reset_partial_state=True)
            GradientState._reset_state()


def loader() -> DataLoader[Any]:
    return DataLoader(TensorDataset(*vectors(40)), batch_size=5)


def passes(opt: Any, way: str, model: nn.Module, backward: Any, x: Any, y: Any) -> None:
    if way == "points":
        for point in opt.points():
            with point:
                backward(F.cross_entropy(model(x), y))
    else:
        for point, (xb, yb) in opt.split(x, y):
            with point:
                backward(F.cross_entropy(model(xb), yb))


def through_accelerate(rank: int, sharded: bool, way: str, folder: str) -> None:
    from ssgd.integrations.accelerate import prepare

    def epoch() -> None:
        for x, y in batches:
            with accelerator.accumulate(model):
                passes(opt, way, model, accelerator.backward, x, y)
                opt.step()
                opt.zero_grad()

    with accelerated(rank, sharded) as accelerator:
        net = mlp()
        torch.manual_seed(rank)  # whatever the ranks' seeds, they agree on one
        built = SSGD(SGD(net.parameters(), lr=0.1, momentum=0.9), 0.3)
        model, opt, batches = prepare(accelerator, net, built, loader())
        epoch()
        assert_same_on_every_rank(weights_of(model))
        found = {name.removeprefix("module."): w for name, w in weights_of(model).items()}
        for name, expected in by_hand(rank, sharded, way).items():
            torch.testing.assert_close(found[name], expected, rtol=1e-9, atol=1e-12)

        accelerator.save_state(folder)
        epoch()
        whole = weights_of(model)
        accelerator.load_state(folder)
        epoch()
        assert_bitwise(weights_of(model), whole)


def by_hand(rank: int, sharded: bool, way: str) -> Weights:
    """Each rank its own batches, as Accelerate deals them out; all ranks the noise of rank 0's seed."""
    net = mlp()
    model = fully_shard(net) if sharded else DistributedDataParallel(net)
    opt = SSGD(SGD(net.parameters(), lr=0.1, momentum=0.9), 0.3, model=model, seed=0)
    for i, (x, y) in enumerate(list(loader())[rank::2], start=1):
        last = i % ACCUMULATED == 0
        with nullcontext() if last or sharded else model.no_sync():
            passes(opt, way, model, lambda loss: (loss / ACCUMULATED).backward(), x, y)
        if last:
            opt.step()
            opt.zero_grad()
    return weights_of(net)


@pytest.mark.parametrize("way", ["points", "split"])
@pytest.mark.parametrize("sharded", [False, True], ids=["ddp", "fsdp2"])
def test_accelerate(ranks: Ranks, sharded: bool, way: str, tmp_path: Any) -> None:
    ranks(2, through_accelerate, sharded, way, str(tmp_path))


def without_being_told(rank: int) -> None:
    with accelerated(rank, sharded=True) as accelerator:
        net = mlp()
        _, opt = accelerator.prepare(net, SSGD(SGD(net.parameters(), lr=0.1), 0.3))
        with pytest.raises(ValueError, match=r"call attach\(model\)"):
            next(opt.optimizer.points())


def test_sharded_weights_whose_module_is_unknown_are_refused(ranks: Ranks) -> None:
    ranks(2, without_being_told)


def a_choice_of_tensors(rank: int) -> None:
    from ssgd.integrations.accelerate import prepare

    with accelerated(rank, sharded=True) as accelerator:
        net = mlp()
        chosen = SSGD(SGD(net.parameters(), lr=0.1), 0.3, perturb=[net[0].weight])
        with pytest.raises(ValueError, match="perturb names a tensor that is in none"):
            prepare(accelerator, net, chosen)


def test_a_choice_of_tensors_that_sharding_has_replaced_is_refused(ranks: Ranks) -> None:
    ranks(2, a_choice_of_tensors)


def mirrored(rank: int) -> list[int]:
    from ssgd.integrations.accelerate import prepare

    with accelerated(rank, sharded=False) as accelerator:
        model = accelerator.prepare(mlp())
        opt = prepare(accelerator, SSGD(SGD(model.parameters(), lr=0.1), 0.3, model=model, mode="mirror"))
        signs = []
        for point in opt.points():
            with point:
                accelerator.backward(F.cross_entropy(model(vectors()[0]), vectors()[1]))
                signs.append(point.sign)
        opt.step()
        assert_same_on_every_rank(weights_of(model))
        return signs


def test_mirror(ranks: Ranks) -> None:
    assert ranks(2, mirrored) == [[1], [-1]]


# --- Trainer ----------------------------------------------------------------------------------------------------------


def through_trainer(rank: int, way: str, folder: str) -> None:
    from ..test_transformers import logged, trained

    with environment(rank):
        options = {
            "settings": {"noise": 0.3, "split": way == "split"},
            "gradient_accumulation_steps": 2,
            "save_strategy": "steps",
            "save_steps": 2,
            "max_steps": 3,
            "ddp_backend": "gloo",
        }
        whole = trained(folder, **options)
        assert isinstance(whole.model_wrapped, DistributedDataParallel)
        assert whole.optimizer.optimizer.model is whole.model_wrapped
        assert_same_on_every_rank(weights_of(whole.model))
        plus, minus, loss = (logged(whole, key) for key in ("loss_plus", "loss_minus", "loss"))
        assert [(p + m) / 2 for p, m in zip(plus, minus, strict=True)] == pytest.approx(loss, rel=1e-5)
        resumed = trained(folder, resume=f"{folder}/checkpoint-2", **options)
        assert_bitwise(weights_of(resumed.model), weights_of(whole.model))


@pytest.mark.parametrize("way", ["points", "split"])
def test_trainer(ranks: Ranks, way: str, tmp_path: Any) -> None:
    pytest.importorskip("transformers", reason="transformers is missing: pip install 'ssgd[transformers]'")
    ranks(2, through_trainer, way, str(tmp_path))
