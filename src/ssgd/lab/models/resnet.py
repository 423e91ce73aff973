"""Residual nets for 32×32 images: ResNet (arXiv:1512.03385, section 4.2) and WideResNet (arXiv:1605.07146)."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .registry import DEPTHS


def cifar_resnet(depth: int, classes: int, shortcut: str = "A", channels: int = 3) -> nn.Module:
    """Builds ResNet20, 32, 44, 56 or 110. Shortcut ``"A"`` pads with zeros, as in the paper, ``"B"`` projects."""
    if depth not in DEPTHS:
        raise ValueError(f"no ResNet{depth} for CIFAR: the depths are {', '.join(map(str, DEPTHS))}")
    if shortcut not in ("A", "B"):
        raise ValueError(f"shortcut must be 'A' (zero padding) or 'B' (projection), not {shortcut!r}")
    return CifarResNet((depth - 2) // 6, classes, shortcut, channels)


def tensorflow_resnet(depth: int, classes: int, channels: int = 3) -> nn.Module:
    """The same, with batch-norm as TensorFlow has it by default: momentum 0.99 (torch's 0.01) and ε = 0.001."""
    net = cifar_resnet(depth, classes, channels=channels)
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum, module.eps = 0.01, 1e-3
    return net


class CifarResNet(nn.Module):
    """Three stages of 16, 32 and 64 channels with ``blocks`` residual blocks each."""

    def __init__(self, blocks: int, classes: int, shortcut: str, channels: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU())
        width, body = 16, []
        for wider in (16, 32, 64):
            for i in range(blocks):
                stride = 2 if wider > 16 and i == 0 else 1
                body.append(Block(width, wider, stride, shortcut))
                width = wider
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(width, classes)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.stem(x)).mean((2, 3)))
        return out


class Block(nn.Module):
    """Two 3×3 convolutions and the shortcut around them."""

    def __init__(self, width: int, channels: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if width != channels:
            self.shortcut = (
                ZeroPadded(stride, channels - width) if shortcut == "A" else Projected(width, channels, stride)
            )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ZeroPadded(nn.Module):
    """Every second pixel, and channels of zeros to fill up: no parameters."""

    def __init__(self, stride: int, more: int) -> None:
        super().__init__()
        self.stride, self.padding = stride, (0, 0, 0, 0, more // 2, more - more // 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], self.padding)


class Projected(nn.Sequential):
    """A strided 1×1 convolution with batch-norm."""

    def __init__(self, width: int, channels: int, stride: int) -> None:
        super().__init__(nn.Conv2d(width, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))


def wide_resnet(depth: int, widen: int, classes: int, channels: int = 3) -> nn.Module:
    """Builds WRN ``depth``-``widen``, without dropout. Its paper counts 6n + 4 layers for n blocks a stage.

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


def he_normal(net: nn.Module) -> None:
    """Draws convolutions and linear layers from N(0, 2 / fan-in) (He et al., arXiv:1502.01852), with biases of zero."""
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
