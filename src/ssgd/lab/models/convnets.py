"""Plain stacks of convolutions with batch-norm and one linear layer: VGG (arXiv:1409.1556) and a net for the digits."""

from __future__ import annotations

from torch import Tensor, nn

from .resnet import he_normal

STAGES = {
    6: ((128, 128), (256, 256), (512, 512)),
    16: ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
}


def vgg(depth: int, classes: int, channels: int = 3) -> nn.Module:
    """Builds VGG6 or VGG16 for 32×32 images: stages of 3×3 convolutions, each followed by a pooling that halves them.

    S-SGD's paper does not define its VGG6: six convolutions, with these widths, is our reading. VGG16 has the 13
    convolutions of the original (Simonyan & Zisserman). In both, the mean over the pixels that are left and one linear
    layer replace the original's three.
    """
    if depth not in STAGES:
        raise ValueError(f"no VGG{depth} for 32×32 images: the depths are {', '.join(map(str, STAGES))}")
    return convolutions_and_poolings(STAGES[depth], classes, channels)


def convolutions_and_poolings(stages: tuple[tuple[int, ...], ...], classes: int, channels: int) -> nn.Module:
    """Builds a net of stages, each with a convolution for each of its widths and a pooling."""
    body: list[nn.Module] = []
    width = channels
    for stage in stages:
        for wider in stage:
            body += [nn.Conv2d(width, wider, 3, padding=1), nn.BatchNorm2d(wider), nn.ReLU()]
            width = wider
        body.append(nn.MaxPool2d(2))
    return ConvNet(body, width, classes)


def small_cnn(classes: int, channels: int = 1, groups: int | None = None) -> nn.Module:
    """Builds a net for the 8×8 digits, small enough to train on one CPU core.

    Three 3×3 convolutions have 16 channels on 8×8 pixels, 16 on 4×4 and 32 on 2×2. With ``groups`` they have
    group-norm in place of batch-norm.
    """
    body: list[nn.Module] = []
    width = channels
    for wider, stride in ((16, 1), (16, 2), (32, 2)):
        norm = nn.BatchNorm2d(wider) if groups is None else nn.GroupNorm(groups, wider)
        body += [nn.Conv2d(width, wider, 3, stride, 1, bias=False), norm, nn.ReLU()]
        width = wider
    return ConvNet(body, width, classes)


class ConvNet(nn.Module):
    """Layers one after the other, the mean over the pixels that they leave, and a linear layer."""

    def __init__(self, body: list[nn.Module], width: int, classes: int) -> None:
        super().__init__()
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(width, classes)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).mean((2, 3)))
        return out
