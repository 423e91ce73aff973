"""From transcripts to the numbers CTC learns, and back."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ssgd.lab.data.faults import Unusable

CHARACTERS = " 'ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class Alphabet:
    """The blank is 0; space, apostrophe and the letters A to Z follow from 1."""

    def __init__(self, characters: str = CHARACTERS) -> None:
        self._characters = characters
        self._numbers = {character: number for number, character in enumerate(characters, 1)}

    def __len__(self) -> int:
        """How many classes, with the blank."""
        return 1 + len(self._characters)

    def encoded(self, text: str) -> list[int]:
        """The numbers of a transcript, after :func:`normalised`."""
        text = normalised(text)
        if not text:
            raise Unusable("empty transcript", "the transcript is empty")
        unknown = sorted(set(text) - set(self._characters))
        if unknown:
            sentence = f"{''.join(unknown)!r} in {text!r} is not in the alphabet: write out what is said in letters"
            raise Unusable("unknown character", sentence)
        return [self._numbers[character] for character in text]

    def decoded(self, numbers: Iterable[int]) -> str:
        """The text of these numbers; blanks stand for nothing."""
        return "".join(self._characters[number - 1] for number in numbers if number)


def normalised(text: str) -> str:
    """Capital letters, single spaces, straight apostrophes; hyphens become spaces, and ``. , ; : ! ? "`` go."""
    text = re.sub(r"[’‘`´]", "'", text.upper())
    text = re.sub(r"[-–—]", " ", text)
    return " ".join(re.sub(r'[.,;:!?"“”]', "", text).split())
