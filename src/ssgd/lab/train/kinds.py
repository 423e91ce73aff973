"""Kinds of learning: the loss of a batch, and what is measured over a part of the data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Autocast = Callable[[], AbstractContextManager[None]]
Batches = Iterable[tuple[Tensor, ...]]
Objective = Callable[..., tuple[Tensor, Tensor]]
FIGURES = {"accuracy": " %", "perplexity": "", "wer": " %", "cer": " %"}  # with their units


class Kind(ABC):
    """A kind of learning."""

    samples: ClassVar[str]  # the word for what a batch is made of
    compiles: ClassVar[bool]  # whether torch.compile may have the objective
    captures: ClassVar[bool]  # whether batches come in one shape or a few, so that a CUDA graph can hold a step
    inputs: ClassVar[int] = 1  # how many of a batch's tensors go into the net
    every_epoch: ClassVar[tuple[str, ...]]  # the parts of the data that are evaluated after each epoch
    at_the_end: ClassVar[tuple[str, ...]] = ()  # and those that are evaluated for the result
    counted: ClassVar[int]  # how many sums measure() returns

    @abstractmethod
    def objective(self, model: Any, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the loss, and three sums over the batch: loss, right answers, and what both are divided by."""

    @abstractmethod
    def progress(self, sums: list[float]) -> dict[str, float]:
        """Returns an epoch's means over its passes, from the objective's sums."""

    @abstractmethod
    def measure(self, net: nn.Module, *batch: Tensor) -> Tensor:
        """Returns sums over a batch, of a net in eval mode."""

    @abstractmethod
    def summary(self, sums: list[float], part: str, classes: int) -> dict[str, float]:
        """Returns what measure()'s sums over a part mean, by names that begin with that of the part."""

    def count(self, net: nn.Module, batches: Batches, autocast: Autocast, device: torch.device) -> Tensor:
        """Returns measure()'s sums over a part of the data; what the net remembers begins at zero and is carried on."""
        sums = torch.zeros(self.counted, dtype=torch.float64, device=device)
        with evaluation_mode(net):
            for i, batch in enumerate(batches):
                if i == 0 and hasattr(net, "reset"):
                    net.reset(len(batch[0]))  # type: ignore[operator]
                with autocast():
                    sums += self.measure(net, *batch).double()
        return sums


class Images(Kind):
    """Classification of images."""

    samples = "images"
    compiles = captures = True
    every_epoch, at_the_end = ("test",), ("train",)
    counted = 4

    @staticmethod  # a function, so that all runs share what torch.compile makes of it
    def objective(model: Any, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean loss; and summed over the images: loss, right answers, images."""
        x, y = batch
        logits = model(x).float()
        loss = F.cross_entropy(logits, y)
        right = (logits.detach().argmax(1) == y).sum()
        return loss, torch.stack([loss.detach() * len(y), right.to(loss), torch.full_like(loss.detach(), len(y))])

    def progress(self, sums: list[float]) -> dict[str, float]:
        loss, right, images = sums
        return {"loss": loss / images, "accuracy": 100 * right / images}

    def measure(self, net: nn.Module, *batch: Tensor) -> Tensor:
        """Sums loss, right answers, right ones among the first five, and images."""
        x, y = batch
        logits = net(x).float()
        best = logits.topk(min(5, logits.shape[1])).indices == y[:, None]
        loss = F.cross_entropy(logits, y, reduction="sum")
        return torch.stack([loss, best[:, 0].sum(), best.sum(), torch.ones_like(y).sum()])

    def summary(self, sums: list[float], part: str, classes: int) -> dict[str, float]:
        """Returns the mean loss, and accuracies in percent."""
        loss, right, among_five, images = sums
        found = {f"{part}_loss": loss / images, f"{part}_accuracy": 100 * right / images}
        if classes > 5:
            found[f"{part}_top5_accuracy"] = 100 * among_five / images
        return found


class Language(Kind):
    """Prediction of the next word of a text."""

    samples = "rows"
    compiles = False  # cuDNN's LSTM is faster as it is
    captures = True
    every_epoch = ("valid", "test")
    counted = 2

    def objective(self, model: Any, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the loss, summed over time and averaged over the batch as Zaremba has it; and sums over the words."""
        x, y = batch
        logits = model(x).float().flatten(0, 1)
        loss = F.cross_entropy(logits, y.flatten(), reduction="sum")
        right = (logits.detach().argmax(1) == y.flatten()).sum()
        counted = torch.stack([loss.detach(), right.to(loss), torch.full_like(loss.detach(), y.numel())])
        return loss / len(y), counted

    def progress(self, sums: list[float]) -> dict[str, float]:
        loss, right, words = sums
        return {"loss": loss / words, "accuracy": 100 * right / words, "perplexity": _perplexity(loss / words)}

    def measure(self, net: nn.Module, *batch: Tensor) -> Tensor:
        """Sums loss and words."""
        x, y = batch
        loss = F.cross_entropy(net(x).float().flatten(0, 1), y.flatten(), reduction="sum")
        return torch.stack([loss, torch.full_like(loss, y.numel())])

    def summary(self, sums: list[float], part: str, classes: int) -> dict[str, float]:
        """Returns the mean loss, in nats and in bits, and the perplexity."""
        loss, words = sums
        mean = loss / words
        return {f"{part}_loss": mean, f"{part}_bits": mean / math.log(2), f"{part}_perplexity": _perplexity(mean)}


class Speech(Kind):
    """Recognition of speech by CTC; texts come from greedy decoding."""

    samples = "utterances"
    compiles = False  # batches have several lengths
    captures = find_spec("triton") is not None  # our CTC, on CUDA: torch's cannot be captured
    inputs = 2
    every_epoch = ("valid", "test")
    counted = 6

    def __init__(self, alphabet: Any) -> None:
        self.alphabet = alphabet

    def objective(self, model: Any, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the mean loss of an utterance; and summed over them: loss, nothing, utterances."""
        from ..data.speech import ctc_objective

        loss = ctc_objective(model, *batch)
        count = torch.full_like(loss.detach(), len(batch[0]))
        return loss, torch.stack([loss.detach() * count, torch.zeros_like(count), count])

    def progress(self, sums: list[float]) -> dict[str, float]:
        return {"loss": sums[0] / sums[2]}

    def measure(self, net: nn.Module, *batch: Tensor) -> Tensor:
        """Sums loss, utterances, wrong characters, characters, wrong words, and words."""
        from ..data.speech import character_errors, greedy, word_errors
        from ..data.speech.ctc import ctc_loss

        features, lengths, targets, target_lengths = batch
        log_probs, frames = net(features, lengths)
        loss = ctc_loss(log_probs, frames, targets, target_lengths)
        said = [t[:n] for t, n in zip(targets.tolist(), target_lengths.tolist(), strict=True)]
        references = [self.alphabet.decoded(numbers) for numbers in said]
        heard = [self.alphabet.decoded(numbers) for numbers in greedy(log_probs, frames)]
        errors = *character_errors(references, heard), *word_errors(references, heard)
        return torch.tensor([loss.item() * len(features), len(features), *errors], device=loss.device)

    def summary(self, sums: list[float], part: str, classes: int) -> dict[str, float]:
        """Returns the mean loss, and error rates in percent."""
        loss, utterances, wrong_characters, characters, wrong_words, words = sums
        return {
            f"{part}_loss": loss / utterances,
            f"{part}_cer": 100 * wrong_characters / characters,
            f"{part}_wer": 100 * wrong_words / words,
        }


def kind_of(source: Any) -> Kind:
    """Returns the kind of learning that a data source is for."""
    if source.kind == "speech":
        return Speech(source.alphabet)
    return Images() if source.kind == "images" else Language()


@contextmanager
def evaluation_mode(net: nn.Module) -> Iterator[None]:
    """Puts the net in eval mode, without gradients; afterwards every module is in the mode it was in."""
    modes = {module: module.training for module in net.modules()}
    net.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def figure(row: Mapping[str, Any], part: str = "test") -> float | None:
    """Returns the one number that a result or an epoch is known by, or None where that part was not evaluated."""
    found = (row.get(f"{part}_{name}") for name in FIGURES)
    return next((value for value in found if value is not None), None)


def figure_in_words(row: Mapping[str, Any], part: str = "test") -> str | None:
    """Returns the same with its name and unit."""
    for name, unit in FIGURES.items():
        if (value := row.get(f"{part}_{name}")) is not None:
            return f"{name} {value:.2f}{unit}"
    return None


def _perplexity(loss: float) -> float:
    return math.exp(min(loss, 700))
