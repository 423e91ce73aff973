"""The networks that the benchmarks step: written out here, so that they need torch alone."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def resnet18(classes: int = 1000) -> nn.Module:
    """ResNet18 in its ImageNet shapes: 62 parameter tensors, 11,689,512 parameters."""
    stages: list[nn.Module] = []
    width_in = 64
    for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        stages += [BasicBlock(width_in, width, stride), BasicBlock(width, width, 1)]
        width_in = width
    return nn.Sequential(
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
        *stages,
        SpatialMean(),
        nn.Linear(512, classes),
    )


def wide_block(width: int = 128, classes: int = 10) -> nn.Module:
    """One block of WRN28-4's second group, with a linear head to get a loss from."""
    return nn.Sequential(WideBlock(width, width, 1), SpatialMean(), nn.Linear(width, classes))


def wide_resnet28(widen: int = 4, classes: int = 10) -> nn.Module:
    """WRN28-k for 32×32 images; k = 4 has 5,849,050 parameters."""
    blocks: list[nn.Module] = []
    width_in = 16
    for width, stride in ((16 * widen, 1), (32 * widen, 2), (64 * widen, 2)):
        blocks += [WideBlock(width_in, width, stride)] + [WideBlock(width, width, 1) for _ in range(3)]
        width_in = width
    return nn.Sequential(
        conv3x3(3, 16),
        *blocks,
        nn.BatchNorm2d(width_in),
        nn.ReLU(),
        SpatialMean(),
        nn.Linear(width_in, classes),
    )


def small_conv_net(classes: int = 10) -> nn.Module:
    """A net small enough for launches to cost more than arithmetic; 8×8 images of one channel."""
    return nn.Sequential(
        conv3x3(1, 16),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        conv3x3(16, 16),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 8 * 8, 64),
        nn.ReLU(),
        nn.Linear(64, classes),
    )


class BasicBlock(nn.Module):
    """Two 3×3 convolutions, normalised after each."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = conv3x3(width_in, width, stride)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or width_in != width:
            self.shortcut = nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x)))))
        return F.relu(inner + self.shortcut(x))


class WideBlock(nn.Module):
    """Two 3×3 convolutions, normalised before each."""

    def __init__(self, width_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(width_in)
        self.conv1 = conv3x3(width_in, width, stride)
        self.norm2 = nn.BatchNorm2d(width)
        self.conv2 = conv3x3(width, width)
        self.shortcut: nn.Module | None = None
        if stride != 1 or width_in != width:
            self.shortcut = nn.Conv2d(width_in, width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        inner = self.conv2(F.relu(self.norm2(self.conv1(active))))
        return inner + (x if self.shortcut is None else self.shortcut(active))


class SpatialMean(nn.Module):
    """Global average pooling."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


def conv3x3(width_in: int, width: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(width_in, width, 3, stride, 1, bias=False)
