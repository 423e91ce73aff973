"""The features of many utterances: in memory, or in a file when there are too many."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ssgd.lab.data.faults import Faults, Unusable
from ssgd.lab.data.speech.utterances import Utterance


class Features(Protocol):
    """Makes an utterance's frames (time, features); :class:`Unusable` says that it cannot."""

    @property
    def count(self) -> int: ...

    def __call__(self, utterance: Utterance) -> Tensor: ...


def gathered(
    utterances: Sequence[Utterance], features: Features, faults: Faults, file: Path | None = None
) -> tuple[list[int], Tensor, list[int]]:
    """Which utterances have features, all their frames one after the other (time, features), and how many each has.

    The others go to ``faults``. With ``file`` the frames are written there, and what a later call finds there for the
    same utterances, unchanged, is not computed again.
    """
    if file is None:
        parts: list[Tensor] = []
        lengths, unheard = _made(utterances, features, faults, parts.append)
        frames = torch.cat(parts) if parts else torch.empty(0, features.count)
    else:
        lengths, unheard, frames = _on_disk(utterances, features, faults, file)
    return sorted(set(range(len(utterances))) - set(unheard)), frames, lengths


Unheard = dict[int, tuple[str, str]]  # by the number of an utterance, kind of fault and sentence


def _made(
    utterances: Sequence[Utterance], features: Features, faults: Faults, keep: Callable[[Tensor], object]
) -> tuple[list[int], Unheard]:
    lengths, unheard = [], {}
    for number, utterance in enumerate(utterances):
        try:
            frames = features(utterance)
        except Unusable as fault:
            faults.add(utterance.place, fault)
            unheard[number] = fault.kind, str(fault)
        else:
            keep(frames)
            lengths.append(len(frames))
    return lengths, unheard


def _on_disk(
    utterances: Sequence[Utterance], features: Features, faults: Faults, file: Path
) -> tuple[list[int], Unheard, Tensor]:
    index, key = file.with_name(file.name + ".json"), _key(utterances, features)
    known = _known(index) if file.exists() else {}
    if known.get("key") == key and file.stat().st_size == 4 * features.count * sum(known["lengths"]):
        lengths, unheard = known["lengths"], {number: (kind, why) for number, (kind, why) in known["unheard"]}
        for number, (kind, why) in unheard.items():
            faults.add(utterances[number].place, Unusable(kind, why))
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        parts = [path.with_name(f"{path.name}.{os.getpid()}") for path in (file, index)]  # every rank its own
        try:
            with parts[0].open("wb") as to:
                lengths, unheard = _made(utterances, features, faults, lambda made: to.write(made.numpy().tobytes()))
            parts[1].write_text(json.dumps({"key": key, "lengths": lengths, "unheard": list(unheard.items())}))
            os.replace(parts[0], file)
            os.replace(parts[1], index)
        finally:
            for part in parts:
                part.unlink(missing_ok=True)
    shape = sum(lengths), features.count
    frames = torch.from_file(str(file), shared=False, size=shape[0] * shape[1]) if lengths else torch.empty(0)
    return lengths, unheard, frames.view(shape)


def _known(index: Path) -> dict[str, Any]:
    """What an earlier call left; nothing, where a crash has cut it."""
    try:
        found: dict[str, Any] = json.loads(index.read_text())
    except (OSError, ValueError):
        return {}
    return found


def _key(utterances: Sequence[Utterance], features: Features) -> str:
    """A digest of all that the frames depend on: features, clips, and the files' sizes and times."""
    digest = hashlib.sha256(repr(features).encode())
    for utterance in utterances:
        digest.update(repr((utterance.key, utterance.clips)).encode())
        for clip in utterance.clips:
            if clip.path is not None and os.path.exists(clip.path):
                about = clip.path.stat()
                digest.update(f"{about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()


def padded(frames: Tensor, starts: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """(batch, ``longest``, features) from stretches of ``frames``; what follows the end of one means nothing."""
    places = torch.arange(longest, device=frames.device).clamp(max=lengths[:, None] - 1)
    return frames[starts[:, None] + places]


def padded_from_file(frames: Tensor, starts: Tensor, lengths: Tensor, longest: int) -> Tensor:
    """The same, reading each stretch at once."""
    out = frames.new_zeros(len(starts), longest, frames.shape[1])
    for row, start, length in zip(out, starts.tolist(), lengths.tolist(), strict=True):
        row[:length] = frames[start : start + length]
    return out
