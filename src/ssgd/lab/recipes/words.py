"""A language of thirty words that is made up on the spot: a language model in seconds."""

from __future__ import annotations

from ..train.recipe import Recipe


def words() -> Recipe:
    """A tiny LSTM learns which word follows which."""
    return Recipe(
        name="words",
        model="lstm-tiny",
        data="fake-text",
        augment=False,
        phases="4-2",
        lr=(1.0, 0.2),
        clip=5.0,
        momentum=0.0,
        weight_decay=0.0,
        batch=20,
        precision="fp32",
    )
