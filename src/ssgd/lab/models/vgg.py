"""VGG nets for 32×32 images (Simonyan & Zisserman, arXiv:1409.1556), with batch-norm and one linear layer."""

from __future__ import annotations

from torch import Tensor, nn

from .init import he_normal

STAGES = {
    6: ((128, 128), (256, 256), (512, 512)),
    16: ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512)),
}


def vgg(depth: int, classes: int, channels: int = 3) -> nn.Module:
    """VGG6 or VGG16. S-SGD's paper does not define its VGG6: six convolutions, with these widths, is our reading.

    VGG16 has the 13 convolutions of the original. In both, the mean over what is left of the image and one linear layer
    replace the original's three.
    """
    if depth not in STAGES:
        raise ValueError(f"no VGG{depth} for 32×32 images: the depths are {', '.join(map(str, STAGES))}")
    return VGG(STAGES[depth], classes, channels)


class VGG(nn.Module):
    """Stages of 3×3 convolutions, each stage followed by a pooling that halves the image."""

    def __init__(self, stages: tuple[tuple[int, ...], ...], classes: int, channels: int) -> None:
        super().__init__()
        body: list[nn.Module] = []
        width = channels
        for stage in stages:
            for wider in stage:
                body += [nn.Conv2d(width, wider, 3, padding=1), nn.BatchNorm2d(wider), nn.ReLU()]
                width = wider
            body.append(nn.MaxPool2d(2))
        self.body = nn.Sequential(*body)
        self.head = nn.Linear(width, classes)
        he_normal(self)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(x).mean((2, 3)))
        return out
