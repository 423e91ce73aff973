"""ResNets (arXiv:1512.03385) and WideResNets (arXiv:1605.07146) for 32×32 images, and ResNets for ImageNet."""

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
                body.append(Basic(width, wider, stride, shortcut))
                width = wider
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(width, classes)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.stem(x)).mean((2, 3)))
        return out


class Basic(nn.Module):
    """Two 3×3 convolutions and the shortcut around them."""

    expansion = 1

    def __init__(self, width: int, inner: int, stride: int, shortcut: str = "B") -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, inner, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.downsample = _shortcut(width, inner, stride, shortcut)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


def _shortcut(width: int, wider: int, stride: int, kind: str = "B") -> nn.Module:
    if width == wider and stride == 1:
        return nn.Identity()
    if kind == "A":
        return ZeroPadded(stride, wider - width)
    return nn.Sequential(nn.Conv2d(width, wider, 1, stride, bias=False), nn.BatchNorm2d(wider))


class ZeroPadded(nn.Module):
    """Every second pixel, and channels of zeros to fill up: no parameters."""

    def __init__(self, stride: int, more: int) -> None:
        super().__init__()
        self.stride, self.padding = stride, (0, 0, 0, 0, more // 2, more - more // 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x[:, :, :: self.stride, :: self.stride], self.padding)


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


# --- for ImageNet -----------------------------------------------------------------------------------------------------


def imagenet_resnet(depth: int, classes: int, channels: int = 3) -> nn.Module:
    """Builds ResNet18 or 50 with torchvision's parameter names: its checkpoints load.

    As there, a bottleneck strides in its 3×3 convolution (v1.5), not in a 1×1.
    """
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
