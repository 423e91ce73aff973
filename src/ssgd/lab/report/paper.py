"""Every table and figure of the paper as cells: its number, and which runs of ours stand beside it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from .cells import Cell
from .matching import CIFAR, USUAL, Wanted
from .statistics import sample

DISTRIBUTION = "uniform"  # our reading of the paper's level
PHASED_LEVEL = 0.5  # of table 1 and figures 2, 5 and 7, which state none: that of our recipes
SPEECH_LEVEL = 0.5  # likewise
DROPPED = 0.2  # likewise, of DropConnect
SWEPT = {"large": (0.2, 0.4, 0.6, 0.8, 0.9, 1.0, 1.2, 1.4), "small": (0.2, 0.4, 0.6, 0.7, 0.8, 1.0)}  # as its axes go
IMAGENET: Wanted = {
    **USUAL,
    "data": "imagenet",
    "phases": "30-30-30",
    "lr": [0.1, 0.01, 0.001],
    "lr_for_batch": 256,
    "warm_up": 5,
    "batch": 1024,
    "devices": 8,
    "weight_decay": 1e-4,
}
SPEECH: Wanted = {
    **USUAL,
    "augment": False,
    "optimizer": "adam",
    "lr": [1e-3, 1e-4],
    "warm_up": 1,
    "weight_decay": 0.0,
    "clip": 400.0,
}
PLACES: dict[str, Wanted] = {  # of speech
    "WSJ": {**SPEECH, "data": "wsj", "phases": "50-15", "batch": 32},
    "AN4": {**SPEECH, "data": "an4", "phases": "30-15", "batch": 16},
    "digits": {**SPEECH, "data": "connected-digits", "phases": "24-12", "batch": 16},
}
WORDS: Wanted = {
    **USUAL,
    "data": "ptb",
    "augment": False,
    "lr": [1.0],
    "momentum": 0.0,
    "weight_decay": 0.0,
    "batch": 20,
}
PTB: dict[str, Wanted] = {  # of Zaremba's large model, and ours of the small one
    "large": {**WORDS, "phases": "55", "decay": 1.15, "decay_after": 14, "clip": 10.0},
    "small": {**WORDS, "phases": "50", "decay": 1.15, "decay_after": 10, "clip": 5.0, "dropout": 0.4},
}
CONTROLS: dict[str, Wanted] = {  # of figure 5
    "scaled": {"lr_for_batch": 128, "warm_up": 5},
    "rate × 4": {"lr": [0.4, 0.04, 0.004]},
    "epochs × 4": {"phases": "300-200-200"},
}
RECOMPUTED = (
    "The accuracies are the runs' own; losses and errors are drawn with batch-norm's statistics gathered anew at every "
    "point, the solutions too, over the training images as they were augmented."
)
LEVEL_AXIS = "noise level, the paper's units"
DATA = {"CIFAR-10": "cifar10", "CIFAR-100": "cifar100"}
MODELS = {
    "ResNet20": "resnet20",
    "ResNet56": "resnet56",
    "WRN28-2": "wrn28-2",
    "WRN28-4": "wrn28-4",
    "VGG6": "vgg6",
    "VGG16": "vgg16",
}


@dataclass(frozen=True)
class Part:
    """A table or a figure. ``x`` and ``y`` label the chart of its cells, one curve for each row."""

    name: str
    title: str
    about: str
    cells: tuple[Cell, ...]
    x: str = ""
    y: str = ""
    x_scale: str = "linear"  # or log, or names: the cells' columns
    note: str = ""
    from_zero: bool = False  # every curve of the chart begins at its base, which has level 0
    base: str = "SGD"  # what gains are counted from


def targets() -> dict[str, Any]:
    """Every number that the paper reports."""
    found: dict[str, Any] = json.loads((files(__package__) / "targets.json").read_text(encoding="utf-8"))
    return found


def parts() -> list[Part]:
    """In the paper's order."""
    t = targets()
    return [
        fig2(t),
        noise_levels(t, "fig3", "Figure 3", ("S-SGD", "S-SGD conv only", "S-SGD dense only", "SmoothOut")),
        fig4(t),
        table1(t),
        fig5(t),
        table2(t),
        table3(t),
        table4(t),
        fig6(),
        table5(t),
        fig7(t),
        single_runs(t, "tableA1", "Table A1", "CIFAR-10", "tableA1_cifar10_runs"),
        single_runs(t, "tableA2", "Table A2", "CIFAR-100", "tableA2_cifar100_runs"),
        noise_levels(t, "figA1", "Figure A1", tuple(t["fig3_noise_level"]["curves"])),
        perplexities(t, "figA2", "Figure A2", "large"),
        perplexities(t, "figA3", "Figure A3", "small"),
        *spectra(t),
        comparison(t),
    ]


def cifar(data: str, model: str = "resnet20", method: str = "sgd", level: float | None = None, **more: Any) -> Wanted:
    """A run under the paper's CIFAR protocol but for what is said."""
    noise = {"distribution": DISTRIBUTION} if method.startswith("ssgd") else {}
    return {**CIFAR, "data": data, "model": model, "method": method, "level": level, **noise, **more}


def table1(t: dict[str, Any]) -> Part:
    cells: list[Cell] = []
    for column, data in DATA.items():
        base: Cell | None = None
        for phases, row in t["table1_equal_compute"]["rows"].items():
            method = ("ssgd", PHASED_LEVEL) if "S" in phases else ("sgd", None)
            spread = listed(t, column, "ResNet20", f"S-SGD ({PHASED_LEVEL})" if "S" in phases else "SGD")
            wanted = cifar(data, "resnet20", *method, phases=phases)
            cell = Cell(phases, column, row[column], spread, wanted, base=base)
            base = base or cell
            cells.append(cell)
    about = "ResNet20: SGD and S-SGD phases mixed at the cost of SGD. S marks the phases under S-SGD."
    return Part("table1", "Table 1", about, tuple(cells))


def table2(t: dict[str, Any]) -> Part:
    cells = []
    for place, (column, data) in enumerate(DATA.items()):
        for name, model in MODELS.items():
            base: Cell | None = None
            for method, numbers in t["table2_cifar"][name].items():
                wanted = cifar(data, model, *method_of(method))
                spread = listed(t, column, name, method)
                cell = Cell(f"{name}, {method}", column, numbers[place], spread, wanted, base=base)
                base = base or cell
                cells.append(cell)
    about = "Six models on both CIFARs: SGD against S-SGD, the noise level in brackets. Test accuracy, %."
    note = "The paper does not state its weight decay: ours is the one that gives its SGD for ResNet20."
    return Part("table2", "Table 2", about, tuple(cells), note=note)


def single_runs(t: dict[str, Any], name: str, title: str, column: str, key: str) -> Part:
    cells = []
    for model, methods in t[key].items():
        base: Cell | None = None
        short = model.replace("WideResNet", "WRN")
        for method in sorted(methods, key=lambda m: m != "SGD"):
            theirs = methods[method]
            wanted = cifar(DATA[column], MODELS[short], *method_of(method))
            runs = tuple(theirs["runs"])
            cell = Cell(f"{short}, {method}", column, theirs["mean"], sample(runs).sd, wanted, base=base, runs=runs)
            base = base or cell
            cells.append(cell)
    return Part(name, title, f"Table 2's runs on {column} one by one. Test accuracy, %.", tuple(cells))


def table3(t: dict[str, Any]) -> Part:
    cells = []
    for column, key, metric in (("top 1", "top1", "test_accuracy"), ("top 5", "top5", "test_top5_accuracy")):
        for model, methods in t["table3_imagenet"].items():
            base: Cell | None = None
            for method, numbers in methods.items():
                wanted = {**IMAGENET, "model": f"imagenet-{model.lower()}", **setting_of(method)}
                cell = Cell(f"{model}, {method}", column, numbers[key], None, wanted, metric, base=base)
                base = base or cell
                cells.append(cell)
    return Part("table3", "Table 3", "ImageNet, 90 epochs. Accuracy on the validation set, %.", tuple(cells))


def table4(t: dict[str, Any]) -> Part:
    cells = []
    for column in PLACES:
        for units, key in ((190, "12x190 SGCN"), (300, "12x300 SGCN")):
            base: Cell | None = None
            for method, wanted in speech(column, units).items():
                paper = t["table4_speech_wer"][key][method] if column == "WSJ" else None
                cell = Cell(
                    f"{key}, {method}", column, paper, None, wanted, "test_wer", base=base, ours=column != "WSJ"
                )
                base = base or cell
                cells.append(cell)
    about = "Speech recognition by SGCN and CTC, greedy decoding. Word error rate, %: lower is better."
    note = (
        "The paper trains on WSJ, which is licensed. AN4 and connected digits are free; the paper has no number there."
    )
    return Part("table4", "Table 4", about, tuple(cells), note=note, base="Adam")


SMALL_LSTM = (
    "The small model's training is not public: its dropout and its learning rates are those that give the paper's SGD."
)


def table5(t: dict[str, Any]) -> Part:
    cells = []
    for size, numbers in t["table5_ptb_test_perplexity"].items():
        base: Cell | None = None
        for method, value in numbers.items():
            if method == "valid":
                continue
            cell = Cell(f"{size}, {method}", "test", value, None, ptb(size, method), "test_perplexity", base=base)
            base = base or cell
            cells.append(cell)
    valid = t["table5_ptb_test_perplexity"]["large"]["valid"]
    plain = Cell("large, SGD", "valid", valid["SGD"], None, ptb("large", "SGD"), "valid_perplexity")
    noisy = ptb("large", "S-SGD (1.0)")  # the text's numbers, whose test perplexity is that of level 1.0
    cells.append(plain)
    cells.append(Cell("large, S-SGD (1.0)", "valid", valid["S-SGD"], None, noisy, "valid_perplexity", base=plain))
    about = "Word-level language models on the Penn Treebank. Perplexity: lower is better."
    return Part("table5", "Table 5", about, tuple(cells), note=SMALL_LSTM)


def fig2(t: dict[str, Any]) -> Part:
    errors = t["fig2_line"]["test_error"]
    base = Cell("SGD", "test accuracy", 100 - errors["SGD"], None, cifar("cifar100"))
    noisy = cifar("cifar100", "resnet20", "ssgd", PHASED_LEVEL)
    late = {**noisy, "phases": "75-50-50S"}  # that of figure 7, and of the line drawn
    cells = (
        base,
        Cell("S-SGD", "test accuracy", 100 - errors["S-SGD"], None, noisy, base=base),
        Cell("S-SGD, the last 50 epochs", "test accuracy", None, None, late, base=base, ours=True),
    )
    about = (
        "Train and test error along the straight line between the SGD and the S-SGD solution: ResNet20, CIFAR-100. "
        "The line is a section of figure 7's plane: both solutions share the first 125 epochs."
    )
    note = (
        "The paper's source has the two test errors, 31.74 and 30.52 %, not the curve. They are the ones of table 1's "
        "SGD and of table 2's S-SGD (0.5), whose noise is there from the first epoch on, and are judged as such; "
        f"figure 7's own are 31.49 and 30.37. Our line ends at figure 7's S-SGD. {RECOMPUTED}"
    )
    return Part("fig2", "Figure 2", about, cells, note=note)


def noise_levels(t: dict[str, Any], name: str, title: str, curves: tuple[str, ...]) -> Part:
    layers = {"S-SGD conv only": "conv", "S-SGD dense only": "dense"}
    methods = {"SmoothOut": "smoothout", "S-SGD x2": "ssgd-x2", "SmoothOut x2": "smoothout-x2"}
    first = t["fig3_noise_level"]["curves"]["S-SGD"][0]
    base = Cell("SGD", "0", first["mean"], first["half_width"], cifar("cifar100"), x=0.0)
    cells = [base]
    for curve in curves:
        for point in t["fig3_noise_level"]["curves"][curve][1:]:
            level = point["level"]
            method = methods.get(curve, "ssgd")
            wanted = cifar("cifar100", "resnet20", method, level, perturb=layers.get(curve, "all"))
            cells.append(Cell(curve, f"{level:g}", point["mean"], point["half_width"], wanted, base=base, x=level))
    dropout = t["fig3_noise_level"]["SGD+Dropout(0.2)"]
    cells.append(Cell("SGD + dropout", "p = 0.2", dropout, None, cifar("cifar100", "resnet20", "dropout", 0.2)))
    about = (
        "Test accuracy against the noise level: ResNet20, CIFAR-100. "
        "Bars are standard deviations over seeds, the paper's of five."
    )
    return Part(name, title, about, tuple(cells), LEVEL_AXIS, "test accuracy, %", from_zero=True)


def fig4(t: dict[str, Any]) -> Part:
    last = t["fig4_convergence"]["curves"]["epochs_100_175"]
    ends = {name: sample(run[-1] for run in runs) for name, runs in last.items()}
    base = Cell("SGD", "last epoch", ends["SGD"].mean, ends["SGD"].sd, cifar("cifar10"))
    wanted = cifar("cifar10", "resnet20", "ssgd", PHASED_LEVEL)
    noisy = Cell("S-SGD", "last epoch", ends["S-SGD"].mean, ends["S-SGD"].sd, wanted, base=base)
    about = "Test accuracy after each epoch, the paper's the mean of five runs: ResNet20, CIFAR-10."
    return Part("fig4", "Figure 4", about, (base, noisy), "epoch", "test accuracy, %")


def fig5(t: dict[str, Any]) -> Part:
    ways = {"SGD": "sgd", "SGDR": "sgdr", "S-SGD": "ssgd", "S-SGDR": "ssgdr"}
    restarts = {"phases": "10*2", "lr": [0.1], "epochs": 300}
    numbers = t["fig5_large_batch"]["accuracy_by_batch"]
    cells: dict[tuple[str, str], Cell] = {}
    for name, method in ways.items():
        for batch, value in numbers[name].items():
            level = PHASED_LEVEL if method.startswith("ssgd") else None
            more = {"devices": 4, **(restarts if method.endswith("r") else {})}
            wanted = cifar("cifar10", "resnet20", method, level, batch=int(batch), **more)
            base = cells.get((name.removeprefix("S-"), batch))
            cells[name, batch] = Cell(name, batch, value, None, wanted, base=base, x=float(batch))
    for control, changes in CONTROLS.items():
        for way in ("SGD", "S-SGD"):
            name, level = f"{way}, {control}", PHASED_LEVEL if way == "S-SGD" else None
            for batch in numbers["SGD"]:
                wanted = cifar("cifar10", "resnet20", ways[way], level, batch=int(batch), devices=4, **changes)
                base = cells.get((f"SGD, {control}", batch))
                cells[name, batch] = Cell(name, batch, None, None, wanted, base=base, x=float(batch), ours=True)
    note = (
        "Controls are ours, and stand in the table where they were run. "
        "scaled: a learning rate in proportion to the batch, reached in five epochs; "
        "rate × 4: times the number of devices, as users of Horovod have it, with which the paper trained; "
        "epochs × 4: as if each device went through all images in an epoch."
    )
    about = "Large batches over four devices, batch-norm on each device's part, learning rate 0.1: ResNet20, CIFAR-10."
    return Part("fig5", "Figure 5", about, tuple(cells.values()), "batch", "test accuracy, %", "log", note)


def fig6() -> Part:
    cells = []
    for column in PLACES:
        base: Cell | None = None
        for method, wanted in speech(column, 190).items():
            cell = Cell(method, column, None, None, wanted, "test_cer", base=base, ours=column != "WSJ")
            base = base or cell
            cells.append(cell)
    about = (
        "Characters that the 12x190 SGCN gets wrong in the validation part, and the training loss, after each epoch, "
        "Adam and S-SGD Adam. In the table: the test part, after the last."
    )
    note = "The paper's curves are not in its source."
    return Part("fig6", "Figure 6", about, tuple(cells), "epoch", "CER, validation, %", note=note, base="Adam")


def fig7(t: dict[str, Any]) -> Part:
    cells = []
    first = cifar("cifar100", phases="75-50", lr=[0.1, 0.01])
    last = cifar("cifar100", "resnet20", "ssgd", PHASED_LEVEL, phases="75-50-50S")
    for part in ("train", "test"):
        numbers, metric = t["fig7_surface"][part], f"{part}_accuracy"
        base = Cell("SGD_f", part, numbers["SGD_f"], None, cifar("cifar100"), metric, x=1.0)
        cells.append(Cell("SGD_m", part, numbers["SGD_m"], None, first, metric, x=0.0))
        cells.append(base)
        cells.append(Cell("S-SGD", part, numbers["S-SGD"], None, last, metric, base=base, x=2.0))
    about = (
        "The loss over the plane through three solutions: ResNet20, CIFAR-100. SGD_m is after 125 epochs of SGD, "
        "SGD_f after 50 more, S-SGD after 50 of S-SGD instead."
    )
    note = f"The paper's pictures are not in its source; the accuracies of the three solutions are. {RECOMPUTED}"
    return Part("fig7", "Figure 7", about, tuple(cells), "solution", "accuracy, %", "names", note)


def perplexities(t: dict[str, Any], name: str, title: str, size: str) -> Part:
    phases = {"large": ("55", "29-26S", "46-9S"), "small": ("50", "10-40S", "30-20S")}[size]
    plain = Cell("SGD", "0", t["figA2_A3_ptb"]["SGD"][size], None, ptb(size, "SGD"), "test_perplexity", x=0.0)
    cells = [plain]
    theirs = t["table5_ptb_test_perplexity"][size]
    for label, text in zip(t["figA2_A3_ptb"][size][1:], phases, strict=True):
        for level in SWEPT[size]:
            method = f"S-SGD ({level})"
            paper = theirs.get(method) if "-" not in text else None
            wanted = {**ptb(size, method), "phases": text}
            cells.append(Cell(label, f"{level:g}", paper, None, wanted, "test_perplexity", base=plain, x=level))
    about = f"Test perplexity of the {size} language model against the noise level, S-SGD in all or the last epochs."
    note = "The paper's source has SGD's line and table 5's points, not the mixed curves."
    note = f"{note} {SMALL_LSTM}" if size == "small" else note
    return Part(name, title, about, tuple(cells), LEVEL_AXIS, "test perplexity", note=note, from_zero=True)


def spectra(t: dict[str, Any]) -> Iterator[Part]:
    claim = t["figA4_A6_hessian"]["claim"]
    about = "Density of the Hessian's eigenvalues, WRN20-2 on CIFAR-100: "
    note = f"The paper's pictures are not in its source; what it finds is that {claim}."
    for name, title, which in (
        ("figA4", "Figure A4", "SGD"),
        ("figA5", "Figure A5", "S-SGD"),
        ("figA6", "Figure A6", "both"),
    ):
        yield Part(name, title, f"{about}{which}.", (), "eigenvalue", "density", note=note)


def comparison(t: dict[str, Any]) -> Part:
    numbers = t["comparison"]
    dropconnect = numbers["DropConnect on the dense layer, ResNet20, CIFAR-10"]
    dropout = numbers["Dropout(0.2) dense, ResNet20, CIFAR-100"]
    cells = (
        Cell(
            "DropConnect on the dense layer",
            "CIFAR-10",
            dropconnect,
            None,
            cifar("cifar10", "resnet20", "dropconnect", DROPPED),
        ),
        Cell(
            "DropConnect on the convolutions",
            "CIFAR-10",
            None,
            None,
            cifar("cifar10", "resnet20", "dropconnect", DROPPED, perturb="conv"),
        ),
        Cell(
            "Dropout (0.2) on the dense layer",
            "CIFAR-100",
            dropout,
            None,
            cifar("cifar100", "resnet20", "dropout", 0.2),
        ),
    )
    note = "DropConnect on convolutions: in the paper training failed."
    return Part("comparison", "Comparison", "ResNet20 with other noises, from the paper's text.", cells, note=note)


def method_of(label: str) -> tuple[str, float | None]:
    """``S-SGD (0.4)`` is ssgd at 0.4."""
    return ("ssgd", float(label[label.index("(") + 1 : -1])) if label.startswith("S-SGD") else ("sgd", None)


def setting_of(label: str) -> Wanted:
    method, level = method_of(label)
    return {"method": method, "level": level, **({} if level is None else {"distribution": DISTRIBUTION})}


def speech(column: str, units: int) -> dict[str, Wanted]:
    here = {**PLACES[column], "model": f"sgcn-{units}"}
    noise = {"method": "ssgd", "level": SPEECH_LEVEL, "distribution": DISTRIBUTION}
    return {"Adam": {**here, "method": "sgd", "level": None}, "S-SGD Adam": {**here, **noise}}


def ptb(size: str, method: str) -> Wanted:
    return {**PTB[size], "model": f"lstm-{size}", **setting_of(method)}


def listed(t: dict[str, Any], column: str, model: str, method: str) -> float | None:
    """The spread of the paper's own runs in tables A1 and A2, where they are there."""
    key = {"CIFAR-10": "tableA1_cifar10_runs", "CIFAR-100": "tableA2_cifar100_runs"}[column]
    runs = t[key].get(model.replace("WRN", "WideResNet"), {}).get(method, {}).get("runs")
    return sample(runs).sd if runs else None
