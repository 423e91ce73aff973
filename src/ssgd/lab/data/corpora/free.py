"""Corpora that are free: AN4, the Free Spoken Digit Dataset, utterances connected from it, and made-up speech."""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor

from ssgd.lab.data.faults import Faults, Unusable, utf8_lines
from ssgd.lab.data.speech.ctc import CHARACTERS
from ssgd.lab.data.speech.utterances import Clip, Corpus, Utterance

DIGITS = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")
WORDS = ("AYE", "NAY", "UP", "DOWN", "LEFT", "HALL")  # of made-up speech


def read_an4(folder: str | Path, part: str, faults: Faults) -> list[Utterance]:
    """Reads the ids of ``etc/an4_{part}.fileids``, of ``"train"`` or ``"test"``, and their transcripts."""
    etc, feat = Path(folder) / "etc", Path(folder) / "feat"
    ids, transcripts = etc / f"an4_{part}.fileids", etc / f"an4_{part}.transcription"
    if not ids.exists():
        raise FileNotFoundError(f"{ids} is not there: unpack AN4 so that {folder} has etc/ and feat/")
    names, rows = ([line for _, line in utf8_lines(file)] for file in (ids, transcripts))
    found = []
    for number, (name, row) in enumerate(zip_longest(names, rows, fillvalue=""), 1):
        place = f"{transcripts}:{number}"
        try:
            text = _text(row, name.strip())
        except Unusable as fault:
            faults.add(place, fault)
        else:
            path = feat / f"{name.strip()}.mfc"
            found.append(Utterance(path.stem, text, (Clip(path),), path.parent.name, place))
    return found


def _text(row: str, name: str) -> str:
    match = re.fullmatch(r"(?:<s>)?(.*?)(?:</s>)?\s*\((\S+)\)\s*", row)
    if not match or match[2] != name.rpartition("/")[2]:
        raise Unusable("broken row", f"{row!r} is not the transcript of {name!r}: it ends with its id in brackets")
    return match[1].strip()


def read_fsdd(folder: str | Path, faults: Faults) -> list[Utterance]:
    """Reads all ``recordings/{digit}_{speaker}_{index}.wav``, a digit each, by speaker, digit and index."""
    recordings = Path(folder) / "recordings"
    if not recordings.is_dir():
        raise FileNotFoundError(f"{recordings} is not there: unpack the Free Spoken Digit Dataset into {folder}")
    found = {}
    for path in sorted(recordings.glob("*.wav")):
        name = re.fullmatch(r"([0-9])_(.+)_([0-9]+)", path.stem)
        if name is None:
            faults.add(str(path), Unusable("broken row", "its name is not {digit}_{speaker}_{index}.wav"))
        else:
            digit, speaker, index = int(name[1]), name[2], int(name[3])
            found[speaker, digit, index] = Utterance(path.stem, DIGITS[digit], (Clip(path),), speaker, str(path))
    return [found[place] for place in sorted(found)]


def connected(
    recordings: Iterable[Utterance],
    count: int,
    seed: int = 0,
    digits: tuple[int, int] = (3, 7),
    pause: tuple[float, float] = (0.05, 0.3),
) -> list[Utterance]:
    """Makes ``count`` utterances of so many ``digits`` of one speaker, with pauses in seconds before and after each.

    Speakers take turns, and each speaker's recordings are gone through, in a random order, before any comes again.
    """
    numbers = random.Random(seed)
    speakers: dict[str, list[Utterance]] = {}
    for recording in recordings:
        speakers.setdefault(recording.speaker, []).append(recording)
    if not speakers:
        raise ValueError("there are no recordings to connect")
    waiting: dict[str, list[Utterance]] = {speaker: [] for speaker in speakers}
    made = []
    for number in range(count):
        speaker = sorted(speakers)[number % len(speakers)]
        said = []
        for _ in range(numbers.randint(*digits)):
            if not waiting[speaker]:
                waiting[speaker] = numbers.sample(speakers[speaker], len(speakers[speaker]))
            said.append(waiting[speaker].pop())
        made.append(_joined(said, [round(numbers.uniform(*pause), 3) for _ in range(len(said) + 1)], number))
    return made


def _joined(said: Sequence[Utterance], pauses: Sequence[float], number: int) -> Utterance:
    clips = [Clip(None, end=pauses[0])]
    for recording, pause in zip(said, pauses[1:], strict=True):
        clips += [*recording.clips, Clip(None, end=pause)]
    key = f"{said[0].speaker}-{number}"
    place = f"{key} ({', '.join(recording.key for recording in said)})"
    return Utterance(key, " ".join(recording.text for recording in said), tuple(clips), said[0].speaker, place)


def fake_speech(train: int = 96, test: int = 24) -> Corpus:
    """Makes texts of one to three of six words, each character a pattern of features under noise: without files."""
    numbers = random.Random(0)
    said = [" ".join(numbers.choices(WORDS, k=numbers.randint(1, 3))) for _ in range(train + 2 * test)]
    made = [Utterance(f"fake-{i}", text, (), f"speaker {i % 4}", f"fake-{i}") for i, text in enumerate(said)]
    return Corpus("fake-speech", made[:train], made[train:-test], made[-test:], Patterns())


@dataclass(frozen=True)
class Patterns:
    """Features of the text itself, for made-up speech: 6 to 9 frames a character."""

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
