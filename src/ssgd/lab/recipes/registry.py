"""Every recipe by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ...core.checks import did_you_mean
from ..train.recipe import Recipe
from . import (
    baseline,
    beyond,
    comparison,
    fig3,
    fig5,
    fig7,
    front,
    level,
    price,
    setting,
    spectra,
    table1,
    table2,
    table3,
    table4,
    table5,
)
from .cifar import cifar10, cifar100
from .digits import digits
from .words import words

DATA = ("cifar10", "cifar100")


def get(name: str) -> Recipe:
    """The recipe of that name."""
    if name not in RECIPES:
        hint = did_you_mean(name, RECIPES, f"`ssgd recipes` lists all {len(RECIPES)}")
        raise ValueError(f"no recipe called {name!r}: {hint}")
    return RECIPES[name]()


def listing() -> str:
    """Names and what they train, a line each."""
    rows, width = [], max(map(len, RECIPES))
    for name in RECIPES:
        recipe = get(name)
        method = recipe.method if recipe.level is None else f"{recipe.method}({recipe.level:g})"
        rows.append(f"{name:{width}}  {recipe.model}, {recipe.data}, {method}, {recipe.phases}, batch {recipe.batch}")
    return "\n".join(rows)


def _all() -> dict[str, Callable[[], Recipe]]:
    makers: list[Callable[[], Recipe]] = [digits, words, table4.utterances, cifar10, cifar100]
    makers += [partial(table1.table1, data, phases) for data in DATA for phases in table1.PHASES]
    for data in DATA:
        for model, levels in table2.LEVELS.items():
            makers += [partial(table2.table2, data, model, a) for a in (None, *levels)]
    makers += [partial(table3.table3, depth, method) for depth in (18, 50) for method in ("sgd", "ssgd")]
    makers.append(table3.tiny_imagenet10)
    makers += [partial(fig3.fig3, a, curve) for curve in fig3.FIG_A1 for a in fig3.LEVELS]
    makers += [fig3.level_0, fig3.dropout, comparison.dropconnect, comparison.dropconnect_conv]
    makers += [partial(fig5.fig5, method, batch) for method in fig5.METHODS for batch in fig5.BATCHES]
    makers += [
        partial(fig5.control, method, batch, name)
        for name in fig5.CONTROLS
        for method in fig5.CONTROLLED
        for batch in fig5.BATCHES
    ]
    makers += [partial(fig7.fig7, label) for label in fig7.PHASES]
    makers += [partial(spectra.wide, label) for label in ("sgd", "ssgd")]
    for place in table4.PLACES:
        for units in (190, 300):
            makers.append(partial(table4.table4, place, units))
            makers.append(partial(table4.table4, place, units, "ssgd", table4.LEVEL))
    for size, sweep in table5.SWEEP.items():
        makers += [partial(table5.table5, size, a) for a in (None, *sweep)]
        makers += [partial(table5.table5, size, a, phases) for a in sweep for phases in table5.PHASES[size][2:]]
    makers += [partial(baseline.baseline, data, decay) for data in DATA for decay in baseline.DECAYS]
    makers += [
        partial(setting.setting, net, decay, label)
        for net in setting.NETS
        for decay in baseline.DECAYS
        for label in setting.LABELS
    ]
    makers += [
        level.sgd,
        *(partial(level.level, distribution, a) for distribution in level.DISTRIBUTIONS for a in fig3.LEVELS),
    ]
    for data in DATA:
        for model in price.MODELS:
            makers += [partial(price.price, data, model, label) for label in price.CONTENDERS]
            makers += [partial(price.tune, data, model, label) for label in ("sgd", "halves", "sgd-2x")]
            makers += [
                partial(price.tune, data, model, label, a) for label, tried in price.TUNED.items() for a in tried
            ]
    makers += [partial(front.front, label, a) for label, tried in front.LEVELS.items() for a in tried]
    makers += [partial(beyond.stem, task) for task in beyond.STEM_EPOCHS]
    makers += [partial(beyond.beyond, task, label) for task in beyond.LEVELS for label in beyond.labels(task)]
    return {make().name: make for make in makers}


RECIPES = _all()
