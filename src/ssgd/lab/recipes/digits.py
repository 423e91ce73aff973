"""The digits that come with the package: a training that takes seconds."""

from __future__ import annotations

from ..train.recipe import Recipe


def digits() -> Recipe:
    """A small convolutional net on 1,000 of the embedded digits, tested on the other 797."""
    return Recipe(
        name="digits", model="small-cnn", data="digits", phases="8-4", lr=(0.1, 0.01), batch=50, weight_decay=5e-4
    )
