"""Our own questions as cells: weight decay, units of noise, split, ablations, equal cost, tuning, other tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from ...core.noise import paper_level
from ..train.recipe import Recipe
from .cells import AGAIN, Cell, Experiment, labelled
from .figures import FEW
from .protocols import (
    BASE,
    BOTH,
    CHARACTERS,
    CIFAR,
    HALF,
    UNIFORM,
    characters,
    cifar,
    digits,
    ptb,
    speech,
    tiny_imagenet10,
)
from .tables import DATA, IMAGENET_LEVEL

NAMES = {  # of methods, as readers know them; others are called what commands call them
    "base": "SGD",
    "base-2x": "SGD in twice the epochs",
    "sgdr": "SGDR",
    "both": "both signs",
    "both-x2": "both signs, two pairs",
    "both-sgdr": "both signs under SGDR",
    "halves": "halves without noise",
    "one-sided": "one-sided noise",
    "one-sided-halves": "one-sided noise, a draw for each half",
    "sam": "SAM",
    "asam": "ASAM",
}
DECAYS = {"1e-4": 1e-4, "2e-4": 2e-4, "5e-4": 5e-4}
LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)  # the paper's
MIX, LAST = "75-25S-25S", "75-50-25S"  # two passes at SGD's cost, as in table 1
LATE = "75-50S-50S"  # noise once the rate has fallen
SPLIT = paper_level(0.26)  # 0.15: the best of tune's for ResNet20 on CIFAR-100, as are the rho of SAM and of ASAM
Method = tuple[str, float | None, str]  # with its phases
SHOWN = ("37S-25S-25S", "75-25S-50")  # phases of table 1 that count where they were run, and are not asked for
WHOLE = CIFAR["phases"]
CONTENDERS: dict[str, Method] = {
    "base": (*BASE, WHOLE),
    "halves": ("halves", None, WHOLE),
    "split-0.15": ("split", SPLIT, WHOLE),
    "both-0.29": (*BOTH, WHOLE),  # the level of tables 1 and 2, whose runs count here
    f"{MIX}-both-0.29": (*BOTH, MIX),
    f"{LAST}-both-0.29": (*BOTH, LAST),
    f"{LATE}-split-0.15": ("split", SPLIT, LATE),
    "sam-0.05": ("sam", 0.05, WHOLE),
    f"{LAST}-sam-0.05": ("sam", 0.05, LAST),
    "asam-0.5": ("asam", 0.5, WHOLE),
    "base-2x": ("base-2x", None, WHOLE),
}
TUNED: dict[str, tuple[str, str, tuple[float, ...]]] = {  # method, phases, and the levels or rho worth trying
    "split": ("split", WHOLE, (paper_level(0.17), SPLIT, paper_level(0.43))),
    "both": ("both", WHOLE, (paper_level(0.2), paper_level(0.3), HALF)),
    f"{MIX}-both": ("both", MIX, (paper_level(0.3), HALF)),
    f"{LAST}-both": ("both", LAST, (paper_level(0.3), HALF, paper_level(0.7))),
    f"{LATE}-split": ("split", LATE, (SPLIT, paper_level(0.43))),
    "sam": ("sam", WHOLE, (0.05, 0.1, 0.2)),
    "asam": ("asam", WHOLE, (0.25, 0.5, 1.0)),
}
FRONT: dict[str, tuple[float | None, ...]] = {
    "base": (None,),
    "base-decay-2e-3": (None,),  # more decay is a rival of noise
    "halves": (None,),
    "split": (0.15, 0.25, 0.4),
    "one-sided": (0.15, 0.25, 0.4),
    "one-sided-halves": (0.15, 0.25, 0.4),
    "one-pass-batch": (0.05, 0.1, 0.15, 0.25),
    "both": (0.17, 0.29, 0.5),
    "sam": (0.05, 0.1, 0.2),
    "asam": (0.5, 1.0, 2.0),
    "dropconnect": (None,),
}
TOLERANT: dict[str, tuple[float | None, ...]] = {  # front's largest levels at 0.5 and at 2 points below the base
    "base": (None,),
    "halves": (None,),
    "one-sided": (0.25, 0.4),
    "one-sided-halves": (0.15, 0.4),
    "split": (0.25, 0.4),
    "one-pass-batch": (0.1, 0.15),  # of which the front has no run yet
    "both": (0.29, 0.5),
    "sam": (0.05, 0.2),
    "asam": (0.5, 2.0),
}
TEXT_FRONT: dict[str, tuple[float | None, ...]] = {
    "base": (None,),
    "split": (0.1, 0.2),
    "one-sided-halves": (0.1, 0.2),
    "one-sided": (0.1, 0.2),
    "both": (0.2,),
    "sam": (0.05,),
}
TEXT_FRONT_64: dict[str, tuple[float | None, ...]] = {
    "base": (None,),
    **dict.fromkeys(("split", "one-sided-halves", "one-sided"), (0.2,)),
}
TEXT_TOLERANT: dict[str, tuple[float | None, ...]] = {  # each but 0.17 costs 0.13 bits on front-text, by interpolation
    "base": (None,),
    "split": (0.17, 0.2),  # two, to interpolate between where other seeds differ from the front's
    "one-sided-halves": (0.19,),
    "one-sided": (0.16,),
}
ON_TEXT = (characters, f"{CHARACTERS['model']}, {CHARACTERS['data']}, bits per character", "test_bits", "AdamW")
NOISY = ("split", "one-pass-batch", "both", "one-sided", "one-sided-halves")
HELD_OUT = 5000
NETS: dict[str, dict[str, Any]] = {  # of ablations
    "A": {},
    "B": {"model": "resnet20-B"},
    "A-2": {"devices": 2},
    "A-tf": {"model": "resnet20-tf"},  # the paper trained with TensorFlow
    "A-w": {"decayed": "weights"},  # as kernel regularisers have it
}
UNSEEN = (1, 2, 3, 4, 5)  # seeds that no tuning has seen


def told(method: str, level: float | None = None, phases: str = "", also: str = "") -> str:
    """Returns a method as readers know it, with its level and phases."""
    inside = ", ".join(text for text in ("" if level is None else f"{level:.2g}", also) if text)
    name = NAMES.get(method, method) + (f" ({inside})" if inside else "")
    return f"{name}, {_when(phases)}" if "S" in phases else name


def _when(phases: str) -> str:
    """Says for which epochs of ``75-50-25S`` the method holds; phases that it does not end are told as they are."""
    lengths = [(int(phase.rstrip("S")), phase.endswith("S")) for phase in phases.split("-")]
    noisy, whole = sum(epochs for epochs, mine in lengths if mine), sum(epochs for epochs, _ in lengths)
    if noisy == whole:
        return f"in {whole} epochs"
    at_the_end = [mine for _, mine in lengths] == sorted(mine for _, mine in lengths)
    return f"last {noisy} of {whole} epochs" if at_the_end else phases


def protocol(model: str, data: str, decay: float, *unusual: str) -> str:
    return ", ".join((model, data, f"weight decay {decay:g}", *unusual))


def baseline() -> Experiment:
    paper = targets_of_sgd()
    cells = (
        Cell(
            f"baseline/{data}/{decay}",
            partial(cifar, data, weight_decay=value, seeds=(0, 1, 2)),
            f"weight decay {value:g}",
            data,
            x=value,
        )
        for data in DATA.values()
        for decay, value in DECAYS.items()
    )
    about = (
        "The paper does not state its weight decay. Which one gives its SGD, "
        f"{paper['cifar10']} % on CIFAR-10 and {paper['cifar100']} % on CIFAR-100? ResNet20, shortcut A, 175 epochs."
    )
    note = (
        "This choice saw the test images of both CIFARs: what is fitted to them is calibrated above, and not counted."
    )
    return Experiment("baseline", "The baseline", about, tuple(cells), note=note)


def targets_of_sgd() -> dict[str, float]:
    """Returns the paper's accuracy of ResNet20 by SGD on each data set."""
    from .tables import targets

    return dict(zip(DATA.values(), targets()["table2_cifar"]["ResNet20"]["SGD"], strict=True))


def fitted() -> list[Cell]:
    """Returns the trainings whose numbers in the paper decided what it leaves open.

    They are SGD's for the weight decay and for the small LSTM's dropout, and five of figure 3 for the distribution.
    """
    few = [cell for cell in noise_units().cells if cell.x in (0.1, 0.3, 0.5, 0.7, 1.0) and cell.column == UNIFORM]
    return [
        *(cell for cell in baseline().cells if cell.x == CIFAR["weight_decay"]),
        *few,
        Cell("table5/small/base", partial(ptb, "small")),
    ]


def noise_units() -> Experiment:
    later: dict[str, Any] = {
        "evaluate_every": 5,
        "seeds": (1, 2, 3),
    }  # three of equal_cost's: its SGD and its 0.29 count here
    base = Cell("noise_units/base", partial(cifar, **later), told(*BASE))
    cells = []
    for distribution in (UNIFORM, "sphere"):
        for a in LEVELS:
            ratio = paper_level(a) if distribution == UNIFORM else a
            cell = Cell(
                f"noise_units/{distribution}/{ratio:.2g}",
                partial(cifar, "cifar100", "resnet20", "both", ratio, distribution=distribution, **later),
                f"level {ratio:.2g}",
                distribution,
                base=base,
                x=a,
                scale=FEW.get(a, "paper"),
            )
            cells.append(cell)
    about = (
        "Which reading of the paper's noise level a lies on its figure 3: the peak of uniform noise in units of the "
        "layer's rms (uniform), a ratio ‖n‖ / ‖w‖ of a/√3, or that ratio itself (sphere)? ResNet20, CIFAR-100. "
        "Drawn with batch-norm's statistics gathered again for the clean weights, and with those of the training."
    )
    axes: dict[str, Any] = {"x": "the paper's level a", "y": "test accuracy, %"}
    axes["note"] = "The choice of the distribution saw the test images of CIFAR-100, at five of these levels."
    return Experiment("noise_units", "The units of noise", about, tuple(cells), also=(base,), **axes)


def ablations() -> Experiment:
    """The paper's nets fit the training images better than ours; batch-norm over half a batch alone lifts ours."""
    cells = []
    for net, changes in NETS.items():
        for name, decay in DECAYS.items():
            unusual = [f"{key} {value}" for key, value in changes.items() if key != "model"]
            column = protocol(changes.get("model", "resnet20"), "cifar100", decay, *unusual)
            base: Cell | None = None
            for label in ("base", "split-0.15", "both-0.29"):
                method, level, _ = CONTENDERS[label]
                fields = {"method": method, "level": level, "weight_decay": decay, "seeds": (1, 2, 3), **changes}
                make = partial(cifar, evaluate_every=5, **fields)
                cell = Cell(f"ablations/{net}/{name}/{label}", make, told(method, level), column, base=base)
                base = base or cell
                cells.append(cell)
    about = (
        "The paper states neither its weight decay, nor what that is on, nor its shortcut (A pads with zeros, B "
        "projects), nor how fast batch-norm's statistics move (tf: as in TensorFlow, with which the paper trained), "
        "nor on how many devices, each with batch-norm of its own, a batch of 128 lay. Does what S-SGD brings over SGD "
        "hang on them? "
        "ResNet20, CIFAR-100. Seed 0, which tuning used, is left out."
    )
    note = (
        "The rows of resnet20-A at weight decay 1e-4 are of a script without recipes; today's command is ssgd compare "
        "cifar100 --vary method=base,halves,split:0.15 distribution=sphere weight_decay=1e-4 seeds=0,1,2,3."
    )
    return Experiment("ablations", "The setting", about, (*cells, *side_by_side()), unseen=True, note=note)


def side_by_side() -> tuple[Cell, Cell, Cell]:
    """Returns the cells of rows that were made before there were recipes."""
    column = protocol("resnet20-A", "cifar100", 1e-4)
    base = Cell("side-by-side/base", None, told(*BASE), column, scale=None)
    halves = Cell("side-by-side/halves", None, told("halves"), column, base=base, scale=None)
    split = told("split", 0.15, also="sphere")
    return base, halves, Cell("side-by-side/split-0.15", None, split, column, base=base, control=halves, scale=None)


def contenders(folder: str, ways: Mapping[str, Method], later: Collection[str] = (), **more: Any) -> Iterator[Cell]:
    """Yields the methods on four nets and both CIFARs; ``later`` are trained at no smaller scale than small."""
    for model in ("resnet20", "resnet56", "wrn28-2", "vgg16"):
        for data in ("cifar100", "cifar10"):
            cells = []
            for label, (method, level, phases) in ways.items():
                make = partial(cifar, data, model, method, level, phases=phases, evaluate_every=5, **more)
                smallest = "smoke" if data == "cifar100" and label not in later else "small"
                scale = smallest if model == "resnet20" else "paper"
                column = protocol(model, data, CIFAR["weight_decay"])
                name = f"{folder}/{data}/{model}/{label}"
                cells.append(Cell(name, make, told(method, level, phases), column, scale=scale))
            yield from beside(cells)


def beside(cells: Sequence[Cell]) -> Iterator[Cell]:
    """Yields cells beside the base among them, and split beside the halves; another column has no base here."""
    known = {cell.name.rpartition("/")[2]: cell for cell in cells}
    base = known["base"]
    for label, cell in known.items():
        compared = cell is not base and cell.column == base.column
        control = known["halves"] if label.startswith("split") else None
        yield replace(cell, base=base, control=control) if compared else cell


def equal_cost() -> Experiment:
    """Judged on the test set, with seeds that no tuning has seen."""
    known = dict(CONTENDERS)
    known |= {f"{phases}-both-0.29": (*BOTH, phases) for phases in SHOWN}
    cells = [
        replace(cell, scale=None) if any(phases in cell.name for phases in SHOWN) else cell
        for cell in contenders("equal_cost", known, seeds=UNSEEN)
    ]
    about = (
        "What a method costs, in passes over the data, and what it brings over SGD on the same seeds. In brackets is "
        f"the level of noise, {UNIFORM} unless another is named, or ρ. Seed 0, which tuning used, is left out."
    )
    return Experiment("equal_cost", "The price", about, tuple(cells), unseen=True, needs=(AGAIN,))


def tune() -> Experiment:
    """Judged on training images held out, at a level or rho worth trying."""
    ways: dict[str, Method] = {label: CONTENDERS[label] for label in ("base", "halves", "base-2x")}
    later = []
    for label, (method, phases, levels) in TUNED.items():
        names = [f"{label}-{level:.2g}" for level in levels]
        ways |= {name: (method, level, phases) for name, level in zip(names, levels, strict=True)}
        later += names[1:]
    about = "Noise level, and the ρ of SAM and ASAM alike, tried on training images held out."
    cells = contenders("tune", ways, later, held_out=HELD_OUT, seeds=(0,))
    return Experiment("tune", "Tuning", about, tuple(cells))


def front() -> Experiment:
    """A level of noise is its norm divided by that of the weights."""
    about = (
        "What does a level cost, and what does it bring? Each method at several levels, on training images held out."
    )
    return Experiment("front", "The front", about, damaged("front", FRONT, held_out=HELD_OUT))


def tolerance() -> Experiment:
    """Levels and ρ were chosen on the front; every row has the figures of the damaged weights."""
    about = "What does a net bear, and thanks to what? Levels chosen on the front, judged with seeds it has not seen."
    cells = damaged("tolerance", TOLERANT, seeds=(6, 7, 8, 9, 10))
    return Experiment("tolerance", "Tolerance", about, cells)


def damaged(folder: str, levels: Mapping[str, tuple[float | None, ...]], **fields: Any) -> tuple[Cell, ...]:
    """Returns methods at their levels, as ratios of norms, whose rows have the figures of the damaged weights."""
    cells = []
    for label in levels:
        method, _, decay = label.partition("-decay-")
        value = float(decay) if decay else CIFAR["weight_decay"]
        also = "sphere" if method in NOISY else ""
        for level in levels[label]:
            more = {"distribution": "sphere", "weight_decay": value, "tolerance": True, "evaluate_every": 5, **fields}
            name = f"{folder}/cifar100/resnet20/{labelled(label, level)}"
            make = partial(cifar, "cifar100", "resnet20", method, level, **more)
            row = told(method, 0.2 if method == "dropconnect" else level, also=also)
            cells.append(Cell(name, make, row, protocol("resnet20", "cifar100", value)))
    return tuple(beside(cells))


def front_text() -> Experiment:
    """Judged on the validation text, with seed 0.

    Where halves are larger they agree better, so the larger batch shows whether the pair then costs less.
    """
    about = (
        "What does a level cost a net without batch-norm? A small transformer on characters, on the validation text."
    )
    judged: dict[str, Any] = {"held_out": 1, "seeds": (0,)}
    larger = {**judged, "batch": 64, "train_limit": 2 * CHARACTERS["train_limit"]}
    make, column, *rest = ON_TEXT
    cells = _arms("front-text", TEXT_FRONT, *ON_TEXT, **judged)
    cells += _arms("front-text/batch-64", TEXT_FRONT_64, make, f"{column}, batch 64", *rest, **larger)
    return Experiment("front-text", "The front of a text", about, cells, base="AdamW")


def tolerance_text() -> Experiment:
    """Levels of equal clean loss, read off the front; every row has the figures of the damaged weights."""
    about = (
        "Without batch-norm, what does the pair add over noise of one sign and over two independent draws, at equal "
        "clean loss? A small transformer on characters, on the test text, with seeds that the front has not seen."
    )
    cells = _arms("tolerance-text", TEXT_TOLERANT, *ON_TEXT, tolerance=True, seeds=UNSEEN)
    return Experiment("tolerance-text", "Tolerance of a text", about, cells, base="AdamW")


def tolerance_digits() -> Experiment:
    """Seconds a run, so that every level has all seeds, and equal clean accuracy is read off the fronts."""
    about = "The same question of a small net with group-norm on the digits of the package, at several levels."
    levels: dict[str, tuple[float | None, ...]] = {
        "base": (None,),
        **dict.fromkeys(("split", "one-sided-halves", "one-sided"), (0.1, 0.2, 0.3)),
    }
    levels["both"] = (0.3,)
    where = partial(digits, model="small-cnn-group"), "small-cnn-group, digits", "test_accuracy", "SGD"
    cells = _arms("tolerance-digits", levels, *where, tolerance=True, seeds=UNSEEN)
    return Experiment("tolerance-digits", "Tolerance of digits", about, cells)


def _arms(
    folder: str,
    levels: Mapping[str, tuple[float | None, ...]],
    make: Callable[..., Recipe],
    column: str,
    metric: str,
    base: str,
    **fields: Any,
) -> tuple[Cell, ...]:
    """Returns a cell for each level of each method. The first is the base, and stands as ``base`` on the page."""
    cells: list[Cell] = []
    for method in levels:
        for level in levels[method]:
            cell = Cell(
                f"{folder}/{labelled(method, level)}",
                partial(make, method=method, level=level, **fields),
                told(method, level) if cells else base,
                column,
                metric=metric,
                base=cells[0] if cells else None,
            )
            cells.append(cell)
    return tuple(cells)


TASKS: dict[str, tuple[float, float, tuple[int, ...]]] = {  # the levels of both and of split, and the seeds
    "ptb-large": (paper_level(0.9), HALF, (1,)),
    "ptb-small": (paper_level(0.7), paper_level(0.4), (1, 2, 3)),
    "an4": (HALF, paper_level(0.25), UNSEEN),
    "connected-digits": (HALF, paper_level(0.25), (1, 2, 3)),
    "tiny-imagenet10": (IMAGENET_LEVEL, IMAGENET_LEVEL, (1, 2, 3)),
}
STEM_EPOCHS = {"ptb-large": 29, "ptb-small": 30}
LABELS = ("base", "both", "split", "both-half", "one-sided", "base-2x")
FIGURES = {"test_perplexity": "perplexity", "test_wer": "WER, %", "test_accuracy": "accuracy, %"}


def labels(task: str) -> tuple[str, ...]:
    """Returns what is compared: of words not twice the epochs, since the rate falls from epoch to epoch."""
    return LABELS[:-1] if task in STEM_EPOCHS else LABELS


def task(name: str, label: str, **changes: Any) -> Recipe:
    """Returns the recipe of a task under a label, with seeds that no tuning has seen."""
    both, half, seeds = TASKS[name]
    ways: dict[str, tuple[str, float | None]] = {
        "both": ("both", both),
        "both-half": ("both", both),
        "split": ("split", half),
        "one-sided": ("smoothout", half),
        "base-2x": ("base-2x", None),
    }
    method = ways.get(label, BASE)
    changes = {"seeds": seeds, **changes}
    if name.startswith("ptb-"):
        recipe = ptb(name.removeprefix("ptb-"), *method, **changes)
    elif name == "tiny-imagenet10":
        recipe = tiny_imagenet10(*method, **changes)
    else:
        recipe = speech(name, 190, *method, **changes)
    if name in STEM_EPOCHS:
        return replace(recipe, phases=_after_stem(name, label, int(recipe.phases)))
    if label == "both-half":  # the same course of the learning rate in half the epochs
        phases = "-".join(str(math.ceil(int(epochs) / 2)) for epochs in recipe.phases.split("-"))
        return replace(recipe, phases=phases, warm_up=recipe.warm_up / 2)
    return recipe


def _after_stem(name: str, label: str, epochs: int) -> str:
    """The rate falls from epoch to epoch as it did, so half the epochs end at a higher one."""
    first = STEM_EPOCHS[name]
    if label == "stem":
        return str(first)
    rest = epochs - first
    return f"{first}-{rest // 2 if label == 'both-half' else rest}{'' if label == 'base' else 'S'}"


def other_tasks() -> Experiment:
    cells, stems = [], []
    for name in TASKS:
        found = list(_of_task(name))
        cells += [cell for cell in found if not cell.name.endswith("/stem")]
        stems += [cell for cell in found if cell.name.endswith("/stem")]
    about = (
        "Words, speech and ten classes of Tiny ImageNet: does S-SGD hold there, at the same epochs and at the same "
        "cost? The base is SGD or Adam alone. Both signs in as many epochs come at twice its cost; split, a sign on "
        "each half of the batch, and both signs in half the epochs at the base's; one-sided is split's noise with one "
        "sign for the whole batch, at that cost too; the base in twice the epochs costs what both signs do. Of words "
        "the first 29 of 55 epochs (small: 30 of 50) are SGD's for all, and the rest alone is doubled in cost or "
        "halved. Of perplexity and word errors (WER) less is better, of accuracy more. Levels are of uniform noise."
    )
    return Experiment(
        "other_tasks", "Beyond CIFAR", about, tuple(cells), also=tuple(stems), base="the base", stem="stem", unseen=True
    )


def _of_task(name: str) -> Iterator[Cell]:
    both, half, _ = TASKS[name]
    words = name in STEM_EPOCHS
    metric = "test_perplexity" if words else "test_accuracy" if name == "tiny-imagenet10" else "test_wer"
    column = f"{name}, {FIGURES[metric]}"
    optimizer = "sgd" if words or name == "tiny-imagenet10" else "adam"
    rows = {
        "base": f"base ({optimizer})",
        "both": f"both signs ({both:.2g})",
        "split": f"split ({half:.2g})",
        "both-half": f"both signs, ½ epochs ({both:.2g})",
        "one-sided": f"one-sided ({half:.2g})",
        "base-2x": f"base, 2× epochs ({optimizer})",
    }
    base: Cell | None = None
    for label in labels(name):
        cell = Cell(f"other_tasks/{name}/{label}", partial(task, name, label), rows[label], column, metric=metric)
        yield (cell := replace(cell, base=base))
        base = base or cell
    if words:
        yield Cell(f"other_tasks/{name}/stem", partial(task, name, "stem"))
    if name == "an4":  # more epochs than it takes
        longer, first = {"phases": "40-20", "seeds": (1,)}, None
        for label in ("base", "split"):
            cell = Cell(
                f"other_tasks/an4/{label}-60-epochs",
                partial(task, name, label, **longer),
                f"{rows[label][:-1]}, 60 epochs)",
                column,
                metric=metric,
                base=first,
            )
            first = first or cell
            yield cell
