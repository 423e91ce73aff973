"""From a net's log-probabilities to characters: the best path, and a search over prefixes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

Prefix = tuple[int, ...]
Scorer = Callable[[Prefix, int], float]  # what a prefix gains, in nats, by going on with a character
NEVER = -math.inf
UNLIKELY = -14.0  # log-probability under which a character is not tried at a frame


def greedy(log_probs: Tensor, lengths: Tensor) -> list[list[int]]:
    """The most likely class of every frame (T, B, C), with repetitions merged and blanks (0) removed."""
    best = log_probs.argmax(2).T.cpu()
    paths = (torch.unique_consecutive(path[:length]) for path, length in zip(best, lengths.tolist(), strict=True))
    return [path[path != 0].tolist() for path in paths]


def beam_search(
    log_probs: Tensor, lengths: Tensor, width: int = 16, bonus: float = 0.0, scorer: Scorer | None = None
) -> list[list[int]]:
    """The best of ``width`` prefixes, each with the probability of all paths that lead to it.

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
