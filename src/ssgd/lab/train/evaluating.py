"""How good a run's weights are: clean or averaged, with batch-norm's statistics as they are or gathered again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...core.batchnorm import recompute_bn, tracking_layers
from ...methods.averaging import Averaging
from ..data.images import DeviceImages
from .distributed import Ranks, in_step, same_buffers, total
from .faster import GraphOf

if TYPE_CHECKING:
    from .running import Run

IMAGES_FOR_BN = 20_000
BATCHES = {"train": "clean_train_batches", "valid": "valid_batches", "test": "test_batches"}


def evaluate(run: Run, part: str, recompute: bool = False) -> dict[str, float]:
    """Measures a run on a part of its data; ``recompute`` gathers batch-norm's statistics again for this once."""
    ranks = run.ranks
    batches: Callable[..., Iterator[tuple[Tensor, ...]]] = getattr(run.source, BATCHES[part])
    with run.on_stream(), _evaluated_net(run, recompute) as net:
        mine = batches(rank=ranks.rank, ranks=ranks.count)
        if run.sharded:
            mine = in_step(mine, lambda: _spare_pass(run, net, next(batches(size=1))), ranks, run.device)
        if part == "test" and net is run.net and run.graph and isinstance(run.source, DeviceImages):
            sums = _by_graph(run)
        else:
            sums = run.kind.count(net, mine, run.autocast, run.device)
        sums = total(sums) if ranks.several else sums
        return run.kind.summary(sums.tolist(), part, run.source.classes)


def with_recomputed_bn(run: Run) -> dict[str, float]:
    """The test accuracy if batch-norm's statistics, which were gathered under noise, are gathered again.

    Nothing where there are none, or where every evaluation does so.
    """
    if run.source.kind != "images" or not tracking_layers(run.net) or always_recomputes(run):
        return {}
    return {"test_accuracy_recomputed_bn": evaluate(run, "test", recompute=True)["test_accuracy"]}


def tolerance_figures(run: Run) -> dict[str, Any]:
    """The figures of the weights under damage, where the recipe asks for them and every process has all weights."""
    if not run.recipe.tolerance or run.sharded:
        return {}
    from ...analysis.tolerance import tolerance_of
    from .tasks import judged_by_test, tasks_of

    with run.on_stream(), _evaluated_net(run, recompute=False) as net:
        tasks = tasks_of(net, run.source, run.recipe, large=True, decode=True)
        return {"tolerance": tolerance_of(judged_by_test(tasks), draws=10)}


def averaged_net(run: Run) -> nn.Module | None:
    """The net with the mean of the weights, of the methods that take one."""
    opt = run.opt
    return opt.averaged.module if isinstance(opt, Averaging) and opt.averaged.n_averaged > 0 else None


def always_recomputes(run: Run) -> bool:
    """Whether every evaluation gathers batch-norm's statistics again; those of the last one stay in the net."""
    return run.recipe.recompute_bn or averaged_net(run) is not None


@contextmanager
def _evaluated_net(run: Run, recompute: bool) -> Iterator[nn.Module]:
    """The net with clean weights, or their average; running statistics of rank 0, or recomputed."""
    average = averaged_net(run)
    net = run.net if average is None else average
    always = always_recomputes(run)
    recompute = always or recompute
    kept = [buffer.clone() for buffer in net.buffers()] if recompute else []
    if recompute:
        run.seed_layers()
        with run.autocast():
            recompute_bn(net, _batches_for_bn(run))
    if run.ranks.several:
        same_buffers(net)
    try:
        yield net
    finally:
        if recompute and not (always and run.done):
            with torch.no_grad():
                for buffer, value in zip(net.buffers(), kept, strict=True):
                    buffer.copy_(value)


def _batches_for_bn(run: Run) -> Iterator[Tensor]:
    """Augmented images of the epoch just trained, the same on all ranks."""
    size = run.recipe.batch
    for step in range(max(1, min(run.steps, IMAGES_FOR_BN // size))):
        yield run.part_of_batch(run.epoch - 1, step, size, Ranks())[0]


def _by_graph(run: Run) -> Tensor:
    """The sums over the test images, from a graph: they are asked for after every epoch."""
    if run.test_graph is None:
        run.test_graph = GraphOf(lambda: run.kind.count(run.net, run.source.test_batches(), run.autocast, run.device))
    return run.test_graph()


def _spare_pass(run: Run, net: nn.Module, batch: tuple[Tensor, ...]) -> None:
    """A pass without a result, for ranks whose batches have ended before those of others."""
    with run.autocast():
        net(*batch[: run.kind.inputs])
