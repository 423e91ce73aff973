"""Our question beyond CIFAR: words, speech and ten classes of ImageNet, each method beside the base it wraps."""

from __future__ import annotations

from typing import Any

from .charts import Chart, chart, curve
from .questions import Line, Question, by_variant, figures, passes
from .runs import Run
from .statistics import paired, sample

BASE = "base"
OTHERS = ("ssgd", "split", "ssgd-half")
FIGURES = {"test_perplexity": "perplexity", "test_wer": "WER, %", "test_accuracy": "accuracy, %"}
FALLING = ("test_perplexity", "test_wer")  # less is better

Named = list[tuple[str, Line]]  # the label in the run's name, and its line


def beyond(runs: list[Run]) -> Question:
    """By the runs' names, ``beyond/TASK/LABEL``, which also say what is to be compared."""
    mine = [run for run in runs if run.experiment.startswith("beyond/") and run.experiment.count("/") == 2]
    lines: list[Line] = []
    series: list[dict[str, Any]] = []
    for metric in FIGURES:
        fits = [run for run in mine if figure_of(run) == metric]
        for task in dict.fromkeys(task_of(run) for run in fits):
            found = lines_of(task, metric, [run for run in fits if task_of(run) == task])
            lines += [line for _, line in found]
            points = gains(found, metric)
            series += [curve(task, points, False, len(series), loose=True)] if points else []
    about = (
        "Words, speech and ten classes of Tiny ImageNet: does S-SGD hold there, at the same epochs and at the same "
        "cost? base is SGD or Adam alone; ssgd takes both signs in as many epochs, at twice the cost; split a sign on "
        "each half of the batch, and ssgd-half both signs in half the epochs, at the base's cost. Of perplexity and "
        "word errors (WER) less is better, of accuracy more: a seed has gained where it is better than the base's. "
        "Drawn are gains, upwards where better, with their 95 % intervals."
    )
    drawn = [drawing(series)] if series else []
    return Question("beyond", "Beyond CIFAR", about, "ssgd reproduce beyond", lines, drawn, measured="test", base=BASE)


def lines_of(task: str, metric: str, runs: list[Run]) -> Named:
    """The base of a task and what is compared with it; a label at two levels has two lines."""
    groups = [
        (label, group) for label in (BASE, *OTHERS) for group in by_variant(r for r in runs if label_of(r) == label)
    ]
    base = next((figures(group, metric) for label, group in groups if label == BASE), {})
    found = []
    for label, group in groups:
        ours = figures(group, metric)
        difference = paired(ours, base, metric in FALLING) if label != BASE else None
        protocol = f"{task}, {FIGURES[metric]}"
        line = Line(protocol, told(label, group[0]), passes(group[0]), sample(ours.values()), difference)
        found.append((label, line))
    return found


def gains(found: Named, metric: str) -> list[tuple[float, ...]]:
    """In percent of the base's mean and upwards where better, so that all tasks share one axis."""
    base = next((line.test.mean for label, line in found if label == BASE), 0.0)
    unit = (-base if metric in FALLING else base) / 100
    pairs = [(OTHERS.index(label), line.difference) for label, line in found if line.difference and unit]
    return [(place, d.mean / unit, abs((d.high - d.low) / 2 / unit)) for place, d in pairs]


def drawing(series: list[dict[str, Any]]) -> Chart:
    return chart("beyond", "method", "gain over the base, % of its mean", series, scale="names", names=list(OTHERS))


def figure_of(run: Run) -> str | None:
    return next((metric for metric in FIGURES if run.metric(metric) is not None), None)


def task_of(run: Run) -> str:
    return run.experiment.split("/")[1]


def label_of(run: Run) -> str:
    return run.experiment.split("/")[2]


def told(label: str, run: Run) -> str:
    inside = run.field("optimizer") if run.level is None else f"{run.level:g}, {run.law}"
    return f"{label} ({inside})"
