"""Simple Gated ConvNet for CTC (Lee, Park and Sung, ASRU 2019), as far as it is known.

Known: 12 layers of 190 or 300 units have 1.09 M or 2.24 M parameters; gates in their simplest form, depthwise
convolution over time. The rest is our reading, which gives both counts: docs/speech.md.
"""

from __future__ import annotations

from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Length = TypeVar("Length", int, Tensor)


def sgcn(units: int, classes: int, channels: int = 40, layers: int = 12, fronts: int = 32) -> nn.Module:
    """Builds an SGCN of ``layers`` layers, two of them the front end, for ``channels`` features a frame."""
    if layers < 3:
        raise ValueError(f"an SGCN of {layers} layers has none that is gated: use at least 3")
    return SGCN(units, classes, channels, layers - 2, fronts)


class SGCN(nn.Module):
    """Two convolutions over features and time, a projection, gated layers, and a linear layer."""

    subsampling = 2

    def __init__(self, units: int, classes: int, channels: int, gated: int, fronts: int) -> None:
        super().__init__()
        self.front1 = nn.Conv2d(1, fronts, (41, 11), (2, 2), (20, 5))
        self.front2 = nn.Conv2d(fronts, fronts, (21, 11), (2, 1), (10, 5))
        self.project = nn.Linear(fronts * _halved(_halved(channels)), units)
        self.body = nn.ModuleList(Gated(units) for _ in range(gated))
        self.norm = nn.LayerNorm(units)
        self.head = nn.Linear(units, classes)
        for front in (self.front1, self.front2):
            nn.init.kaiming_normal_(front.weight)
            nn.init.zeros_(front.bias)  # type: ignore[arg-type]

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities (T', B, classes) of features (B, F, T), and how many frames each utterance has left."""
        lengths = _halved(lengths)
        inside = torch.arange(_halved(x.shape[2]), device=x.device) < lengths[:, None]  # (B, T')
        y = F.relu(self.front1(x[:, None])) * inside[:, None, None]
        y = F.relu(self.front2(y)) * inside[:, None, None]
        y = self.project(y.flatten(1, 2).transpose(1, 2))  # (B, T', units)
        for layer in self.body:
            y = layer(y, inside[:, :, None])
        logits = self.head(self.norm(y)).transpose(0, 1)
        return logits.float().log_softmax(2), lengths


class Gated(nn.Module):
    """x + V h · σ(W h), where h is x normalised and convolved over time, each unit by itself."""

    def __init__(self, units: int, width: int = 23) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(units)
        self.time = nn.Conv1d(units, units, width, padding=width // 2, groups=units, bias=False)
        self.value = nn.Linear(units, units)
        self.gate = nn.Linear(units, units)

    def forward(self, x: Tensor, inside: Tensor) -> Tensor:
        """``x`` is (B, T, units); frames that are not ``inside`` count as zeros."""
        h = self.time((self.norm(x) * inside).transpose(1, 2)).transpose(1, 2)
        out: Tensor = x + self.value(h) * self.gate(h).sigmoid()
        return out


def _halved(length: Length) -> Length:
    """Returns what a stride of 2 leaves of a length."""
    return (length + 1) // 2
