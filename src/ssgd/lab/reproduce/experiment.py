"""An experiment as data: which trainings it is made of, and what is drawn from their solutions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..train.recipe import Recipe

SCALES = ("smoke", "small", "paper")


@dataclass(frozen=True)
class Picture:
    """What is computed from finished solutions. Each is known by the last part of its recipe's name."""

    kind: str  # "line", "plane" or "spectrum"
    folder: str  # below that of the results
    of: Mapping[str, str]  # solutions, and what the picture calls them
    samples: int | None = None  # only the first so many of the training data, and of the test data


@dataclass(frozen=True)
class Experiment:
    """A table, a figure or a question. ``recipes(scale)`` are its trainings, each with its seeds."""

    name: str
    part: str
    title: str
    recipes: Callable[[str], list[Recipe]]
    picture: Picture | None = None
    curves: bool = False  # a row needs the figures of every epoch
    stem: str | None = None  # the last part of a name: where that recipe ends, those named like it before begin
    note: str | None = None  # what one has to know before running it
