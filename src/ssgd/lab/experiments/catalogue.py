"""All experiments by name, and every recipe by name; each is built when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

from ...imported import did_you_mean
from ..train.recipe import Recipe
from . import figures, questions, tables
from .cells import Cell, Experiment
from .protocols import cifar, digits, tiny_imagenet10, utterances, words

_makers: dict[str, Callable[[], Experiment]] = {  # in the paper's order, then our own
    "fig2": figures.fig2,
    "fig3": partial(figures.noise_levels, "3"),
    "fig4": figures.fig4,
    "table1": tables.table1,
    "fig5": figures.fig5,
    "table2": tables.table2,
    "table3": tables.table3,
    "table4": tables.table4,
    "fig6": figures.fig6,
    "table5": tables.table5,
    "fig7": figures.fig7,
    "tableA1": partial(tables.single_runs, "A1", "CIFAR-10"),
    "tableA2": partial(tables.single_runs, "A2", "CIFAR-100"),
    "figA1": partial(figures.noise_levels, "A1"),
    "figA2": partial(figures.perplexities, "A2", "large"),
    "figA3": partial(figures.perplexities, "A3", "small"),
    "figA4": partial(figures.spectra, "A4", "base"),
    "figA5": partial(figures.spectra, "A5", "both"),
    "figA6": partial(figures.spectra, "A6", "base", "both"),
    "comparison": tables.comparison,
    "baseline": questions.baseline,
    "noise_units": questions.noise_units,
    "ablations": questions.ablations,
    "equal_cost": questions.equal_cost,
    "tune": questions.tune,
    "front": questions.front,
    "tolerance": questions.tolerance,
    "front-text": questions.front_text,
    "tolerance-text": questions.tolerance_text,
    "tolerance-digits": questions.tolerance_digits,
    "other_tasks": questions.other_tasks,
}
EXPERIMENTS = {name: cache(make) for name, make in _makers.items()}
STARTERS: dict[str, Callable[[], Recipe]] = {
    "digits": digits,
    "words": words,
    "utterances": utterances,
    "cifar10": partial(cifar, "cifar10"),
    "cifar100": cifar,
    "tiny-imagenet10": tiny_imagenet10,
}


def experiment(name: str) -> Experiment:
    """Returns the experiment of that name."""
    if name not in EXPERIMENTS:
        hint = did_you_mean(name, EXPERIMENTS, f"use one of {', '.join(EXPERIMENTS)}")
        raise ValueError(f"no experiment called {name!r}: {hint}")
    return EXPERIMENTS[name]()


def experiments() -> list[Experiment]:
    """Returns all of them."""
    return [make() for make in EXPERIMENTS.values()]


def get(name: str) -> Recipe:
    """Returns the recipe of that name."""
    if name in STARTERS:
        return Cell(name, STARTERS[name]).recipe
    mine = name.partition("/")[0]
    first = [EXPERIMENTS[mine]] if mine in EXPERIMENTS else []  # the most likely, so that the others need not be made
    for make in (*first, *EXPERIMENTS.values()):
        for cell in _cells(make()):
            if cell.name == name:
                return cell.recipe
    known = names()
    hint = did_you_mean(name, known, f"`ssgd recipes` lists all {len(known)}")
    raise ValueError(f"no recipe called {name!r}: {hint}")


def names() -> list[str]:
    """Returns the names of all recipes, without building one."""
    every = (cell.name for one in experiments() for cell in _cells(one))
    return list(dict.fromkeys((*STARTERS, *every)))


def listing() -> str:
    """Returns the names of all recipes under the experiments that they are of."""
    lines = list(STARTERS)
    known = names()[len(STARTERS) :]
    folders = {name.partition("/")[0]: None for name in known}
    for folder in folders:
        lines.append(f"\n{folder}: {experiment(folder).subject}")
        lines += [name for name in known if name.startswith(f"{folder}/")]
    return "\n".join(lines)


def _cells(one: Experiment) -> Iterator[Cell]:
    return (cell for cell in (*one.cells, *one.also) if cell.make is not None)
