"""Our question beyond CIFAR: words, speech and ten classes of ImageNet, each method beside the base it wraps."""

from __future__ import annotations

import math
from functools import partial

from .answers import by_task
from .charts import Chart, chart
from .paper import DISTRIBUTION
from .questions import Line, Question, by_variant, figures, interval, lost, passes
from .runs import Run, is_number
from .statistics import paired, sample
from .wording import NAMES

BASE = "base"
OTHERS = {  # the label in a run's name, and what readers are told
    "ssgd": NAMES["ssgd"],
    "split": "split",
    "ssgd-half": f"{NAMES['ssgd']}, ½ epochs",
    "one-sided": "one-sided",
    "base-2x": "base, 2× epochs",
}
FIGURES = {"test_perplexity": "perplexity", "test_wer": "WER, %", "test_accuracy": "accuracy, %"}
FALLING = ("test_perplexity", "test_wer")  # less is better


def beyond(runs: list[Run]) -> Question:
    """By the runs' names, ``beyond/TASK/LABEL``, which also say what is to be compared."""
    mine = [run for run in runs if run.experiment.startswith("beyond/") and run.experiment.count("/") == 2]
    lines: list[Line] = []
    drawn: list[Chart] = []
    for metric in FIGURES:
        fits = [run for run in mine if figure_of(run) == metric]
        for task in dict.fromkeys(task_of(run) for run in fits):
            found = lines_of(task, metric, [run for run in fits if task_of(run) == task])
            lines += found
            drawn += gains(task, metric, found)
    about = (
        "Words, speech and ten classes of Tiny ImageNet: does S-SGD hold there, at the same epochs and at the same "
        "cost? The base is SGD or Adam alone. Both signs in as many epochs come at twice its cost; split, a sign on "
        "each half of the batch, and both signs in half the epochs at the base's; one-sided is split's noise with one "
        "sign for the whole batch, at that cost too; the base in twice the epochs costs what both signs do. Of words "
        "the first 29 of 55 epochs (small: 30 of 50) are SGD's for all, and the rest alone is doubled in cost or "
        "halved. Of perplexity and word errors (WER) less is better, of accuracy more: a seed has gained where it is "
        "better than the base's. Levels are of uniform noise. Drawn are gains, to the right where better, with "
        "95 % intervals."
    )
    return Question(
        "beyond",
        "Beyond CIFAR",
        about,
        "ssgd reproduce beyond",
        lines,
        drawn,
        measured="test",
        base=BASE,
        answer=by_task(lines),
        diverged=lost(mine),
    )


def lines_of(task: str, metric: str, runs: list[Run]) -> list[Line]:
    """The bases of a task and what is compared with them; a label at two levels or lengths has two lines."""
    groups = {label: by_variant(run for run in runs if label_of(run) == label) for label in (BASE, *OTHERS)}
    found = []
    for label, mine in groups.items():
        lengths = {epochs(group[0]) for group in mine}
        for group in mine:
            base = None if label == BASE else min(groups[BASE], key=partial(apart, group), default=None)
            ours = figures(group, metric)
            difference = None if base is None else paired(ours, figures(base, metric), metric in FALLING)
            name = told(label, group[0], len(lengths) > 1)
            of = f"{task}, {FIGURES[metric]}"
            found.append(Line(of, name, passes(group[0]), sample(ours.values()), difference))
    return found


def apart(group: list[Run], base: list[Run]) -> float:
    """A base is a measure at the same epochs, or at the same cost; what doubles the epochs, at half of its own."""
    stretched = 2.0 if group[0].method == "sgd-2x" else 1.0
    pairs = [(of(group[0]) or 1.0, of(base[0]) or 1.0) for of in (epochs, passes)]
    return min(abs(math.log(ours / stretched / theirs)) for ours, theirs in pairs)


def gains(task: str, metric: str, lines: list[Line]) -> list[Chart]:
    """A chart for each task: they have nothing in common but the base's being at 0."""
    rows = [row for line in lines if (row := interval(line, metric in FALLING))]
    about = f"gain over the base: {FIGURES[metric]}"
    return [chart(f"beyond-{task}", about, "", [], groups=[{"name": task, "rows": rows}])] if rows else []


def figure_of(run: Run) -> str | None:
    return next((metric for metric in FIGURES if run.metric(metric) is not None), None)


def task_of(run: Run) -> str:
    return run.experiment.split("/")[1]


def label_of(run: Run) -> str:
    return run.experiment.split("/")[2]


def epochs(run: Run) -> float | None:
    found = run.field("epochs")
    return float(found) if is_number(found) and found > 0 else None


def told(label: str, run: Run, length: bool) -> str:
    inside = (
        [run.field("optimizer")]
        if run.level is None
        else [f"{run.level:g}", *([run.distribution] if run.distribution not in (None, DISTRIBUTION) else [])]
    )
    inside += [f"{epochs(run) or 0:g} epochs"] if length else []
    return f"{OTHERS.get(label, label)} ({', '.join(map(str, inside))})"
