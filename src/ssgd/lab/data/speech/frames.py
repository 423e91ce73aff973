"""The utterances of a corpus that can be used, with their frames: in memory, or in a file when there are too many."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssgd.files import write_whole
from ssgd.lab.data.faults import Faults, Unusable
from ssgd.lab.data.speech.ctc import Alphabet, frames_needed
from ssgd.lab.data.speech.utterances import Features, Utterance

LEAST = 1e-3  # the smallest deviation divided by: a feature that does not move stays where it is


@dataclass(frozen=True)
class Part:
    """Utterances with their targets and frames: utterance i has ``lengths[i]`` of ``frames``, from ``starts[i]`` on."""

    utterances: list[Utterance]
    targets: list[list[int]]
    frames: Tensor
    starts: list[int]
    lengths: list[int]

    def shift_and_scale(self, normalise: str) -> tuple[Tensor, Tensor]:
        """Returns shift and scale (utterances, features) that normalise by speaker, by all (``"global"``) or not.

        An utterance without a speaker is normalised by itself.
        """
        if normalise == "none" or not self.utterances:
            size = len(self.utterances), self.frames.shape[1]
            return torch.zeros(size), torch.ones(size)
        groups = [
            "" if normalise == "global" else utterance.speaker or f"by itself: {number}"
            for number, utterance in enumerate(self.utterances)
        ]
        stretches = (self.frames[a : a + n] for a, n in zip(self.starts, self.lengths, strict=True))
        return by_group(groups, stretches)


def usable_part(
    utterances: Sequence[Utterance],
    features: Features,
    alphabet: Alphabet,
    subsampling: int,
    faults: Faults,
    file: Path | None,
) -> Part:
    """Returns the utterances with a transcript of the alphabet, features, and frames enough for CTC to emit it.

    The others go to ``faults``. ``subsampling`` is how many frames the net makes one; ``file`` keeps the frames.
    """
    written, targets = [], []
    for utterance in utterances:
        try:
            targets.append(alphabet.encoded(utterance.text))
            written.append(utterance)
        except Unusable as fault:
            faults.add(utterance.place, fault)
    numbers, frames, lengths = gathered(written, features, faults, file)
    part, start = Part([], [], frames, [], []), 0
    for number, length in zip(numbers, lengths, strict=True):
        needed, there = frames_needed(targets[number]), -(-length // subsampling)
        if needed > there:
            sentence = f"its transcript needs {needed} frames, and {there} are left of its {length}: CTC cannot emit it"
            faults.add(written[number].place, Unusable("transcript too long", sentence))
        else:
            part.utterances.append(written[number])
            part.targets.append(targets[number])
            part.starts.append(start)
            part.lengths.append(length)
        start += length
    return part


def gathered(
    utterances: Sequence[Utterance], features: Features, faults: Faults, file: Path | None = None
) -> tuple[list[int], Tensor, list[int]]:
    """Computes the features of utterances; those that have none go to ``faults``.

    Returns the numbers of the others, all their frames one after the other (time, features), and how many each has.
    With ``file`` the frames are written there, and read from there as they are asked for. A later call for the same
    utterances, unchanged, takes them from there.
    """
    key = "" if file is None else _key(utterances, features)
    found = None if file is None else _kept(file, key)
    if found is not None:
        for number, (kind, why) in found["failed"].items():
            faults.add(utterances[number].place, Unusable(kind, why))
    else:
        found = {"key": key, **_computed(utterances, features, faults)}
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_whole(file, partial(torch.save, found))
            found = _kept(file, key) or found
    numbers = [number for number in range(len(utterances)) if number not in found["failed"]]
    return numbers, found["frames"], found["lengths"]


def _computed(utterances: Sequence[Utterance], features: Features, faults: Faults) -> dict[str, Any]:
    """Returns the frames of all utterances, the length of each, and by number the faults of those without."""
    parts, failed = [], {}
    for number, utterance in enumerate(utterances):
        try:
            parts.append(features(utterance))
        except Unusable as fault:
            faults.add(utterance.place, fault)
            failed[number] = fault.kind, str(fault)
    frames = torch.cat(parts) if parts else torch.empty(0, features.count)
    return {"frames": frames, "lengths": list(map(len, parts)), "failed": failed}


def _kept(file: Path, key: str) -> dict[str, Any] | None:
    """Opens what an earlier call wrote for ``key``; none where the file is not there, or not as it was written."""
    try:
        found: dict[str, Any] = torch.load(str(file), mmap=True, weights_only=True)
        whole = len(found["frames"]) == sum(found["lengths"]) and isinstance(found["failed"], dict)
        return found if found["key"] == key and whole else None
    except Exception:  # of a damaged file nearly any
        return None


def _key(utterances: Sequence[Utterance], features: Features) -> str:
    """Returns a digest of all that the frames depend on: features, clips, and the files' sizes and times."""
    digest = hashlib.sha256(repr(features).encode())
    for utterance in utterances:
        digest.update(repr((utterance.key, utterance.clips)).encode())
        for clip in utterance.clips:
            if clip.path is not None and os.path.exists(clip.path):
                about = clip.path.stat()
                digest.update(f"{about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()


def by_group(groups: Sequence[str], stretches: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Returns shift and scale (utterances, features) that give the frames of each group mean 0 and variance 1.

    ``stretches`` are the frames of each utterance, of the group at the same place in ``groups``.
    """
    sums: dict[str, Tensor] = {}
    for group, frames in zip(groups, stretches, strict=True):
        frames = frames.double()
        found = torch.stack([frames.sum(0), frames.square().sum(0), torch.full_like(frames[0], len(frames))])
        sums[group] = sums[group] + found if group in sums else found
    made = {}
    for group, (total, squares, count) in sums.items():
        mean = total / count
        variance = (squares / count - mean.square()).clamp(min=LEAST**2)
        made[group] = mean.float(), variance.rsqrt().float()
    shifts, scales = zip(*(made[group] for group in groups), strict=True)
    return torch.stack(shifts), torch.stack(scales)
