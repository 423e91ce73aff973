"""WideResNets for 32×32 images (Zagoruyko & Komodakis, arXiv:1605.07146), without dropout."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .init import he_normal


def wide_resnet(depth: int, widen: int, classes: int, channels: int = 3) -> nn.Module:
    """WRN ``depth``-``widen``. Its paper counts 6n + 4 layers for n blocks a stage, so 28 has four.

    S-SGD's WideResNet20x2 fits no such n. We read 20 as 6n + 2, the count of ResNet20: three blocks a stage, the net
    that the WideResNet paper would call 22.
    """
    if depth < 8 or depth % 6 not in (2, 4):
        raise ValueError(f"no WideResNet of depth {depth}: use 6n + 4 (16, 22, 28, 40) or 6n + 2 (20)")
    return WideResNet(depth // 6, widen, classes, channels)


class WideResNet(nn.Module):
    """Three stages of 16, 32 and 64 channels, ``widen`` times as many, with ``blocks`` residual blocks each."""

    def __init__(self, blocks: int, widen: int, classes: int, channels: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        width, body = 16, []
        for wider, stride in ((16 * widen, 1), (32 * widen, 2), (64 * widen, 2)):
            for i in range(blocks):
                body.append(PreActivated(width, wider, stride if i == 0 else 1))
                width = wider
        self.body = nn.Sequential(*body)
        self.norm = nn.BatchNorm2d(width)
        self.head = nn.Linear(width, classes)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(F.relu(self.norm(self.body(self.stem(x)))).mean((2, 3)))
        return out


class PreActivated(nn.Module):
    """Two 3×3 convolutions, batch-norm and ReLU before each; a 1×1 convolution around them where the width changes."""

    def __init__(self, width: int, wider: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width)
        self.conv1 = nn.Conv2d(width, wider, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, 1, 1, bias=False)
        self.shortcut = nn.Conv2d(width, wider, 1, stride, bias=False) if width != wider else None

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        around = x if self.shortcut is None else self.shortcut(active)
        out: Tensor = around + self.conv2(F.relu(self.norm2(self.conv1(active))))
        return out
