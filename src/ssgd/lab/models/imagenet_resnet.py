"""ResNets for ImageNet (He et al., arXiv:1512.03385) with torchvision's parameter names: its checkpoints load."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def imagenet_resnet(depth: int, classes: int, channels: int = 3) -> nn.Module:
    """Builds ResNet18 or 50. As in torchvision, a bottleneck strides in its 3×3 convolution (v1.5), not in a 1×1."""
    if depth == 18:
        return ImageNetResNet(Basic, (2, 2, 2, 2), classes, channels)
    if depth == 50:
        return ImageNetResNet(Bottleneck, (3, 4, 6, 3), classes, channels)
    raise ValueError(f"no ResNet{depth} for ImageNet: the depths are 18 and 50")


class ImageNetResNet(nn.Module):
    """Four stages of 64, 128, 256 and 512 channels (four times as many behind bottlenecks)."""

    def __init__(
        self, block: type[Basic] | type[Bottleneck], blocks: tuple[int, int, int, int], classes: int, channels: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.layer1 = _stage(block, blocks[0], 64, 64, stride=1)
        self.layer2 = _stage(block, blocks[1], 64 * block.expansion, 128, stride=2)
        self.layer3 = _stage(block, blocks[2], 128 * block.expansion, 256, stride=2)
        self.layer4 = _stage(block, blocks[3], 256 * block.expansion, 512, stride=2)
        self.fc = nn.Linear(512 * block.expansion, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.zeros_(self.fc.bias)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        out: Tensor = self.fc(x.mean((2, 3)))
        return out


class Basic(nn.Module):
    """Two 3×3 convolutions."""

    expansion = 1

    def __init__(self, width: int, inner: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, inner, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.downsample = _shortcut(width, inner, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class Bottleneck(nn.Module):
    """A 3×3 convolution between two of 1×1, the last four times as wide."""

    expansion = 4

    def __init__(self, width: int, inner: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, inner * self.expansion, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(inner * self.expansion)
        self.downsample = _shortcut(width, inner * self.expansion, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


def _stage(block: type[Basic] | type[Bottleneck], blocks: int, width: int, inner: int, stride: int) -> nn.Sequential:
    first = block(width, inner, stride)
    return nn.Sequential(first, *(block(inner * block.expansion, inner, 1) for _ in range(blocks - 1)))


def _shortcut(width: int, wider: int, stride: int) -> nn.Module:
    if width == wider and stride == 1:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(width, wider, 1, stride, bias=False), nn.BatchNorm2d(wider))
