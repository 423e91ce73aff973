"""Made-up speech that can be learned, for trying a training out: no files, no network."""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

from ssgd.lab.data.faults import Unusable
from ssgd.lab.data.speech.alphabet import CHARACTERS
from ssgd.lab.data.speech.source import Corpus
from ssgd.lab.data.speech.utterances import Utterance

WORDS = ("AYE", "NAY", "UP", "DOWN", "LEFT", "HALL")


def fake_speech(train: int = 96, test: int = 24) -> Corpus:
    """One to three of six words, each character a pattern of features under noise."""
    numbers = random.Random(0)
    said = [" ".join(numbers.choices(WORDS, k=numbers.randint(1, 3))) for _ in range(train + 2 * test)]
    made = [Utterance(f"fake-{i}", text, (), f"speaker {i % 4}", f"fake-{i}") for i, text in enumerate(said)]
    return Corpus("fake-speech", made[:train], made[train:-test], made[-test:], Patterns())


@dataclass(frozen=True)
class Patterns:
    """Features of the text itself: 6 to 9 frames a character."""

    count: int = 12

    def __call__(self, utterance: Utterance) -> Tensor:
        """Frames (time, features)."""
        if utterance.clips:
            raise Unusable("made up", "fake-speech is made up from texts and hears no files: train on recordings")
        patterns = torch.randn(len(CHARACTERS), self.count, generator=torch.Generator().manual_seed(0))
        numbers = torch.Generator().manual_seed(zlib.crc32(utterance.key.encode()))
        characters = torch.tensor([CHARACTERS.index(character) for character in utterance.text])
        frames = patterns[characters.repeat_interleave(torch.randint(6, 10, characters.shape, generator=numbers))]
        return frames + 0.3 * torch.randn(frames.shape, generator=numbers)
