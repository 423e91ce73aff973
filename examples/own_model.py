"""A model of your own: `PYTHONPATH=examples ssgd train digits model=own_model:build`.

`build` gets the number of classes and returns any `nn.Module` from a batch of inputs to a row of logits for each.
"""

from torch import nn


def build(classes: int) -> nn.Module:
    """Builds two convolutions for images of one channel and any size, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 32, classes),
    )
