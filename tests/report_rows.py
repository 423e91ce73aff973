"""Results as `ssgd reproduce` leaves them, made up: rows of recipes, a line, a plane and two spectra."""

import json
import math
from dataclasses import replace

import numpy as np

from ssgd.analysis import Spectrum, Surface, results
from ssgd.lab.experiments import Results, get
from ssgd.lab.experiments.questions import LABELS, labels
from ssgd.lab.experiments.rows import Row
from ssgd.lab.report import write


def row(name, seed=0, changes=None, **figures):
    """The row of a recipe by name, with ``changes`` to its fields, and figures of its own."""
    recipe = replace(get(name), seeds=(seed,), **(changes or {}))
    noisy = recipe.method.startswith(("both", "split"))
    return {
        "experiment": recipe.name,
        "model": recipe.model,
        "data": recipe.data,
        "method": recipe.method,
        "level": recipe.level,
        "distribution": recipe.distribution if noisy else None,
        "phases": recipe.phases,
        "weight_decay": recipe.weight_decay,
        "seed": seed,
        "epochs": recipe.schedule.epochs,
        "passes": recipe.schedule.passes,
        "seconds": 1.0,
        "test_accuracy": 70.0,
        "device": "cpu",
        "scale": "paper",
        "recipe": recipe.to_json(),
        **figures,
    }


def run(name, seed=0, changes=None, **figures):
    return Row(row(name, seed, changes, **figures))


def known(*rows):
    """The results that hold these rows."""
    found = Results("nowhere")
    for one in rows:
        found.take(one)
    return found


def write_rows(file, rows):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(one) + "\n" for one in rows))


def write_results(folder):
    """A little of everything that the page can show."""
    curve = [92 - 40 / (epoch + 1) for epoch in range(175)]
    rows = []
    for seed in range(3):
        rows += [row("table2/cifar10/resnet20/base", seed, test_accuracy=92.1 + seed / 10, curve=curve)]
        rows += [row("table2/cifar10/resnet20/both-0.29", seed, test_accuracy=92.6 + seed / 10, curve=curve)]
        rows += [row("table2/cifar100/resnet20/base", seed, test_accuracy=67.9 + seed / 10)]
        rows += [
            row(f"fig3/all/{a}", seed, test_accuracy=70 - 20 * (a - 0.23) ** 2 + seed / 10) for a in (0.12, 0.29, 0.46)
        ]
        rows += [row("noise_units/sphere/0.3", seed, test_accuracy=67.0)]
        rows += [
            row("table5/small/base", seed, test_perplexity=88.9),
            row("table5/small/both-0.4", seed, test_perplexity=85),
        ]
        figures = {"test_accuracy": 69.0 + seed / 10, "test_accuracy_recomputed_bn": 69.2 + seed / 10}
        rows += [row("equal_cost/cifar100/resnet20/split-0.15", seed, **figures)]
    speech = {"valid_cer": [30.0, 20.0, 15.0], "loss": [3.0, 2.0, 1.0]}
    rows += [row("table4/an4/sgcn-190/base", test_wer=20.0, test_cer=8.0, curves=speech)]
    for place, label in enumerate(LABELS):
        rows += [row(f"other_tasks/an4/{label}", seed, test_wer=20.0 - place - seed / 5) for seed in (1, 2, 3)]
        rows += [row(f"other_tasks/tiny-imagenet10/{label}", s, test_accuracy=80.0 + place * s / 4) for s in (1, 2, 3)]
    for place, label in enumerate(labels("ptb-large")):
        rows += [row(f"other_tasks/ptb-large/{label}", 1, test_perplexity=78.0 - place)]
    write_rows(folder / "made-up.jsonl", rows)
    pictures = {"fig2/line": line(), "fig7/plane": plane(), "figA6/base": spectrum(9.0), "figA6/both": spectrum(4.0)}
    for name, picture in pictures.items():
        (folder / name).parent.mkdir(exist_ok=True)
        results.save(picture, folder / name)


def line():
    x = np.linspace(-0.25, 1.25, 7)
    errors = np.stack([12 + 30 * (x - 0.5) ** 2, 31 + 30 * (x - 0.5) ** 2])
    anchors = np.array([[0.0], [1.0]])
    return Surface(
        geometry="Line",
        names=["SGD", "S-SGD"],
        tasks=["train", "test"],
        batchnorm="recompute",
        x=x,
        y=np.zeros(0),
        losses=errors / 20,
        errors=errors,
        anchors=anchors,
        anchor_losses=np.ones((2, 2)),
        anchor_errors=np.array([[10.0, 14.0], [31.8, 30.5]]),
        digest="",
    )


def plane():
    x, y = np.linspace(-1, 2, 7), np.linspace(-1, 1, 5)
    bowl = 0.2 + (x[:, None] - 0.5) ** 2 + y[None, :] ** 2
    bowl[0, 0] = math.nan  # a point that is not done yet
    return Surface(
        geometry="Plane",
        names=["SGD_m", "SGD_f", "S-SGD"],
        tasks=["train", "test"],
        batchnorm="recompute",
        x=x,
        y=y,
        losses=np.stack([bowl, 2 * bowl]),
        errors=np.stack([10 * bowl, 20 * bowl]),
        anchors=np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.5]]),
        anchor_losses=np.ones((2, 3)),
        anchor_errors=np.array([[18.6, 8.9, 13.4], [34.5, 31.5, 30.4]]),
        digest="",
    )


def spectrum(largest):
    values = np.linspace(-1, largest, 90)[None].repeat(5, 0)
    weights = np.full((5, 90), 1 / 90)
    facts = {"product": "exact", "mode": "eval", "dtype": "float32"}
    return Spectrum(
        values=values,
        weights=weights,
        parameters=10,
        samples=10_000,
        products=450,
        passes=60.0,
        seconds=1.0,
        seed=0,
        **facts,
    )


def page_of(folder, tmp_path):
    write(folder, tmp_path / "report.html")
    return (tmp_path / "report.html").read_text()
