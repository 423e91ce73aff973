"""Features: log-mel energies as Kaldi computes them, cepstra of Sphinx, and the masks of SpecAugment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ssgd.lab.data.faults import Unusable
from ssgd.lab.data.speech.audio import samples
from ssgd.lab.data.speech.utterances import Utterance


@dataclass(frozen=True)
class LogMel:
    """Features of sound: ``mels`` bands a frame, from ``low`` Hz to half the rate.

    Kaldi's settings for the rest: mean removed, pre-emphasis 0.97, Povey's window, power spectrum, no dither.
    """

    rate: int = 16000
    mels: int = 40
    window_ms: float = 25.0
    shift_ms: float = 10.0
    low: float = 20.0

    def __post_init__(self) -> None:
        if self.width < 2 or self.shift < 1 or not _bands(self).gt(0).any(0).all():  # a band without a frequency
            raise ValueError(
                f"{self.mels} bands are too many for sound of {self.rate} samples a second: use recordings of 8000 or"
                " more, or fewer bands"
            )

    @property
    def count(self) -> int:
        return self.mels

    @property
    def width(self) -> int:
        """Samples in a frame."""
        return int(self.rate * self.window_ms / 1000)

    @property
    def shift(self) -> int:
        """Samples from one frame to the next."""
        return int(self.rate * self.shift_ms / 1000)

    @property
    def size(self) -> int:
        """The length to which a frame is padded before its spectrum is taken."""
        return 1 << (self.width - 1).bit_length()

    def __call__(self, utterance: Utterance) -> Tensor:
        """Returns frames (time, features)."""
        frames = log_mel(samples(utterance, self.rate), self)
        if not len(frames):
            raise Unusable("too short", f"the audio of {utterance.key} is shorter than {self.window_ms:g} ms")
        if not frames.isfinite().all():
            files = ", ".join(str(clip.path) for clip in utterance.clips if clip.path)
            raise Unusable("broken audio", f"{files}: samples are not finite, or far outside −1 to 1")
        return frames


def log_mel(sound: Tensor, options: LogMel) -> Tensor:
    """Returns frames (time, mels) of samples between −1 and 1; only frames that lie wholly inside."""
    if len(sound) < options.width:
        return sound.new_empty(0, options.mels)
    frames = (sound * 32768).unfold(0, options.width, options.shift)  # Kaldi's scale: that of 16-bit integers
    frames = frames - frames.mean(1, keepdim=True)
    frames = frames - 0.97 * torch.cat([frames[:, :1], frames[:, :-1]], 1)
    power = torch.fft.rfft(frames * _window(options.width), options.size).abs().square()
    energies = power[:, :-1] @ _bands(options)
    out: Tensor = energies.clamp(min=torch.finfo(torch.float32).eps).log()
    return out


def _window(width: int) -> Tensor:
    return torch.hann_window(width, periodic=False).pow(0.85)


@lru_cache(maxsize=8)
def _bands(options: LogMel) -> Tensor:
    """Returns weights (size / 2, mels): triangles that overlap by half, of equal width in mel."""
    first, last = _mel(torch.tensor([options.low, options.rate / 2])).tolist()
    edges = torch.linspace(first, last, options.mels + 2, dtype=torch.float64)
    points = _mel(torch.arange(options.size // 2, dtype=torch.float64) * options.rate / options.size)[:, None]
    rising = (points - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - points) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0).float()


def _mel(hertz: Tensor) -> Tensor:
    return 1127.0 * (1.0 + hertz.double() / 700.0).log()


@dataclass(frozen=True)
class Cepstra:
    """Features that lie in Sphinx's files, ``count`` numbers a frame."""

    count: int = 13

    def __call__(self, utterance: Utterance) -> Tensor:
        """Returns frames (time, features)."""
        return torch.cat([read_mfc(clip.path, self.count) for clip in utterance.clips if clip.path is not None])


def read_mfc(path: Path, coefficients: int = 13) -> Tensor:
    """Reads frames (time, coefficients). The count of numbers at the beginning tells the byte order."""
    if not os.path.isfile(path) or not os.access(path, os.R_OK):
        raise Unusable("missing audio", f"{path} is not there, or may not be read")
    content = path.read_bytes()
    count = len(content) // 4 - 1
    orders = [order for order in (">", "<") if content[:4] == np.array(count, f"{order}i4").tobytes()]
    if not orders or count < 1 or count % coefficients or len(content) % 4:
        sentence = f"{path} is cut short or no .mfc of {coefficients} coefficients: its length does not fit its count"
        raise Unusable("broken audio", sentence)
    frames = np.frombuffer(content, f"{orders[0]}f4", count, 4).astype(np.float32)
    if not np.isfinite(frames).all():
        raise Unusable("broken audio", f"{path} contains numbers that are not finite")
    return torch.from_numpy(frames.reshape(-1, coefficients))


@dataclass(frozen=True)
class SpecAugment:
    """SpecAugment (Park et al., arXiv:1904.08779) without time warping: masks over bands and stretches of time.

    A masked value becomes the mean. A band has up to ``band`` of the features, a stretch up to ``stretch`` of the
    utterance's frames.
    """

    bands: int = 2
    band: float = 0.2
    stretches: int = 2
    stretch: float = 0.05

    def drawn(self, utterances: int, numbers: torch.Generator) -> Tensor:
        """Draws two numbers from 0 to 1 for every mask of every utterance: its width and its place."""
        return torch.rand(utterances, self.bands + self.stretches, 2, generator=numbers)

    def kept(self, drawn: Tensor, features: int, lengths: Tensor, frames: int) -> Tensor:
        """Returns (batch, features, frames), true where features are kept."""
        device = drawn.device
        sizes = torch.tensor(float(features), device=device).expand(len(drawn), self.bands)
        spans = lengths[:, None].expand(-1, self.stretches).float()
        bands = _free(drawn[:, : self.bands], sizes, self.band, features)
        stretches = _free(drawn[:, self.bands :], spans, self.stretch, frames)
        return bands[:, :, None] & stretches[:, None, :]


def _free(drawn: Tensor, sizes: Tensor, part: float, count: int) -> Tensor:
    """Returns (batch, count), true at the places of a line that no mask covers."""
    widths = (drawn[..., 0] * (part * sizes + 1)).floor()
    starts = (drawn[..., 1] * (sizes - widths + 1)).floor()
    places = torch.arange(count, device=drawn.device)
    covered = (places >= starts[..., None]) & (places < (starts + widths)[..., None])
    return ~covered.any(1)
