"""The paper's tables, and section 6.1's comparison, as cells."""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache, partial
from importlib.resources import files
from typing import Any

from ...core.noise import paper_level
from .cells import Cell, Experiment, labelled
from .protocols import BASE, BOTH, CORPORA, FIVE, cifar, imagenet, ptb, speech
from .statistics import sample

DATA = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
RUNS = {"CIFAR-10": "tableA1_cifar10_runs", "CIFAR-100": "tableA2_cifar100_runs"}
MODELS = {
    "ResNet20": "resnet20",
    "ResNet56": "resnet56",
    "WRN28-2": "wrn28-2",
    "WRN28-4": "wrn28-4",
    "VGG6": "vgg6",
    "VGG16": "vgg16",
}
CORPUS_NAMES = {"wsj": "WSJ", "an4": "AN4", "connected-digits": "digits"}
IMAGENET_LEVEL = paper_level(0.25)
SMALL_LSTM = (
    "The small model's training is not public: its dropout and its learning rates are those that give the paper's SGD."
)


@cache
def targets() -> dict[str, Any]:
    """Returns every number that the paper reports."""
    found: dict[str, Any] = json.loads((files(__package__) / "targets.json").read_text(encoding="utf-8"))
    return found


def method_of(label: str) -> tuple[str, float | None]:
    """Returns the method of a label of the paper: ``S-SGD (0.5)`` is both signs at a ratio of 0.29."""
    return ("both", paper_level(float(label[label.index("(") + 1 : -1]))) if label.startswith("S-SGD") else BASE


def table2_name(data: str, model: str, method: str, level: float | None) -> str:
    return f"table2/{data}/{model}/{labelled(method, level)}"


def table1() -> Experiment:
    cells: list[Cell] = []
    for column, data in DATA.items():
        base: Cell | None = None
        for phases, numbers in targets()["table1_equal_compute"]["rows"].items():
            noisy = "S" in phases
            make = partial(cifar, data, "resnet20", *(BOTH if noisy else BASE), phases=phases, seeds=FIVE)
            spread = listed_spread(column, "ResNet20", "S-SGD (0.5)" if noisy else "SGD")
            cell = Cell(f"table1/{data}/{phases}", make, phases, column, numbers[column], spread, base=base)
            base = base or cell
            cells.append(cell)
    about = "ResNet20: SGD and S-SGD phases mixed at the cost of SGD. S marks the phases under S-SGD."
    return Experiment("table1", "Table 1", about, tuple(cells), part="table 1")


def table2() -> Experiment:
    cells = []
    for place, (column, data) in enumerate(DATA.items()):
        for name, model in MODELS.items():
            base: Cell | None = None
            for label, numbers in targets()["table2_cifar"][name].items():
                method = method_of(label)
                make = partial(cifar, data, model, *method, seeds=FIVE)
                spread = listed_spread(column, name, label)
                key = table2_name(data, model, *method)
                cell = Cell(key, make, f"{name}, {label}", column, numbers[place], spread, base=base)
                base = base or cell
                cells.append(cell)
    about = "Six models on both CIFARs: SGD against S-SGD, the noise level in brackets. Test accuracy, %."
    note = "The paper does not state its weight decay: ours is the one that gives its SGD for ResNet20."
    return Experiment("table2", "Table 2", about, tuple(cells), part="table 2", note=note)


def single_runs(part: str, column: str) -> Experiment:
    """Tables A1 and A2."""
    cells = []
    for model, methods in targets()[RUNS[column]].items():
        base: Cell | None = None
        short = model.replace("WideResNet", "WRN")
        for label in sorted(methods, key=lambda label: label != "SGD"):
            theirs = methods[label]
            where = DATA[column], MODELS[short], *method_of(label)
            runs = tuple(theirs["runs"])
            make = partial(cifar, *where, seeds=FIVE)
            spread = sample(runs).sd
            row = f"{short}, {label}"
            cell = Cell(table2_name(*where), make, row, column, theirs["mean"], spread, runs, base=base)
            base = base or cell
            cells.append(cell)
    about = f"Table 2's runs on {column} one by one. Test accuracy, %."
    before = "the runs are those of table2"
    return Experiment(f"table{part}", f"Table {part}", about, tuple(cells), part=f"table {part}", before=before)


def table3() -> Experiment:
    cells = []
    for column, key, metric in (("top 1", "top1", "test_accuracy"), ("top 5", "top5", "test_top5_accuracy")):
        for model, methods in targets()["table3_imagenet"].items():
            base: Cell | None = None
            for label, numbers in methods.items():
                method, level = method_of(label)
                depth = model.removeprefix("ResNet")
                make = partial(imagenet, int(depth), method, level)
                cell = Cell(
                    f"table3/resnet{depth}/{method}",
                    make,
                    f"{model}, {label}",
                    column,
                    numbers[key],
                    metric=metric,
                    base=base,
                    scale="smoke" if depth == "18" else "paper",
                )
                base = base or cell
                cells.append(cell)
    about = "ImageNet, 90 epochs. Accuracy on the validation set, %."
    before = "ImageNet must be a folder or link called imagenet, with train/ and val/, where the command is given"
    return Experiment("table3", "Table 3", about, tuple(cells), part="table 3", before=before, small_seeds=1)


WSJ = "the paper's WSJ is licensed and must lie in the data folder; AN4 and connected digits stand beside it"


def corpora(sizes: Iterable[int], metric: str, row: str) -> tuple[Cell, ...]:
    """Returns Adam and S-SGD Adam on each corpus; the paper has numbers of WSJ alone, and of word errors alone."""
    numbers = targets()["table4_speech_wer"]
    scales = {"wsj": "paper", "an4": "smoke", "connected-digits": "small"}
    cells = []
    for data in CORPORA:
        for units in sizes:
            base: Cell | None = None
            for label, method in (("Adam", BASE), ("S-SGD Adam", BOTH)):
                known = data == "wsj" and metric == "test_wer"
                cell = Cell(
                    f"table4/{data}/sgcn-{units}/{labelled(*method)}",
                    partial(speech, data, units, *method),
                    row.format(units=units, label=label),
                    CORPUS_NAMES[data],
                    numbers[f"12x{units} SGCN"][label] if known else None,
                    metric=metric,
                    base=base,
                    scale=scales[data],
                    ours=data != "wsj",
                )
                base = base or cell
                cells.append(cell)
    return tuple(cells)


def table4() -> Experiment:
    about = "Speech recognition by SGCN and CTC, greedy decoding. Word error rate, %: lower is better."
    note = (
        "The paper trains on WSJ, which is licensed. AN4 and connected digits are free; the paper has no number there."
    )
    cells = corpora((190, 300), "test_wer", "12x{units} SGCN, {label}")
    return Experiment("table4", "Table 4", about, cells, part="table 4", note=note, before=WSJ, base="Adam")


def ptb_name(size: str, method: str, level: float | None, phases: str = "") -> str:
    return f"table5/{size}/{labelled(method, level)}" + (f"/{phases}" if "-" in phases else "")


def table5() -> Experiment:
    numbers = targets()["table5_ptb_test_perplexity"]
    cells: dict[str, Cell] = {}
    for size, methods in numbers.items():
        base: Cell | None = None
        for label, value in methods.items():
            if label == "valid":
                continue
            method = method_of(label)
            make = partial(ptb, size, *method)
            row = f"{size}, {label}"
            name = ptb_name(size, *method)
            cells[row] = Cell(name, make, row, "test", value, metric="test_perplexity", base=base)
            base = base or cells[row]
    valid = numbers["large"]["valid"]
    plain, noisy = (cells[f"large, {label}"] for label in ("SGD", "S-SGD (1.0)"))  # the text's, at level 1.0
    first = Cell(plain.name, plain.make, plain.row, "valid", valid["SGD"], metric="valid_perplexity")
    last = Cell(noisy.name, noisy.make, noisy.row, "valid", valid["S-SGD"], metric="valid_perplexity", base=first)
    about = "Word-level language models on the Penn Treebank. Perplexity: lower is better."
    every = (*cells.values(), first, last)
    return Experiment("table5", "Table 5", about, every, part="table 5", note=SMALL_LSTM)


def comparison() -> Experiment:
    numbers = targets()["comparison"]
    data, model, dropped = "cifar10", "resnet20", ("dropconnect", 0.2)  # the share is not stated
    dropconnect = Cell(
        "comparison/dropconnect",
        partial(cifar, data, model, *dropped, seeds=FIVE),
        "DropConnect on the dense layer",
        "CIFAR-10",
        numbers["DropConnect on the dense layer, ResNet20, CIFAR-10"],
    )
    convolutions = Cell(
        "comparison/dropconnect-conv",
        partial(cifar, data, model, *dropped, seeds=FIVE, perturb="conv"),
        "DropConnect on the convolutions",
        "CIFAR-10",
    )
    dropout = Cell(
        "fig3/dropout",
        partial(cifar, "cifar100", model, "dropout", 0.2, seeds=FIVE),
        "Dropout (0.2) on the dense layer",
        "CIFAR-100",
        numbers["Dropout(0.2) dense, ResNet20, CIFAR-100"],
    )
    return Experiment(
        "comparison",
        "Comparison",
        "ResNet20 with other noises, from the paper's text.",
        (dropconnect, convolutions, dropout),
        also=(Cell(table2_name(data, model, *BASE), partial(cifar, data, model, seeds=FIVE)), *_beside()),
        part="section 6.1",
        note="DropConnect on convolutions: in the paper training failed.",
    )


def _beside() -> Iterable[Cell]:
    """Yields what figures 3 and A1 show at the paper's levels 0.4 and 0.5, and their SGD."""
    from .figures import noise_levels

    levels = (0.0, 0.4, 0.5)
    return (cell for cell in noise_levels("A1").cells if cell.x in levels)


def listed_spread(column: str, model: str, label: str) -> float | None:
    """Returns the spread of the paper's runs in tables A1 and A2, where they are listed."""
    runs = targets()[RUNS[column]].get(model.replace("WRN", "WideResNet"), {}).get(label, {}).get("runs")
    return sample(runs).sd if runs else None
