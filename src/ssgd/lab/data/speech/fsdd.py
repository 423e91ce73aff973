"""The Free Spoken Digit Dataset, and utterances of several digits made from it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from ssgd.lab.data.faults import Faults, Unusable
from ssgd.lab.data.speech.utterances import Clip, Utterance

NAMES = ("ZERO", "ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE")


def read_fsdd(folder: str | Path, faults: Faults) -> list[Utterance]:
    """All of ``recordings/{digit}_{speaker}_{index}.wav``, one digit each, in the order of speaker, digit and index."""
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
            found[speaker, digit, index] = Utterance(path.stem, NAMES[digit], (Clip(path),), speaker, str(path))
    return [found[place] for place in sorted(found)]


def connected(
    recordings: Iterable[Utterance],
    count: int,
    seed: int = 0,
    digits: tuple[int, int] = (3, 7),
    pause: tuple[float, float] = (0.05, 0.3),
) -> list[Utterance]:
    """``count`` utterances of so many ``digits`` of one speaker, with a pause in seconds before, between and after.

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
