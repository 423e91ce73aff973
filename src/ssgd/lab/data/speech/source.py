"""Utterances as batches of similar length."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from ssgd.core.checks import check_choice
from ssgd.lab.data import batches
from ssgd.lab.data.faults import Faults, Skipped, counts
from ssgd.lab.data.held import kept
from ssgd.lab.data.speech.alphabet import Alphabet
from ssgd.lab.data.speech.frames import Features
from ssgd.lab.data.speech.normalisation import NORMALISED, by_group
from ssgd.lab.data.speech.part import Batch, Loaded, usable
from ssgd.lab.data.speech.spec_augment import SpecAugment
from ssgd.lab.data.speech.utterances import Clip, Utterance, held_out

SPREAD = 0.1  # how far, as a part of its length, an utterance may stray from its place in the order of lengths


@dataclass(frozen=True)
class Corpus:
    """The utterances of a data set, and the features they are heard through."""

    name: str
    train: Sequence[Utterance]
    valid: Sequence[Utterance]
    test: Sequence[Utterance]
    features: Features

    def held_out(self, count: int) -> Corpus:
        """At least ``count`` training utterances, of whole speakers, in place of the test set."""
        train, test = held_out(self.train, count)
        return replace(self, train=train, test=test)

    def limited(self, train: int | None, test: int | None) -> Corpus:
        """The first so many utterances."""
        for part, count in (("train", train), ("test", test)):
            if count is not None and count < 1:
                raise ValueError(f"the {part} part of {self.name} needs at least 1 utterance, not {count}")
        return replace(self, train=self.train[:train], test=self.test[:test])


class SpeechSource:
    """Batches of a corpus: features (B, F, T), lengths, targets (B, L) and their lengths; what is padded is zero.

    ``normalise`` is ``"speaker"`` (an utterance without one, by itself), ``"global"`` (by what is trained on) or
    ``"none"``. What cannot be used goes to ``faults``, also a transcript that CTC cannot emit after ``subsampling``.
    With ``frames_folder`` the features lie in files there instead of in memory. Order and masks are a function of seed
    and epoch alone, the same on every device.
    """

    kind = "speech"

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
        self.name, self.channels, self.alphabet = corpus.name, corpus.features.count, Alphabet()
        self.classes = len(self.alphabet)
        self._faults, self._spec_augment = faults or Faults(), spec_augment
        folder = Path(frames_folder) if frames_folder else None
        parts = {
            name: usable(
                utterances,
                corpus.features,
                self.alphabet,
                subsampling,
                self._faults,
                folder and folder / f"{corpus.name}-{name}.f32",
            )
            for name, utterances in (("train", corpus.train), ("valid", corpus.valid), ("test", corpus.test))
        }
        if not parts["train"].utterances:
            raise ValueError(f"{corpus.name} has no utterance to train on; left out: {counts(self.skipped) or 'none'}")
        self.utterances = {name: part.utterances for name, part in parts.items()}
        self._features, self._normalise = corpus.features, normalise
        self._moments = parts["train"].shift_and_scale(normalise)
        self._device, self._dtype = torch.device(device), dtype
        self._epochs: dict[tuple[int, int], Epoch] = {}
        self._parts = {}
        for name, part in parts.items():
            shift, scale = self._moments if name == "train" else part.shift_and_scale(normalise)
            if normalise == "global":
                shift, scale = (table[:1].expand(len(part.utterances), -1) for table in self._moments)
            self._parts[name] = Loaded(part, shift, scale, self._device, dtype, folder is not None)

    @property
    def skipped(self) -> list[Skipped]:
        """The utterances left out, with place, kind of fault and sentence."""
        return self._faults.skipped

    def heard(self, file: Path) -> tuple[Tensor, Tensor]:
        """Features (1, F, T) of any file, and their length; it counts as a speaker of its own."""
        frames = self._features(Utterance(file.stem, "", (Clip(file),)))
        if self._normalise == "speaker":
            shift, scale = by_group([""], [frames])
        else:  # one row of them is as good as another
            shift, scale = (table[:1] for table in self._moments)
        x = ((frames - shift) * scale).T[None].to(self._device, self._dtype)
        return x, torch.tensor([len(frames)], device=self._device)

    def first(self, count: int) -> SpeechSource:
        """At most so many utterances of each part, normalised as all are."""
        less = copy(self)
        less._parts = {name: part.first(count) for name, part in self._parts.items()}
        less.utterances = {name: utterances[:count] for name, utterances in self.utterances.items()}
        less._epochs = {}
        return less

    def steps(self, size: int) -> int:
        """Whole batches of ``size`` in an epoch; the utterances left over, others each time, sit this epoch out."""
        return batches.whole_batches(len(self._parts["train"]), size)

    def epoch(self, seed: int, number: int) -> Epoch:
        """Epoch ``number`` of seed ``seed``; trainings that ask for the same one share it."""
        return kept(self._epochs, seed, number, self._make_epoch)

    def test_batches(self, size: int = 64, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
        """All test utterances from short to long; each rank has its share."""
        return _by_length(self._parts["test"], size, rank, ranks)

    def valid_batches(self, size: int = 64, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
        """All utterances for validation, as in :meth:`test_batches`."""
        return _by_length(self._parts["valid"], size, rank, ranks)

    def clean_train_batches(self, size: int = 64, rank: int = 0, ranks: int = 1) -> Iterator[Batch]:
        """All training utterances without masks, as in :meth:`test_batches`."""
        return _by_length(self._parts["train"], size, rank, ranks)

    def _make_epoch(self, seed: int, number: int) -> Epoch:
        return Epoch(self._parts["train"], seed, number, self._spec_augment)


class Epoch:
    """The training utterances once, in batches of similar length; the batches, and what is in one, in random order."""

    def __init__(self, part: Loaded, seed: int, number: int, spec_augment: SpecAugment | None) -> None:
        self._part, self._mask = part, spec_augment
        numbers = batches.generator(seed, number)
        self._taken = torch.randperm(len(part), generator=numbers)
        stray = 1 + SPREAD * (2 * torch.rand(len(part), generator=numbers) - 1)
        self._keys = part.lengths * stray
        self._places = torch.rand(2, len(part), generator=numbers)
        self._drawn = spec_augment.drawn(len(part), numbers) if spec_augment else None
        self._orders: dict[int, Tensor] = {}

    def batch(self, step: int, size: int, rank: int = 0, ranks: int = 1) -> Batch:
        """Batch ``step``; of its ``size`` utterances rank r takes the r-th of equal parts."""
        here = batches.part_of_batch(len(self._part), step, size, rank, ranks)
        if size not in self._orders:
            self._orders[size] = self._order(size)
        chosen = self._orders[size][here]
        return self._part.batch(chosen, self._mask, None if self._drawn is None else self._drawn[chosen])

    def _order(self, size: int) -> Tensor:
        steps = batches.whole_batches(len(self._part), size)
        taken = self._taken[: steps * size]
        rows = taken[self._keys[taken].argsort(stable=True)].view(steps, size)
        within = self._places[0][rows].argsort(stable=True)  # or the halves of `split` would differ in length
        return rows.gather(1, within)[self._places[1, :steps].argsort(stable=True)].flatten()


def _by_length(part: Loaded, size: int, rank: int, ranks: int) -> Iterator[Batch]:
    order = part.lengths.argsort(stable=True)
    return (part.batch(order[piece]) for piece in batches.in_order(len(part), size, rank, ranks))
