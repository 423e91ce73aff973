"""Speech recognition with CTC: the loss of a batch of utterances, and character and word error rates."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from ..data.speech import SpeechSource, character_errors, ctc_objective, greedy, word_errors
from ..data.speech.ctc import ctc_loss
from .kinds import Autocast, Batches, judging


def of(source: SpeechSource) -> Speech:
    """The kind for this source's alphabet."""
    return Speech(source)


class Speech:
    """Utterances in, texts out by greedy decoding."""

    COMPILES = False  # batches have several lengths
    CAPTURES = find_spec("triton") is not None  # our CTC, on CUDA: torch's cannot be captured
    INPUTS = 2
    EVERY_EPOCH = ("valid", "test")
    AT_THE_END = ()

    def __init__(self, source: SpeechSource) -> None:
        self.alphabet = source.alphabet

    def objective(self, model: Any, *batch: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss of an utterance; and summed over them: loss, nothing, utterances."""
        loss = ctc_objective(model, *batch)
        count = torch.full_like(loss.detach(), len(batch[0]))
        return loss, torch.stack([loss.detach() * count, torch.zeros_like(count), count])

    def progress(self, sums: list[float]) -> dict[str, float]:
        """An epoch's mean over its passes."""
        return {"loss": sums[0] / sums[2]}

    def count(self, net: nn.Module, batches: Batches, autocast: Autocast, device: torch.device) -> Tensor:
        """Sums over all utterances: loss, utterances, wrong characters, characters, wrong words, words."""
        sums = torch.zeros(6, dtype=torch.float64, device=device)
        with judging(net):
            for features, lengths, targets, target_lengths in batches:
                with autocast():
                    log_probs, frames = net(features, lengths)
                    loss = ctc_loss(log_probs, frames, targets, target_lengths)
                said = [t[:n] for t, n in zip(targets.tolist(), target_lengths.tolist(), strict=True)]
                references = [self.alphabet.decoded(numbers) for numbers in said]
                heard = [self.alphabet.decoded(numbers) for numbers in greedy(log_probs, frames)]
                errors = *character_errors(references, heard), *word_errors(references, heard)
                sums += torch.tensor([loss.item() * len(features), len(features), *errors], device=device)
        return sums

    def summary(self, sums: list[float], part: str, classes: int) -> dict[str, float]:
        """Mean loss, and error rates in percent."""
        loss, utterances, wrong_characters, characters, wrong_words, words = sums
        return {
            f"{part}_loss": loss / utterances,
            f"{part}_cer": 100 * wrong_characters / characters,
            f"{part}_wer": 100 * wrong_words / words,
        }
