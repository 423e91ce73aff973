"""The same experiment in three sizes.

``paper``: as the paper has it. ``small``: fewer seeds of the very same runs, so that they count for ``paper`` too.
``smoke``: the same methods and phases, a phase an epoch, on data that come with the package.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

from ..train.recipe import Recipe

STAND_INS = {  # by the data of the paper's run
    "ptb": ("fake-text", "lstm-tiny"),
    "wsj": ("fake-speech", "sgcn-small"),
    "an4": ("fake-speech", "sgcn-small"),
    "connected-digits": ("fake-speech", "sgcn-small"),
}


def at(scale: str, recipes: Sequence[Recipe], small_seeds: int = 2) -> list[Recipe]:
    """The paper's recipes at that scale."""
    if scale == "smoke":
        return [smoke(recipe) for recipe in recipes]
    count = small_seeds if scale == "small" else None
    return [replace(recipe, seeds=recipe.seeds[:count]) for recipe in recipes]


def seeded(recipes: Sequence[Recipe], count: int) -> list[Recipe]:
    """With so many seeds each."""
    return [replace(recipe, seeds=tuple(range(count))) for recipe in recipes]


def smoke(recipe: Recipe) -> Recipe:
    """In seconds on a CPU; only the structure is that of the paper."""
    data, model = STAND_INS.get(recipe.data, ("digits", "small-cnn"))
    restarts = recipe.epochs is not None
    images = data == "digits"
    return replace(
        recipe,
        name=renamed(recipe.name, "smoke"),
        data=data,
        model=model,
        phases="1*2" if restarts else re.sub(r"(^|-)\d+", r"\g<1>1", recipe.phases),
        epochs=3 if restarts else None,
        warm_up=min(recipe.warm_up, 1.0),
        batch=24 * round(2 + math.log2(recipe.batch / 128)) if images else min(recipe.batch, 16),
        train_limit=250 if images else None,
        test_limit=200 if images else None,
        held_out=min(recipe.held_out, 100),
        seeds=recipe.seeds[:1],
    )


def renamed(name: str, scale: str) -> str:
    """Runs of another length have folders of their own: ``fig3/smoke/all/0.5``."""
    first, _, rest = name.partition("/")
    return f"{first}/{scale}/{rest}"
