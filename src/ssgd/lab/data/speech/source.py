"""Utterances as batches of similar length."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from ssgd.core.checks import check_choice
from ssgd.lab.data import batches
from ssgd.lab.data.faults import Faults, counts
from ssgd.lab.data.preprocess import Recordings
from ssgd.lab.data.registry import NORMALISED
from ssgd.lab.data.speech.ctc import Alphabet
from ssgd.lab.data.speech.features import SpecAugment
from ssgd.lab.data.speech.frames import Part, usable_part
from ssgd.lab.data.speech.utterances import Corpus

SPREAD = 0.1  # how far, as a part of its length, an utterance may stray from its place in the order of lengths

Batch = tuple[Tensor, Tensor, Tensor, Tensor]  # features (B, F, T), lengths, targets (B, L), target lengths


class SpeechSource(batches.Source):
    """Batches of a corpus: features (B, F, T), lengths, targets (B, L) and their lengths; the padding is zero.

    ``normalise`` is ``"speaker"`` (an utterance without one, by itself), ``"global"`` (by the training part) or
    ``"none"``. Utterances that cannot be used go to ``faults``, also those whose transcript CTC cannot emit after
    ``subsampling``. With ``frames_folder`` the features lie in files there instead of in memory. Order and masks are a
    function of seed and epoch alone, the same on every device.
    """

    kind = "speech"
    test_size = 64

    def __init__(
        self,
        corpus: Corpus,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
        *,
        faults: Faults | None = None,
        normalise: str = "speaker",
        spec_augment: SpecAugment | None = None,
        subsampling: int = 2,
        frames_folder: str | Path | None = None,
    ) -> None:
        check_choice("normalise", normalise, NORMALISED)
        self.alphabet, device, faults = Alphabet(), torch.device(device), faults or Faults()
        folder = Path(frames_folder) if frames_folder else None
        found = {
            name: usable_part(
                utterances,
                corpus.features,
                self.alphabet,
                subsampling,
                faults,
                folder and folder / f"{corpus.name}-{name}.pt",
            )
            for name, utterances in (("train", corpus.train), ("valid", corpus.valid), ("test", corpus.test))
        }
        if not found["train"].utterances:
            left_out = counts(faults.skipped) or "none"
            raise ValueError(f"{corpus.name} has no utterance to train on; left out: {left_out}")
        self.utterances = {name: part.utterances for name, part in found.items()}
        moments = found["train"].shift_and_scale(normalise)
        parts = {}
        for name, part in found.items():
            shift, scale = moments if name == "train" else part.shift_and_scale(normalise)
            if normalise == "global":
                shift, scale = (table[:1].expand(len(part.utterances), -1) for table in moments)
            parts[name] = Loaded(part, shift, scale, device, dtype, folder is not None, spec_augment)
        by_file = () if normalise == "speaker" else (table[0].tolist() for table in moments)  # all rows are alike
        preprocess = Recordings(corpus.features, *by_file)
        super().__init__(corpus.name, len(self.alphabet), corpus.features.count, parts, faults.skipped, preprocess)

    def first(self, count: int) -> SpeechSource:
        fewer = cast(SpeechSource, super().first(count))
        fewer.utterances = {name: utterances[:count] for name, utterances in self.utterances.items()}
        return fewer


class Epoch:
    """The training utterances once, in batches of similar length; the batches, and what is in one, in random order."""

    def __init__(self, part: Loaded, seed: int, number: int) -> None:
        self._part = part
        numbers = batches.generator(seed, number)
        self._taken = torch.randperm(len(part), generator=numbers)
        stray = 1 + SPREAD * (2 * torch.rand(len(part), generator=numbers) - 1)
        self._keys = part.lengths * stray
        self._places = torch.rand(2, len(part), generator=numbers)
        self._drawn = part.mask.drawn(len(part), numbers) if part.mask else None
        self._orders: dict[int, Tensor] = {}

    def batch(self, step: int, size: int, rank: int = 0, ranks: int = 1) -> Batch:
        here = batches.part_of_batch(len(self._part), step, size, rank, ranks)
        if size not in self._orders:
            self._orders[size] = self._order(size)
        chosen = self._orders[size][here]
        return self._part.batch(chosen, None if self._drawn is None else self._drawn[chosen])

    def _order(self, size: int) -> Tensor:
        steps = batches.whole_batches(len(self._part), size)
        taken = self._taken[: steps * size]
        rows = taken[self._keys[taken].argsort(stable=True)].view(steps, size)
        within = self._places[0][rows].argsort(stable=True)  # or the halves of `split` would differ in length
        return rows.gather(1, within)[self._places[1, :steps].argsort(stable=True)].flatten()


class Loaded:
    """A part on the device; with ``in_file`` its frames stay on the CPU, and those of a batch are sent."""

    def __init__(
        self,
        part: Part,
        shift: Tensor,
        scale: Tensor,
        device: torch.device,
        dtype: torch.dtype,
        in_file: bool,
        mask: SpecAugment | None,
    ) -> None:
        self.mask = mask
        self.lengths = torch.tensor(part.lengths, dtype=torch.long)
        self._target_lengths = torch.tensor([len(target) for target in part.targets], dtype=torch.long)
        # on a GPU a shape is worth a graph of its own, so few of them are made: lengths are rounded up
        self._units = (64, 32) if device.type == "cuda" else (1, 1)  # frames, characters
        most = _rounded(max(map(len, part.targets), default=0), self._units[1])
        self._targets = torch.zeros(len(part.targets), most, dtype=torch.long)
        for row, target in zip(self._targets, part.targets, strict=True):
            row[: len(target)] = torch.tensor(target)
        self._frames = part.frames if in_file else part.frames.to(device)
        self._starts = torch.tensor(part.starts, dtype=torch.long)
        self._shift, self._scale = shift, scale
        self._device, self._dtype = device, dtype

    def __len__(self) -> int:
        return len(self.lengths)

    def first(self, count: int) -> Loaded:
        fewer = copy(self)
        for name in ("lengths", "_target_lengths", "_targets", "_starts", "_shift", "_scale"):
            setattr(fewer, name, getattr(self, name)[:count])
        return fewer

    def steps(self, size: int) -> int:
        return batches.whole_batches(len(self), size)

    def epoch(self, seed: int, number: int) -> Epoch:
        return Epoch(self, seed, number)

    def in_order(self, size: int, rank: int, ranks: int) -> Iterator[Batch]:
        """Yields the utterances from short to long, without masks."""
        order = self.lengths.argsort(stable=True)
        return (self.batch(order[piece]) for piece in batches.in_order(len(self), size, rank, ranks))

    def batch(self, chosen: Tensor, drawn: Tensor | None = None) -> Batch:
        """Returns the utterances of these numbers, with the masks that were drawn for them."""
        longest = _rounded(int(self.lengths[chosen].max()), self._units[0])
        most = _rounded(int(self._target_lengths[chosen].max()), self._units[1])
        shift, scale, lengths, target_lengths = (
            table[chosen].to(self._device) for table in (self._shift, self._scale, self.lengths, self._target_lengths)
        )
        places = self._starts[chosen].to(self._frames.device), lengths.to(self._frames.device)
        x = _padded(self._frames, *places, longest).to(self._device)
        x = ((x - shift[:, None]) * scale[:, None]).transpose(1, 2)
        kept = (torch.arange(longest, device=self._device) < lengths[:, None])[:, None]
        if self.mask is not None and drawn is not None:
            kept = kept & self.mask.kept(drawn.to(self._device), x.shape[1], lengths, longest)
        x = torch.where(kept, x, 0.0).to(self._dtype).contiguous()
        return x, lengths, self._targets[chosen, :most].to(self._device), target_lengths


def _rounded(length: int, unit: int) -> int:
    return -(-length // unit) * unit


def _padded(frames: Tensor, starts: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """Returns (batch, ``longest``, features) from stretches of ``frames``, the last frame of each repeated."""
    places = torch.arange(longest, device=frames.device).clamp(max=lengths[:, None] - 1)
    return frames[starts[:, None] + places]
