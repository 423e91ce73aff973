"""How good weights are: a run's own or their average, and those of any net as tasks of the analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...core.batchnorm import recompute_bn, tracking_layers
from ...methods.averaging import Averaging
from ..data.images import DeviceImages
from .distributed import Ranks, in_step, same_buffers, total
from .kinds import kind_of
from .recipe import Recipe
from .steps import GraphOf

if TYPE_CHECKING:
    from ...analysis.task import Task
    from .running import Run

IMAGES_FOR_BN = 20_000


def evaluate(run: Run, part: str, recompute: bool = False) -> dict[str, float]:
    """Measures a run on a part of its data; ``recompute`` gathers batch-norm's statistics again for this once."""
    ranks = run.ranks
    batches = partial(run.source.in_order, part)
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

    with run.on_stream(), _evaluated_net(run, recompute=False) as net:
        tasks = tasks_of(net, run.source, run.recipe, forward_only=True, decode=True)
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
        run.test_graph = GraphOf(lambda: run.kind.count(run.net, run.source.in_order("test"), run.autocast, run.device))
    return run.test_graph()


def _spare_pass(run: Run, net: nn.Module, batch: tuple[Tensor, ...]) -> None:
    """A pass without a result, for ranks whose batches have ended before those of others."""
    with run.autocast():
        net(*batch[: run.kind.inputs])


# --- tasks of the analysis --------------------------------------------------------------------------------------------


AT_ONCE = {"cuda": 5000, "cpu": 100}  # small images in a batch that is only passed forward


def tasks_of(
    net: nn.Module, source: Any, recipe: Recipe, forward_only: bool = False, decode: bool = False
) -> dict[str, Task]:
    """Returns the ``"train"`` and the ``"test"`` task of a net and a data source.

    Samples are images, words or utterances: of a text the loss is that of a word, the log of its perplexity, and the
    error that of the likeliest next word. Utterances have no error, unless they are to be decoded.

    Batch-norm's statistics are to be gathered from the training images as the training augmented them: those of whole
    images would cost a net that was trained on moved ones points of accuracy.

    Args:
        forward_only: where nothing is differentiated, take small images in batches of the fastest size: on a GPU large
            ones, for which there is room then, on a CPU such that the cache holds what a layer makes of them.
        decode: let the error of utterances be that of their words, by greedy decoding, which waits for the device.
    """
    from ...analysis.task import Again, Task, samples

    kind = kind_of(source)
    objective, words = kind.objective, source.kind == "language"

    def reset(batch: tuple[Tensor, ...]) -> None:
        if hasattr(net, "reset"):  # a text is taken a batch at a time, each from the beginning
            net.reset(len(batch[0]))  # type: ignore[operator]

    def both(model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        reset(batch)
        loss, (_, right, count) = objective(model, *batch)
        return (loss / batch[0].shape[1] if words else loss), count - right  # a text's objective is that of a row

    def loss(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return both(model, batch)[0]

    def logits(model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        reset(batch)
        scores = model(batch[0]).float()
        return (scores.flatten(0, 1), batch[1].flatten()) if words else (scores, batch[1])

    def decoded(model: nn.Module, batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        loss, utterances, _, _, wrong, _ = kind.count(model, [batch], nullcontext, batch[0].device)
        return loss / utterances, wrong

    def spoken(batch: tuple[Tensor, ...]) -> int:
        texts = zip(batch[2].tolist(), batch[3].tolist(), strict=True)
        return sum(len(source.alphabet.decoded(text[:length]).split()) for text, length in texts)

    parts: dict[str, Callable[..., Iterator[Any]]] = {
        part: partial(source.in_order, part) for part in ("train", "test")
    }
    at_once, device = recipe.batch, next(net.parameters()).device.type
    if forward_only and source.kind == "images" and _small(*next(iter(source.in_order("test", 1)))):
        parts = {name: partial(batches, AT_ONCE[device]) for name, batches in parts.items()}
        at_once = AT_ONCE[device] if device == "cuda" else at_once
    answers: dict[str, Any] = {"loss_and_wrong": both, "logits": logits}
    if source.kind == "speech":
        answers = {"loss_and_wrong": decoded, "answers": spoken} if decode else {}
    size = _words if words else samples
    made = {name: Task(net, loss, Again(batches), size, **answers) for name, batches in parts.items()}
    if source.kind == "images" and recipe.augment:
        made["train"] = replace(made["train"], as_trained=Again(partial(_as_trained, source, recipe.seeds[0], at_once)))
    return made


def judged_by_test(tasks: dict[str, Task]) -> Task:
    """Returns the test task, whose statistics of batch-norm are to be gathered from the training data."""
    train = tasks["train"]
    return replace(tasks["test"], as_trained=train.batches if train.as_trained is None else train.as_trained)


def _as_trained(source: Any, seed: int, size: int) -> Iterator[Any]:
    """Yields the training images of an epoch, in whole batches."""
    size, epoch = min(size, source.steps(1)), source.epoch(seed, 0)
    return (epoch.batch(step, size) for step in range(source.steps(size)))


def _words(batch: tuple[Tensor, ...]) -> int:
    return batch[0].numel()


def _small(images: Tensor, *_: Tensor) -> bool:
    return images.shape[-1] <= 32
