"""The best of several recipes by successive halving, judged on data that are not the test set."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

import torch

from ..train.job import Sources
from ..train.kinds import FIGURES, kind_of
from ..train.recipe import Execution, Recipe
from .cells import EPOCHS
from .running import Ended, figures

SURVIVES = 3  # one in so many goes on to the next round
HELD_OUT = 10  # one training sample in so many, where the recipe does not say how many


@dataclass(frozen=True)
class Round:
    """Figures after a course of so many epochs, by the candidate's name, the best first; without those that failed."""

    epochs: int
    metric: str  # "accuracy", "perplexity" or "wer"
    figures: Mapping[str, float]


def judged_on_held_out(recipe: Recipe, execution: Execution) -> tuple[Recipe, str]:
    """Returns the recipe with as much held out as it says, else a tenth, and in words what it is judged on."""
    source = Sources(execution).get(replace(recipe, held_out=max(1, recipe.held_out)), torch.device("cpu"))
    count = recipe.held_out or max(1, (source.steps(1) + 1) // HELD_OUT)
    words = f"{count} {kind_of(source).samples} held out of its training part"
    return replace(recipe, held_out=count), "its validation part" if source.kind == "language" else words


def halving(candidates: Sequence[Recipe], train: Callable[[list[Recipe]], Mapping[str, Ended]]) -> Iterator[Round]:
    """Yields rounds until one candidate is left, the first of the last round.

    A third of a round's candidates go on to the next, which has three times the epochs; the last round's course is the
    whole one. Each course is a training of its own from beginning to end, its rate falling as the whole one's does: the
    first part of a long course, at a high rate, would tell little of noise and weight decay.
    """
    left = list(candidates)
    rounds = next(count for count in range(1, len(left) + 1) if SURVIVES**count >= len(left))
    for later in reversed(range(rounds)):
        courses = {recipe.name: shortened(recipe, SURVIVES**-later) for recipe in left}
        ended = train(list(courses.values()))
        found = {name: figures(recipe, ended) for name, recipe in courses.items()}
        means = {name: mean(of.values()) for name, of in found.items() if len(of) == len(courses[name].seeds)}
        if not means:
            raise ValueError(f"no candidate could be trained: {next(one['failure'] for one in ended.values())}")
        result = next(one["result"] for one in ended.values() if "result" in one)
        metric = next(name for name in FIGURES if f"test_{name}" in result)
        best = sorted(means, key=lambda name: means[name], reverse=metric == "accuracy")
        epochs = next(iter(courses.values())).schedule.epochs
        yield Round(epochs, metric, {name: means[name] for name in best})
        kept = best[: math.ceil(len(left) / SURVIVES)]
        left = [recipe for recipe in left if recipe.name in kept]


def shortened(recipe: Recipe, share: float) -> Recipe:
    """Returns the recipe with this share of its epochs, its phases and rates in proportion, named by their number."""

    def fewer(epochs: int) -> int:
        return epochs and max(1, round(epochs * share))

    short = replace(
        recipe,
        phases=EPOCHS.sub(lambda found: str(fewer(int(found[0]))), recipe.phases.replace(" ", "")),
        epochs=recipe.epochs and fewer(recipe.epochs),
        warm_up=recipe.warm_up * share,
        decay=recipe.decay ** (1 / share),
        decay_after=round(recipe.decay_after * share),
    )
    return replace(short, name=f"{recipe.name}/{short.schedule.epochs}-epochs")
