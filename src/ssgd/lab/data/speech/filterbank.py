"""Log-mel filterbank features as Kaldi computes them, in torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from ssgd.lab.data.faults import Unusable
from ssgd.lab.data.speech.audio import samples
from ssgd.lab.data.speech.deltas import with_deltas
from ssgd.lab.data.speech.utterances import Utterance


@dataclass(frozen=True)
class LogMel:
    """Features of sound: ``mels`` bands a frame from ``low`` Hz to half the rate, and ``deltas`` rounds of differences.

    Kaldi's settings for the rest: mean removed, pre-emphasis 0.97, Povey's window, power spectrum, no dither.
    """

    rate: int = 16000
    mels: int = 40
    window_ms: float = 25.0
    shift_ms: float = 10.0
    low: float = 20.0
    deltas: int = 0

    def __post_init__(self) -> None:
        if self.width < 2 or self.shift < 1 or not _bands(self).gt(0).any(0).all():  # a band without a frequency
            raise ValueError(
                f"{self.mels} bands are too many for sound of {self.rate} samples a second: use recordings of 8000 or"
                " more, or fewer bands"
            )

    @property
    def count(self) -> int:
        return self.mels * (1 + self.deltas)

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
        """What a frame is padded to before its spectrum is taken."""
        return 1 << (self.width - 1).bit_length()

    def __call__(self, utterance: Utterance) -> Tensor:
        """Frames (time, features)."""
        frames = log_mel(samples(utterance, self.rate), self)
        if not len(frames):
            raise Unusable("too short", f"the audio of {utterance.key} is shorter than {self.window_ms:g} ms")
        if not frames.isfinite().all():
            files = ", ".join(str(clip.path) for clip in utterance.clips if clip.path)
            raise Unusable("broken audio", f"{files}: samples are not finite, or far outside −1 to 1")
        return with_deltas(frames, self.deltas)


def log_mel(sound: Tensor, options: LogMel) -> Tensor:
    """Frames (time, mels) of samples between −1 and 1; only frames that lie wholly inside."""
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
    """Weights (size / 2, mels): triangles that overlap by half, of equal width in mel."""
    first, last = _mel(torch.tensor([options.low, options.rate / 2])).tolist()
    edges = torch.linspace(first, last, options.mels + 2, dtype=torch.float64)
    points = _mel(torch.arange(options.size // 2, dtype=torch.float64) * options.rate / options.size)[:, None]
    rising = (points - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - points) / (edges[2:] - edges[1:-1])
    return torch.minimum(rising, falling).clamp(min=0).float()


def _mel(hertz: Tensor) -> Tensor:
    return 1127.0 * (1.0 + hertz.double() / 700.0).log()
