"""Data of your own: `PYTHONPATH=examples ssgd train digits data=own_data:load model=own_model:build`.

`load` returns two map-style Datasets of (input, target), for training and for testing. torchvision's serve as they are,
`return CIFAR10(root, train=True, transform=…), CIFAR10(root, train=False, transform=…)`, and Hugging Face's with two
columns, `sets = load_dataset("mnist"); return sets["train"], sets["test"]`.
"""

import torch
from torch.utils.data import TensorDataset


def load() -> tuple[TensorDataset, TensorDataset]:
    """Makes images of 1×8×8 with a bright square in one of four corners, under noise; the corner is the class."""
    numbers = torch.Generator().manual_seed(0)
    images, corners = torch.randn(800, 1, 8, 8, generator=numbers), torch.arange(800) % 4
    for image, corner in zip(images, corners.tolist(), strict=True):
        down, right = 4 * (corner // 2), 4 * (corner % 2)
        image[:, down : down + 4, right : right + 4] += 1.0
    return TensorDataset(images[:600], corners[:600]), TensorDataset(images[600:], corners[600:])
