"""A cell: a number of the paper, the recipe that makes ours, and the cell that its gain is counted from.

Everything else is a view of cells: a recipe by its name, an experiment and its plan, the row that answers a cell, the
verdict, and what stands on the page.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from ..train.recipe import Recipe
from .identity import identity

EPOCHS = re.compile(r"(?:(?<=^)|(?<=-))\d+(?![^(]*\))")  # of each phase, not a number in a method's name
SCALES = ("smoke", "small", "paper")
OURS = "our own question"
AGAIN = "test_accuracy_recomputed_bn"  # with batch-norm's statistics gathered again for the clean weights


@dataclass(frozen=True, eq=False)
class Cell:
    """One training, and what it is compared with.

    ``make`` builds the recipe, which gets ``name``; it is called once, when the recipe is first asked for. A cell of
    rows that have no recipe has no ``make``, and ``name`` is what those rows are called. ``scale`` is the smallest
    scale at which `ssgd reproduce` trains it; None: never under the experiment that shows it.
    """

    name: str
    make: Callable[[], Recipe] | None
    row: str = ""
    column: str = ""
    paper: float | None = None
    spread: float | None = None  # the paper's standard deviation over its runs
    runs: tuple[float, ...] = ()  # the paper's runs, where it lists them
    metric: str = "test_accuracy"
    base: Cell | None = None
    control: Cell | None = None  # the same training without noise, beside which the noise is judged
    x: float | None = None  # its place on the axis of a chart
    scale: str | None = "smoke"
    ours: bool = False  # a control that the paper does not have: shown once it has been run

    @cached_property
    def unnamed(self) -> Recipe:
        """The recipe but for its name."""
        if self.make is None:
            raise ValueError(f"{self.name} was trained before there were recipes, and cannot be trained again")
        return self.make()

    @cached_property
    def recipe(self) -> Recipe:
        return replace(self.unnamed, name=self.name)

    @cached_property
    def identity(self) -> str:
        return self.name if self.make is None else identity(self.unnamed)

    @property
    def gain(self) -> float | None:
        """The gain that the paper reports."""
        if self.paper is None or self.base is None or self.base.paper is None:
            return None
        return self.paper - self.base.paper


@dataclass(frozen=True)
class Picture:
    """What is computed from finished solutions, each of which is known by the last part of its recipe's name."""

    kind: str  # "line", "plane" or "spectrum"
    folder: str  # below the folder of results
    of: Mapping[str, str]  # the solutions, and what the picture calls them
    samples: int | None = None  # only the first so many of the training data, and of the test data


@dataclass(frozen=True, eq=False)
class Experiment:
    """A table or a figure of the paper, or a question of our own, as cells.

    ``x`` and ``y`` label the chart of its cells, which has a curve for each row. ``stem`` is the last part of the name
    of the recipe from whose end those named like it begin.
    """

    name: str
    title: str
    about: str
    cells: tuple[Cell, ...]
    also: tuple[Cell, ...] = ()  # what is trained for a picture or a comparison, and shown elsewhere
    part: str = ""  # of the paper; empty: a question of our own
    x: str = ""
    y: str = ""
    x_scale: str = "linear"  # or log, or names: the columns of the cells
    from_zero: bool = False  # every curve of the chart begins at its base, which has level 0
    base: str = "SGD"  # what gains are counted from
    note: str = ""  # what a reader has to know
    before: str = ""  # what one has to know before running it
    picture: Picture | None = None
    needs: tuple[str, ...] = ()  # figures without which a row does not count as done; of "curve" every epoch
    stem: str | None = None
    small_seeds: int = 2
    unseen: bool = False  # seed 0, with which levels were tuned, is left out

    @property
    def subject(self) -> str:
        """The first sentence of what it is about."""
        return re.split(r"(?<=[.?]) ", self.about, maxsplit=1)[0].removesuffix(".")

    @property
    def held_out(self) -> bool:
        """Whether it is judged on a part of the training data."""
        first = next((cell for cell in self.cells if cell.make), None)
        return first is not None and first.unnamed.held_out > 0

    def recipes(self, scale: str) -> list[Recipe]:
        """The trainings at a scale, each with its seeds.

        ``paper``: all of them. ``small``: some of them, with fewer seeds, so that they count for ``paper`` too.
        ``smoke``: their methods and phases in seconds, on data that come with the package.
        """
        known = SCALES[: SCALES.index(scale) + 1]
        chosen = {cell.name: cell for cell in (*self.cells, *self.also) if cell.scale in known}
        found = [cell.recipe for cell in chosen.values()]
        if scale == "smoke":
            return [smoke(recipe) for recipe in found]
        count = self.small_seeds if scale == "small" else None
        return [replace(recipe, seeds=recipe.seeds[:count]) for recipe in found]


STAND_INS = {  # by the data of the paper's run
    "ptb": ("fake-text", "lstm-tiny"),
    "ptb-characters": ("fake-text", "gpt-tiny"),
    "wsj": ("fake-speech", "sgcn-small"),
    "an4": ("fake-speech", "sgcn-small"),
    "connected-digits": ("fake-speech", "sgcn-small"),
}


def smoke(recipe: Recipe) -> Recipe:
    """Returns the recipe shortened to seconds on a CPU; only its structure is that of the paper."""
    data, model = STAND_INS.get(recipe.data, ("digits", "small-cnn"))
    restarts = recipe.epochs is not None
    images = data == "digits"
    first, _, rest = recipe.name.partition("/")
    return replace(
        recipe,
        name=f"{first}/smoke/{rest}",
        data=data,
        model=model,
        phases="1*2" if restarts else EPOCHS.sub("1", recipe.phases),
        epochs=3 if restarts else None,
        warm_up=min(recipe.warm_up, 1.0),
        batch=24 * round(2 + math.log2(recipe.batch / 128)) if images else min(recipe.batch, 16),
        train_limit=250 if images else None,
        test_limit=200 if images else None,
        held_out=min(recipe.held_out, 100),
        seeds=recipe.seeds[:1],
    )


def labelled(method: str, level: float | None) -> str:
    """Returns a method with its level as names of recipes have it: ``both-0.29``."""
    return method if level is None else f"{method}-{level:.2g}"
