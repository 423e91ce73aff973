"""Connectionist temporal classification: transcripts as numbers, the loss, decoding, and error rates."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....kernels import has_kernels
from ..faults import Unusable

CHARACTERS = " 'ABCDEFGHIJKLMNOPQRSTUVWXYZ"
Prefix = tuple[int, ...]
Scorer = Callable[[Prefix, int], float]  # what a prefix gains, in nats, by going on with a character
NEVER = -math.inf
UNLIKELY = -14.0  # log-probability under which a character is not tried at a frame


def ctc_objective(
    model: nn.Module, features: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor
) -> Tensor:
    """Returns the negative log-likelihood of a batch's transcripts, in nats, as a mean over utterances.

    A transcript that its frames cannot emit counts as zero and has no gradient. On CUDA without Triton the backward
    pass is torch's, which adds in an order of its own: two runs differ in the last bits.
    """
    log_probs, frames = model(features, lengths)
    return ctc_loss(log_probs, frames, targets, target_lengths)


def ctc_loss(log_probs: Tensor, frames: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
    """Returns the same for log-probabilities (T, B, C) that the model has returned."""
    if log_probs.is_cuda and has_kernels(log_probs.device):
        from ....kernels.ctc import ctc_losses

        return ctc_losses(log_probs, targets, frames, target_lengths).mean()
    losses = F.ctc_loss(log_probs, targets, frames, target_lengths, reduction="none", zero_infinity=True)
    return losses.mean()


def frames_needed(target: Sequence[int]) -> int:
    """Returns the fewest frames that can emit a transcript: one a character, and a blank between equal ones."""
    return len(target) + sum(a == b for a, b in pairwise(target))


# --- transcripts ----------------------------------------------------------------------------------------------------


class Alphabet:
    """Numbers for characters: the blank is 0; space, apostrophe and the letters A to Z follow from 1."""

    def __init__(self, characters: str = CHARACTERS) -> None:
        self._characters = characters
        self._numbers = {character: number for number, character in enumerate(characters, 1)}

    def __len__(self) -> int:
        """The number of classes, with the blank."""
        return 1 + len(self._characters)

    def encoded(self, text: str) -> list[int]:
        """Returns the numbers of a transcript, after :func:`normalised`."""
        text = normalised(text)
        if not text:
            raise Unusable("empty transcript", "the transcript is empty")
        unknown = sorted(set(text) - set(self._characters))
        if unknown:
            sentence = f"{''.join(unknown)!r} in {text!r} is not in the alphabet: write out what is said in letters"
            raise Unusable("unknown character", sentence)
        return [self._numbers[character] for character in text]

    def decoded(self, numbers: Iterable[int]) -> str:
        """Returns the text of these numbers; blanks stand for nothing."""
        return "".join(self._characters[number - 1] for number in numbers if number)


def normalised(text: str) -> str:
    """Brings a text to capital letters, single spaces and straight apostrophes.

    Hyphens become spaces; ``. , ; : ! ? "`` go.
    """
    text = re.sub(r"[’‘`´]", "'", text.upper())
    text = re.sub(r"[-–—]", " ", text)
    return " ".join(re.sub(r'[.,;:!?"“”]', "", text).split())


# --- decoding -------------------------------------------------------------------------------------------------------


def greedy(log_probs: Tensor, lengths: Tensor) -> list[list[int]]:
    """Returns the most likely class of every frame (T, B, C), with repetitions merged and blanks (0) removed."""
    best = log_probs.argmax(2).T.cpu()
    paths = (torch.unique_consecutive(path[:length]) for path, length in zip(best, lengths.tolist(), strict=True))
    return [path[path != 0].tolist() for path in paths]


def beam_search(
    log_probs: Tensor, lengths: Tensor, width: int = 16, bonus: float = 0.0, scorer: Scorer | None = None
) -> list[list[int]]:
    """Returns the best of ``width`` prefixes, each with the probability of all paths that lead to it.

    Every character adds ``bonus``, and ``scorer(prefix, character)`` where there is one, to the log-probability.
    """
    if width < 1:
        raise ValueError(f"a beam has a width of at least 1, not {width}")
    frames = log_probs.detach().float().cpu().transpose(0, 1)
    return [
        list(_search(rows[:length].tolist(), width, bonus, scorer))
        for rows, length in zip(frames, lengths.tolist(), strict=True)
    ]


def _search(frames: list[list[float]], width: int, bonus: float, scorer: Scorer | None) -> Prefix:
    gains: dict[Prefix, float] = {(): 0.0}  # from bonus and scorer
    beam: dict[Prefix, tuple[float, float]] = {(): (0.0, NEVER)}  # of paths that end with a blank, and with a character
    for frame in frames:
        likely = [(character, p) for character, p in enumerate(frame) if character and p > UNLIKELY]
        ahead: dict[Prefix, tuple[float, float]] = {}
        for prefix, (blank, character) in beam.items():
            either = _sum(blank, character)
            _add(ahead, prefix, either + frame[0], NEVER)
            if prefix:
                _add(ahead, prefix, NEVER, character + frame[prefix[-1]])
            for new, p in likely:
                before = blank if prefix and new == prefix[-1] else either
                if before > NEVER:
                    longer = (*prefix, new)
                    if longer not in gains:
                        gains[longer] = gains[prefix] + bonus + (scorer(prefix, new) if scorer else 0.0)
                    _add(ahead, longer, NEVER, before + p)
        best = sorted(ahead, key=lambda prefix: _sum(*ahead[prefix]) + gains[prefix], reverse=True)[:width]
        beam = {prefix: ahead[prefix] for prefix in best}
        gains = {prefix: gains[prefix] for prefix in best}
    return next(iter(beam))


def _add(beam: dict[Prefix, tuple[float, float]], prefix: Prefix, blank: float, character: float) -> None:
    old = beam.get(prefix, (NEVER, NEVER))
    beam[prefix] = _sum(old[0], blank), _sum(old[1], character)


def _sum(a: float, b: float) -> float:
    """log(eᵃ + eᵇ)"""
    if a < b:
        a, b = b, a
    return a if b == NEVER else a + math.log1p(math.exp(b - a))


# --- error rates ----------------------------------------------------------------------------------------------------


def cer(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Returns the character error rate: wrong characters, spaces included, per character said."""
    return _rate(*character_errors(references, hypotheses))


def wer(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Returns the word error rate: wrong words per word said."""
    return _rate(*word_errors(references, hypotheses))


def character_errors(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
    """Counts characters to replace, delete and insert, and characters said: sums, to be added up over batches."""
    return _errors(references, hypotheses, words=False)


def word_errors(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
    """Counts words to replace, delete and insert, and words said."""
    return _errors(references, hypotheses, words=True)


def distance(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> int:
    """Returns the fewest replacements, deletions and insertions that lead from one to the other."""
    row = list(range(len(hypothesis) + 1))
    for i, said in enumerate(reference, 1):
        corner, row[0] = row[0], i
        for j, heard in enumerate(hypothesis, 1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (said != heard))
    return row[-1]


def _errors(references: Sequence[str], hypotheses: Sequence[str], words: bool) -> tuple[int, int]:
    if len(references) != len(hypotheses):
        raise ValueError(f"{len(references)} references cannot be compared with {len(hypotheses)} hypotheses")
    if not all(reference.strip() for reference in references):
        raise ValueError("a reference is empty: an error rate needs something that was said")
    pairs = [
        (a.split(), b.split()) if words else (list(a.strip()), list(b.strip()))
        for a, b in zip(references, hypotheses, strict=True)
    ]
    return sum(distance(*pair) for pair in pairs), sum(len(said) for said, _ in pairs)


def _rate(errors: int, said: int) -> float:
    if not said:
        raise ValueError("an error rate needs at least one reference")
    return errors / said
