"""The utterances of one part of a corpus, ready to be put into batches."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ssgd.lab.data.faults import Faults, Unusable
from ssgd.lab.data.speech.alphabet import Alphabet
from ssgd.lab.data.speech.ctc import frames_needed
from ssgd.lab.data.speech.frames import Features, gathered, padded, padded_from_file
from ssgd.lab.data.speech.normalisation import by_group
from ssgd.lab.data.speech.spec_augment import SpecAugment
from ssgd.lab.data.speech.utterances import Utterance

Batch = tuple[Tensor, Tensor, Tensor, Tensor]  # features (B, F, T), lengths, targets (B, L), target lengths


@dataclass(frozen=True)
class Part:
    """Utterances with their targets and frames: utterance i has ``lengths[i]`` of ``frames``, from ``starts[i]`` on."""

    utterances: list[Utterance]
    targets: list[list[int]]
    frames: Tensor
    starts: list[int]
    lengths: list[int]

    def shift_and_scale(self, normalise: str) -> tuple[Tensor, Tensor]:
        """What normalises (utterances, features): by ``"speaker"``, by all (``"global"``), ``"none"``."""
        if normalise == "none" or not self.utterances:
            size = len(self.utterances), self.frames.shape[1]
            return torch.zeros(size), torch.ones(size)
        groups = [
            "" if normalise == "global" else utterance.speaker or f"by itself: {number}"
            for number, utterance in enumerate(self.utterances)
        ]
        stretches = (self.frames[a : a + n] for a, n in zip(self.starts, self.lengths, strict=True))
        return by_group(groups, stretches)


def usable(
    utterances: Sequence[Utterance],
    features: Features,
    alphabet: Alphabet,
    subsampling: int,
    faults: Faults,
    file: Path | None,
) -> Part:
    """The utterances that can be written, heard and emitted; the others go to ``faults``."""
    written, targets = [], []
    for utterance in utterances:
        try:
            targets.append(alphabet.encoded(utterance.text))
            written.append(utterance)
        except Unusable as fault:
            faults.add(utterance.place, fault)
    heard, frames, counts = gathered(written, features, faults, file)
    part, start = Part([], [], frames, [], []), 0
    for number, length in zip(heard, counts, strict=True):
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


class Loaded:
    """A part on the device; with ``in_file`` its frames stay where they are, and a batch's are sent."""

    def __init__(
        self, part: Part, shift: Tensor, scale: Tensor, device: torch.device, dtype: torch.dtype, in_file: bool
    ) -> None:
        self.lengths = torch.tensor(part.lengths, dtype=torch.long)
        self._target_lengths = torch.tensor([len(target) for target in part.targets], dtype=torch.long)
        # on a GPU a shape is worth a graph of its own, so few of them are made: lengths are rounded up
        self._units = (64, 32) if device.type == "cuda" else (1, 1)  # frames, characters
        most = _rounded(max(map(len, part.targets), default=0), self._units[1])
        self._targets = torch.zeros(len(part.targets), most, dtype=torch.long)
        for row, target in zip(self._targets, part.targets, strict=True):
            row[: len(target)] = torch.tensor(target)
        self._frames = part.frames if in_file else part.frames.to(device)
        self._padded = padded_from_file if in_file else padded
        self._starts = torch.tensor(part.starts, dtype=torch.long)
        self._shift, self._scale = shift, scale
        self._device, self._dtype = device, dtype

    def __len__(self) -> int:
        return len(self.lengths)

    def first(self, count: int) -> Loaded:
        less = copy(self)
        for name in ("lengths", "_target_lengths", "_targets", "_starts", "_shift", "_scale"):
            setattr(less, name, getattr(self, name)[:count])
        return less

    def batch(self, chosen: Tensor, mask: SpecAugment | None = None, drawn: Tensor | None = None) -> Batch:
        """These utterances, with the masks that were drawn for them."""
        longest = _rounded(int(self.lengths[chosen].max()), self._units[0])
        most = _rounded(int(self._target_lengths[chosen].max()), self._units[1])
        shift, scale, lengths, target_lengths = (
            table[chosen].to(self._device) for table in (self._shift, self._scale, self.lengths, self._target_lengths)
        )
        places = self._starts[chosen].to(self._frames.device), lengths.to(self._frames.device)
        x = self._padded(self._frames, *places, longest).to(self._device)
        x = ((x - shift[:, None]) * scale[:, None]).transpose(1, 2)
        kept = (torch.arange(longest, device=self._device) < lengths[:, None])[:, None]
        if mask is not None and drawn is not None:
            kept = kept & mask.kept(drawn.to(self._device), x.shape[1], lengths, longest)
        x = torch.where(kept, x, 0.0).to(self._dtype).contiguous()
        return x, lengths, self._targets[chosen, :most].to(self._device), target_lengths


def _rounded(length: int, unit: int) -> int:
    return -(-length // unit) * unit
