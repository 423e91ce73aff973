"""A net and its data as tasks of the analysis."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from ...analysis.task import Task, samples
from .kinds import kind_of
from .recipe import Recipe

LARGE = 5000  # small images in a batch


def tasks_of(net: nn.Module, source: Any, recipe: Recipe, large: bool = False, decode: bool = False) -> dict[str, Task]:
    """Returns the ``"train"`` and the ``"test"`` task of a net and a data source.

    Samples are images, words or utterances: of a text the loss is that of a word, the log of its perplexity, and the
    error that of the likeliest next word. Utterances have no error, unless they are to be decoded.

    Batch-norm's statistics are to be gathered from the training images as the training augmented them: those of whole
    images would cost a net that was trained on moved ones points of accuracy.

    Args:
        large: take larger batches of small images on a GPU, which has room for them where nothing is differentiated.
        decode: let the error of utterances be that of their words, by greedy decoding, which waits for the device.
    """
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

    parts: dict[str, Callable[..., Iterator[Any]]] = {"train": source.clean_train_batches, "test": source.test_batches}
    at_once = recipe.batch
    on_gpu = next(net.parameters()).is_cuda
    if large and on_gpu and source.kind == "images" and _small(*next(iter(source.test_batches(1)))):
        parts, at_once = {name: partial(batches, LARGE) for name, batches in parts.items()}, LARGE
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


class Again(Iterable[Any]):
    """The batches of a function, from the beginning each time."""

    def __init__(self, batches: Callable[..., Iterator[Any]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._batches())
