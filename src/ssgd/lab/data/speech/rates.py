"""Character and word error rates."""

from __future__ import annotations

from collections.abc import Hashable, Sequence


def cer(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Wrong characters, spaces included, as a part of those that were said."""
    return _rate(*character_errors(references, hypotheses))


def wer(references: Sequence[str], hypotheses: Sequence[str]) -> float:
    """Wrong words as a part of those that were said."""
    return _rate(*word_errors(references, hypotheses))


def character_errors(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
    """Characters to replace, delete and insert, and characters that were said: sums, to be added up over batches."""
    return _errors(references, hypotheses, words=False)


def word_errors(references: Sequence[str], hypotheses: Sequence[str]) -> tuple[int, int]:
    """Words to replace, delete and insert, and words that were said."""
    return _errors(references, hypotheses, words=True)


def distance(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> int:
    """The fewest replacements, deletions and insertions that lead from one to the other."""
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
    if not references:
        return 0, 0
    if words:  # jiwer would take a tab for a letter
        references, hypotheses = ([" ".join(text.split()) for text in texts] for texts in (references, hypotheses))
    try:
        import jiwer
    except ImportError:
        pairs = [
            (a.split(), b.split()) if words else (list(a.strip()), list(b.strip()))
            for a, b in zip(references, hypotheses, strict=True)
        ]
        return sum(distance(*pair) for pair in pairs), sum(len(said) for said, _ in pairs)
    process = jiwer.process_words if words else jiwer.process_characters
    found = process(list(references), list(hypotheses))
    errors = found.substitutions + found.deletions + found.insertions
    return errors, found.hits + found.substitutions + found.deletions


def _rate(errors: int, said: int) -> float:
    if not said:
        raise ValueError("an error rate needs at least one reference")
    return errors / said
