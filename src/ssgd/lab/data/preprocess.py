"""What makes of a user's images, words or recordings what a net takes. It is kept with a run, and made again there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ssgd.lab.data.augment import mean_and_std, normal_table, normalised

END, UNKNOWN = "<eos>", "<unk>"  # of a text


@dataclass(frozen=True)
class Pixels:
    """Normalises images in bytes by channel; ``size`` is the height and width to which image files are brought."""

    mean: Sequence[float]
    std: Sequence[float]
    size: int | None = None

    @classmethod
    def of(cls, images: Tensor) -> Pixels:
        """Takes mean and deviation from images (N, C, H, W)."""
        return cls(*mean_and_std(images))

    def table(self, device: torch.device | str, dtype: torch.dtype) -> Tensor:
        """Returns the normalised value of each byte in each channel."""
        return normal_table(self.mean, self.std).to(dtype).to(device)

    def __call__(self, images: Tensor | Sequence[str | Path]) -> Tensor:
        """Returns images (N, C, H, W) of bytes, or the image files at these paths, as a batch."""
        if isinstance(images, Tensor):
            pixels = images.permute(0, 2, 3, 1)
        elif self.size is None:
            raise ValueError(
                "this net learned from images in bytes, not from files: give a tensor (N, C, H, W) of them"
            )
        else:
            from ssgd.lab.data.folder import read

            pixels = torch.stack([torch.from_numpy(read(str(path), self.size, None).copy()) for path in images])
        if pixels.dtype != torch.uint8 or pixels.shape[-1] != len(self.mean):
            raise ValueError(
                f"this net takes bytes of {len(self.mean)} channels, (N, {len(self.mean)}, H, W), not"
                f" {pixels.dtype} of the shape {tuple(images.shape) if isinstance(images, Tensor) else pixels.shape}"
            )
        return normalised(pixels, self.table(pixels.device, torch.float32))


@dataclass(frozen=True)
class Words:
    """Numbers the words of a text by a vocabulary; a word that is not in it is ``<unk>``, where there is one."""

    vocabulary: Sequence[str]
    characters: bool = False  # whether a word is a single character

    def __call__(self, text: str) -> Tensor:
        """Returns the numbers [1, steps] of ``<eos>`` and the words of a text."""
        words = [END, *(text if self.characters else text.split())]
        numbers = {word: number for number, word in enumerate(self.vocabulary)}
        found = [numbers.get(word, numbers.get(UNKNOWN)) for word in words]
        if None in found:
            raise ValueError(f"{words[found.index(None)]!r} is not in the vocabulary of the training text")
        return torch.tensor([found])


@dataclass(frozen=True)
class Recordings:
    """Computes the features of sound, and normalises them: by the file itself, or by ``shift`` and ``scale``."""

    features: Any
    shift: Sequence[float] | None = None
    scale: Sequence[float] | None = None

    def __call__(self, file: str | Path) -> tuple[Tensor, Tensor]:
        """Returns the features (1, F, T) of a file, and their length; the file counts as a speaker of its own."""
        from ssgd.lab.data.speech.frames import by_group
        from ssgd.lab.data.speech.utterances import Clip, Utterance

        frames = self.features(Utterance(Path(file).stem, "", (Clip(Path(file)),)))
        if self.shift is None or self.scale is None:
            shift, scale = by_group([""], [frames])
        else:
            shift, scale = torch.tensor(self.shift), torch.tensor(self.scale)
        return ((frames - shift) * scale).T[None], torch.tensor([len(frames)])


Preprocess = Pixels | Words | Recordings


def to_json(preprocess: Preprocess) -> dict[str, Any]:
    """Returns the preprocessing as a run keeps it."""
    found = {"kind": type(preprocess).__name__, **vars(preprocess)}
    if isinstance(preprocess, Recordings):
        found["features"] = {"kind": type(preprocess.features).__name__, **asdict(preprocess.features)}
    return found


def from_json(found: Mapping[str, Any]) -> Preprocess:
    """Returns the preprocessing of which to_json() made this."""
    kinds: dict[str, Any] = {"Pixels": Pixels, "Words": Words, "Recordings": Recordings}
    values = {name: value for name, value in found.items() if name != "kind"}
    if found.get("kind") == "Recordings":
        from ssgd.lab.data.corpora.free import Patterns
        from ssgd.lab.data.speech.features import Cepstra, LogMel

        features = dict(values["features"])
        values["features"] = {"LogMel": LogMel, "Cepstra": Cepstra, "Patterns": Patterns}[features.pop("kind")](
            **features
        )
    made: Preprocess = kinds[found["kind"]](**values)
    return made
