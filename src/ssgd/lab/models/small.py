"""A net for the 8×8 digits that come with the package: ours, small enough to train on one CPU core."""

from __future__ import annotations

from torch import Tensor, nn

from .init import he_normal


def small_cnn(classes: int, channels: int = 1) -> nn.Module:
    """Three 3×3 convolutions with batch-norm, the second and third with stride 2, and one linear layer."""
    return SmallCNN(classes, channels)


class SmallCNN(nn.Module):
    """16 channels on 8×8 pixels, 16 on 4×4, 32 on 2×2."""

    def __init__(self, classes: int, channels: int) -> None:
        super().__init__()
        body: list[nn.Module] = []
        width = channels
        for wider, stride in ((16, 1), (16, 2), (32, 2)):
            body += [nn.Conv2d(width, wider, 3, stride, 1, bias=False), nn.BatchNorm2d(wider), nn.ReLU()]
            width = wider
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(width, classes)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).mean((2, 3)))
        return out
