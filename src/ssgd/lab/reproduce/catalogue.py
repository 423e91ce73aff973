"""All experiments by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from ...core.checks import did_you_mean
from ..recipes import baseline as baselines
from ..recipes import beyond, comparison, fig3, fig5, fig7, price, spectra, table1, table2, table3, table4, table5
from ..recipes import front as fronts
from ..recipes import level as levels
from ..recipes import setting as settings
from ..train.recipe import Recipe
from .experiment import Experiment, Picture
from .scales import at, renamed, seeded

DATA = ("cifar10", "cifar100")
FEW_LEVELS = {"small": (0.2, 0.4, 0.5, 0.7, 1.0), "smoke": (0.2, 0.5)}
SPECTRA = {"sgd": "SGD", "ssgd": "S-SGD"}
HESSIANS = Picture("spectrum", "figA6", SPECTRA, samples=10_000)


def get(name: str) -> Experiment:
    """The experiment of that name."""
    if name not in EXPERIMENTS:
        hint = did_you_mean(name, EXPERIMENTS, f"use one of {', '.join(EXPERIMENTS)}")
        raise ValueError(f"no experiment called {name!r}: {hint}")
    return EXPERIMENTS[name]


def _of_table1(scale: str) -> list[Recipe]:
    return at(scale, seeded([table1.table1(data, phases) for data in DATA for phases in table1.PHASES], 5))


def _of_table2(*data: str) -> Callable[[str], list[Recipe]]:
    def recipes(scale: str) -> list[Recipe]:
        cells = [(d, model, a) for d in data for model, known in table2.LEVELS.items() for a in (None, *known)]
        return at(scale, [table2.table2(*cell) for cell in cells])

    return recipes


def _of_table3(scale: str) -> list[Recipe]:
    found = [table3.table3(depth, method) for depth in (18, 50) for method in ("sgd", "ssgd")]
    if scale != "small":
        return at(scale, seeded(found, 3))
    return [replace(recipe, name=renamed(recipe.name, scale), phases="10-10-10") for recipe in found[:2]]


def _of_speech(*units: int) -> Callable[[str], list[Recipe]]:
    def recipes(scale: str) -> list[Recipe]:
        places = {"paper": tuple(table4.PLACES), "small": ("an4", "connected-digits"), "smoke": ("an4",)}[scale]
        how: tuple[tuple[str, float | None], ...] = (("sgd", None), ("ssgd", table4.LEVEL))
        return at(scale, [table4.table4(place, n, *way) for place in places for n in units for way in how])

    return recipes


def _of_table5(scale: str) -> list[Recipe]:
    return at(scale, [table5.table5(size, a) for size, known in table5.LEVELS.items() for a in (None, *known)])


def _of_ptb(size: str) -> Callable[[str], list[Recipe]]:
    def recipes(scale: str) -> list[Recipe]:
        tried = table5.SWEEP[size] if scale == "paper" else table5.LEVELS[size][:2]
        _, _, *mixed = table5.PHASES[size]
        found = [table5.table5(size, a, phases) for phases in (None, *mixed) for a in tried]
        return at(scale, [table5.table5(size), *found])

    return recipes


def _of_levels(*curves: str) -> Callable[[str], list[Recipe]]:
    def recipes(scale: str) -> list[Recipe]:
        found = [fig3.fig3(a, curve) for curve in curves for a in FEW_LEVELS.get(scale, fig3.LEVELS)]
        return at(scale, [fig3.level_0(), fig3.dropout(), *found])

    return recipes


def _of_fig4(scale: str) -> list[Recipe]:
    return at(scale, [table2.table2("cifar10", "resnet20", a) for a in (None, 0.5)])


def _of_fig5(scale: str) -> list[Recipe]:
    batches = fig5.BATCHES[::3] if scale == "smoke" else fig5.BATCHES
    found = [fig5.fig5(method, batch) for method in fig5.METHODS for batch in batches]
    for name in fig5.CONTROLS:
        found += [fig5.control(method, batch, name) for method in fig5.CONTROLLED for batch in batches]
    return at(scale, seeded(found, 3), 1)


def _solutions(make: Callable[[str], Recipe], labels: Sequence[str]) -> Callable[[str], list[Recipe]]:
    return lambda scale: at(scale, [make(label) for label in labels])


def _of_comparison(scale: str) -> list[Recipe]:
    sgd = table2.table2("cifar10", "resnet20")
    dropped = comparison.dropconnect(), comparison.dropconnect_conv()
    tried = [fig3.fig3(a, curve) for curve in fig3.FIG_A1 for a in (0.4, 0.5)]
    return at(scale, [sgd, *dropped, fig3.level_0(), fig3.dropout(), *tried])


def _of_baseline(scale: str) -> list[Recipe]:
    return at(scale, [baselines.baseline(data, decay) for data in DATA for decay in baselines.DECAYS])


def _of_level(scale: str) -> list[Recipe]:
    tried = FEW_LEVELS.get(scale, fig3.LEVELS)
    return at(
        scale, [levels.sgd(), *(levels.level(distribution, a) for distribution in levels.DISTRIBUTIONS for a in tried)]
    )


def _of_setting(scale: str) -> list[Recipe]:
    where = [(net, decay) for net in settings.NETS for decay in baselines.DECAYS]
    return at(scale, [settings.setting(*one, label) for one in where for label in settings.LABELS])


def _of_price(scale: str) -> list[Recipe]:
    return at(scale, [price.price(*where, label) for where in _nets(scale) for label in price.CONTENDERS])


def _of_tune(scale: str) -> list[Recipe]:
    tried: list[tuple[str, float | None]] = [("sgd", None), ("halves", None), ("sgd-2x", None)]
    tried += [(label, a) for label, known in price.TUNED.items() for a in (known[:1] if scale == "smoke" else known)]
    return at(scale, [price.tune(*where, *one) for where in _nets(scale) for one in tried])


def _of_front(scale: str) -> list[Recipe]:
    return at(scale, [fronts.front(label, a) for label, tried in fronts.LEVELS.items() for a in tried])


def _of_beyond(scale: str) -> list[Recipe]:
    stems = [beyond.stem(task) for task in beyond.STEM_EPOCHS]
    return at(scale, [*stems, *(beyond.beyond(task, label) for task in beyond.LEVELS for label in beyond.labels(task))])


def _nets(scale: str) -> list[tuple[str, str]]:
    models = price.MODELS if scale == "paper" else price.MODELS[:1]
    found = [(data, model) for model in models for data in reversed(DATA)]
    return found[:1] if scale == "smoke" else found  # the stand-in is the same for both


_four = "one GPU stands for the paper's four; on four: torchrun --nproc-per-node 4 -m ssgd reproduce fig5"
_wsj = "the paper's WSJ is licensed and must lie in the data folder; AN4 and connected digits stand beside it"
_imagenet = "ImageNet must be a folder or link called imagenet, with train/ and val/, where the command is given"
_shared = "the runs are those of table2"
_own = "our own question"
_experiments = [
    Experiment("table1", "table 1", "SGD and S-SGD phases mixed at equal cost", _of_table1),
    Experiment("table2", "table 2", "six nets on both CIFARs, SGD against S-SGD", _of_table2(*DATA)),
    Experiment("table3", "table 3", "ImageNet, ResNet18 and ResNet50", _of_table3, note=_imagenet),
    Experiment("table4", "table 4", "speech recognition, Adam against S-SGD Adam", _of_speech(190, 300), note=_wsj),
    Experiment("table5", "table 5", "language models on the Penn Treebank", _of_table5),
    Experiment("tableA1", "table A1", "table 2's CIFAR-10 run by run", _of_table2("cifar10"), note=_shared),
    Experiment("tableA2", "table A2", "table 2's CIFAR-100 run by run", _of_table2("cifar100"), note=_shared),
    Experiment(
        "fig2",
        "figure 2",
        "errors along the line between SGD's and S-SGD's solution",
        _solutions(fig7.fig7, tuple(fig7.PHASES)),
        Picture("line", "fig2", {"sgd-f": "SGD", "ssgd": "S-SGD"}),
        stem="sgd-m",
        note="the runs are those of fig7",
    ),
    Experiment("fig3", "figure 3", "accuracy against the noise level", _of_levels(*fig3.FIG3)),
    Experiment("fig4", "figure 4", "convergence of SGD and S-SGD", _of_fig4, curves=True),
    Experiment("fig5", "figure 5", "large batches, with and without warm restarts", _of_fig5, note=_four),
    Experiment("fig6", "figure 6", "convergence of speech recognition", _of_speech(190), curves=True, note=_wsj),
    Experiment(
        "fig7",
        "figure 7",
        "the loss over the plane through three solutions",
        _solutions(fig7.fig7, tuple(fig7.PHASES)),
        Picture("plane", "fig7", {"sgd-m": "SGD_m", "sgd-f": "SGD_f", "ssgd": "S-SGD"}),
        stem="sgd-m",
    ),
    Experiment("figA1", "figure A1", "figure 3 with two noises a step", _of_levels(*fig3.FIG_A1)),
    Experiment("figA2", "figure A2", "the large language model against level and phases", _of_ptb("large")),
    Experiment("figA3", "figure A3", "the small language model against level and phases", _of_ptb("small")),
    Experiment(
        "figA4",
        "figure A4",
        "eigenvalues of SGD's Hessian",
        _solutions(spectra.wide, ("sgd",)),
        replace(HESSIANS, of={"sgd": "SGD"}),
    ),
    Experiment(
        "figA5",
        "figure A5",
        "eigenvalues of S-SGD's Hessian",
        _solutions(spectra.wide, ("ssgd",)),
        replace(HESSIANS, of={"ssgd": "S-SGD"}),
    ),
    Experiment("figA6", "figure A6", "figures A4 and A5 in one", _solutions(spectra.wide, tuple(SPECTRA)), HESSIANS),
    Experiment("comparison", "section 6.1", "dropout, DropConnect, SmoothOut, conv or dense only, x2", _of_comparison),
    Experiment("baseline", _own, "which weight decay gives the paper's SGD?", _of_baseline),
    Experiment("level", _own, "what is the paper's noise level?", _of_level),
    Experiment("setting", _own, "does the gain hang on weight decay, shortcut, batch-norm or devices?", _of_setting),
    Experiment("price", _own, "what does a gain cost in passes?", _of_price),
    Experiment("tune", _own, "levels and rho on images held out, for price", _of_tune),
    Experiment("front", _own, "what does a level cost, and what does it bring?", _of_front),
    Experiment(
        "beyond", _own, "words, speech, ten classes of ImageNet: at the same epochs and cost", _of_beyond, stem="stem"
    ),
]
EXPERIMENTS: dict[str, Experiment] = {experiment.name: experiment for experiment in _experiments}
