"""Draws the figures of README and docs from results/ and benchmarks/results/: ``python scripts/draw_figures.py``.

A figure is titled by its finding. Each function below draws one and returns that title, after ``found`` has checked
that the rows still say so: where they no longer do, it is the title that must be rewritten. Every figure is written
for light and for dark pages, as docs/NAME-light.svg and docs/NAME-dark.svg.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import numpy as np
import tolerance_numbers
from fill_numbers import (
    COURSES,
    LEVELS,
    PHASES,
    SHARP,
    benchmark,
    between,
    course,
    judged,
    papers_curves,
    papers_phases,
    results,
    rows_of,
    sharp,
)
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ssgd.lab.experiments.cells import AGAIN
from ssgd.lab.experiments.statistics import Difference, paired, sample
from ssgd.lab.experiments.tables import targets
from ssgd.lab.report.answers import first_of_each
from ssgd.lab.report.outcomes import figures
from ssgd.lab.report.verdicts import ABOVE, BELOW, CALIBRATED
from ssgd.lab.report.wording import signed

ROOT = Path(__file__).parent.parent


@dataclass(frozen=True)
class Ink:
    """The colours of a theme: text, what explains, S-SGD, the paper, and lines that are not looked at."""

    text: str
    soft: str
    ours: str
    paper: str
    line: str


THEMES = {
    "light": Ink("#1b1f24", "#57606a", "#0072b2", "#b34700", "#c4cbd2"),
    "dark": Ink("#e6edf3", "#9aa4af", "#58b4e8", "#f0a35e", "#4a535d"),
}


@dataclass(frozen=True)
class Line:
    """A row of a forest: a mean with its interval, which is nan for a single seed."""

    label: str
    mean: float
    low: float
    high: float
    colour: str
    hollow: bool = False


def found(holds: bool, title: str) -> str:
    """Returns a title, if the rows say what it says."""
    if not holds:
        raise ValueError(f"the rows no longer say: {title}")
    return title


def forest(panel: Axes, rows: Sequence[Line], ink: Ink) -> None:
    """Draws a dot and its interval for each row, from the top down, beside the line at zero."""
    for at, row in enumerate(rows):
        panel.plot([row.low, row.high], [at, at], color=row.colour, lw=2, solid_capstyle="round")
        fill = "none" if row.hollow else row.colour
        panel.plot(row.mean, at, "o", ms=7, color=row.colour, mfc=fill, mew=1.6)
    panel.axvline(0, color=ink.line, lw=1, zorder=0)
    panel.set_ylim(len(rows) - 0.4, -0.6)
    panel.set_yticks(range(len(rows)), [row.label for row in rows])
    panel.tick_params(axis="y", length=0, labelcolor=ink.text)


def note(panel: Axes, x: float, y: float, text: str, colour: str, **more: object) -> None:
    """Labels something where it stands, a little beside it."""
    panel.annotate(text, (x, y), xytext=(6, 4), textcoords="offset points", color=colour, fontsize=9, **more)


# --- what the methods gain --------------------------------------------------------------------------------------------

TASKS = {  # title: the recipes' common name, the metric, and whether it is an accuracy
    "CIFAR-100, ResNet20: error": ("equal_cost/cifar100/resnet20/", "test_accuracy", True),
    "Penn Treebank, small LSTM: perplexity": ("other_tasks/ptb-small/", "test_perplexity", False),
    "AN4, speech: word error rate": ("other_tasks/an4/", "test_wer", False),
}
METHODS = {  # label: the ends of the recipes' names, and whether it takes twice the passes
    "S-SGD, split": (("split-0.15", "split"), False),
    "no noise, batch in halves": (("halves",), False),
    "one-sided noise": (("one-sided",), False),
    "S-SGD, both signs": (("both-0.29", "both"), True),
    "SAM": (("sam-0.05", "sam"), True),
    "ASAM": (("asam-0.5", "asam"), True),
}


def gain(common: str, end: str, metric: str, accuracy: bool) -> Difference | None:
    """Returns how much smaller the error is than the base's, in per cent of it; None where nothing was run."""

    def errors(name: str) -> dict[int, float]:
        try:
            known = figures(rows_of(common + name), metric)
        except KeyError:
            return {}
        return {seed: 100 - value if accuracy else value for seed, value in known.items()}

    base, ours = errors("base"), errors(end)
    shared = base.keys() & ours.keys()
    return paired({s: 100 * (base[s] - ours[s]) / base[s] for s in shared}, dict.fromkeys(shared, 0.0))


def gains(figure: Figure, ink: Ink) -> str:
    """Draws a panel for each task, with an axis of its own: README's picture."""
    drawn, helped, beside = {}, True, True
    for task, (common, metric, accuracy) in TASKS.items():
        rows = []
        for method, (ends, twice) in METHODS.items():
            known = [one for end in ends if (one := gain(common, end, metric, accuracy)) is not None]
            if known and known[0].count > 1:
                one, ours = known[0], method.startswith("S-SGD")
                helped &= not ours or one.low > 0
                label = f"{method} ({one.count} seeds)"
                rows.append(Line(label, one.mean, one.low, one.high, ink.ours if ours else ink.soft, twice))
        drawn[task] = rows
        one_sided = [row for row in rows if row.label.startswith("one-sided")]
        beside &= all(row.low > 0 and row.mean > rows[0].mean / 2 for row in one_sided)
    figure.set_size_inches(8, 0.28 * sum(map(len, drawn.values())) + 0.75 * len(drawn) + 0.8)
    panels = figure.subplots(len(drawn), height_ratios=[*map(len, drawn.values())])
    for panel, (task, rows) in zip(panels, drawn.items(), strict=True):
        forest(panel, rows, ink)
        panel.set_title(task, loc="left", color=ink.text, fontsize=10)
    panels[-1].set_xlabel("how much smaller than the base's, % of it (95 % interval)")
    title = "Split and both signs lower the error or perplexity; one-sided noise brings most of it"
    return found(helped and beside, title)


PAIRS = {  # label: the end of the recipe's name
    "SGD": "base",
    "halves without noise": "halves",
    "split": "split-0.15",
    "both signs, last 25 epochs": "75-50-25S-both-0.29",
    "SAM, last 25 epochs": "75-50-25S-sam-0.05",
    "both signs (2 passes)": "both-0.29",
    "SAM (2 passes)": "sam-0.05",
    "ASAM (2 passes)": "asam-0.5",
}


def pairs(figure: Figure, ink: Ink) -> str:
    """Draws the difference of each method to those before it, on CIFAR-100."""
    known = [figures(rows_of(f"c100/{name}"), "test_accuracy") for name in PAIRS.values()]
    told = {(i, j): paired(known[i], known[j]) for i in range(1, len(known)) for j in range(i)}
    figure.set_size_inches(8, 4.2)
    panel = figure.subplots()
    for (i, j), one in told.items():
        assert one is not None
        sure = one.low * one.high > 0
        box = plt.Rectangle((j - 0.47, i - 0.45), 0.94, 0.9, color=ink.ours, alpha=0.28 if sure else 0, lw=0)
        panel.add_patch(box)
        weight = "bold" if sure else "normal"
        panel.text(j, i - 0.1, _signed(one.mean), ha="center", va="center", color=ink.text, weight=weight)
        interval = f"{_signed(one.low)} to {_signed(one.high)}"
        panel.text(j, i + 0.25, interval, ha="center", va="center", color=ink.soft, fontsize=7)
    labels = [*PAIRS]
    panel.set_xlim(-0.5, len(labels) - 1.5)
    panel.set_ylim(len(labels) - 0.5, 0.5)
    panel.set_yticks(range(1, len(labels)), labels[1:])
    columns = [label.replace(", ", ",\n").replace(" (", "\n(").replace("s wi", "s\nwi") for label in labels[:-1]]
    panel.set_xticks(range(len(labels) - 1), columns, fontsize=8)
    panel.xaxis.tick_top()
    panel.tick_params(length=0, labelcolor=ink.text)
    panel.set_xlabel("row minus column, points, and its 95 % interval; shaded: without zero", x=0, ha="left")
    apart = [one for (i, j), one in told.items() if {i, j} <= {2, 3, 4} and one and one.low * one.high > 0]
    best = all(one.mean > 0 for (i, _), one in told.items() if i == len(known) - 1 and one)
    return found(not apart and best, "ASAM gains most; three methods at the cost of SGD differ too little to rank")


def _signed(value: float) -> str:
    return signed(round(value, 2) + 0.0)


# --- the paper --------------------------------------------------------------------------------------------------------


def paper(figure: Figure, ink: Ink) -> str:
    """Draws our gain beside the paper's, for each number that has one and was run; large batches have a table."""
    first = {id(one): (title, one) for title, one in judged()}
    every = [first[id(one)] for one in first_of_each(one for _, one in judged())]
    every = [(title, one) for title, one in every if one.cell.gain is not None and one.ours.gain]
    every = [(title, one) for title, one in every if title != "Figure 5" and one.cell.column != "train"]
    panels = ("test_accuracy", "test_perplexity")
    drawn = [[(title, one) for title, one in every if one.cell.metric == metric] for metric in panels]
    figure.set_size_inches(8, 0.27 * sum(map(len, drawn)) + 1.9)
    kinds = ("gain in accuracy, points; seeds in brackets, hollow: one seed", "how much lower the perplexity is")
    for panel, mine, kind, sign in zip(
        figure.subplots(2, height_ratios=[*map(len, drawn)]), drawn, kinds, (1, -1), strict=True
    ):
        rows = []
        for title, one in mine:
            gain, count = one.ours.gain, len(one.ours.differences) or 1
            assert gain is not None
            ends = sorted((sign * gain.low, sign * gain.high))
            column = f"level {one.cell.column}" if title == "Figure 3" else one.cell.column
            label = f"{title}: {one.cell.row}, {column} ({count})"
            colour = ink.soft if one.gain_verdict == CALIBRATED else ink.ours
            rows.append(Line(label, sign * gain.middle, *ends, colour, count == 1))
        forest(panel, rows, ink)
        theirs = [sign * (one.cell.gain or 0) for _, one in mine]
        panel.plot(theirs, range(len(mine)), "D", ms=6, color=ink.paper, mfc="none", mew=1.5)
        panel.set_xlabel(kind)
        note(panel, theirs[0], 0, "the paper", ink.paper)
    told = [one.gain_verdict for _, one in every]
    below, above, fitted = (told.count(verdict) for verdict in (BELOW, ABOVE, CALIBRATED))
    title = f"{below} of {len(every) - fitted} gains lie below the paper's, none above; the grey ones are calibrated"
    return found(above == 0 and below > 0, title)


# --- the gap to the paper ---------------------------------------------------------------------------------------------


def phases(figure: Figure, ink: Ink) -> str:
    """Draws our gain and the paper's by when the noise comes."""
    figure.set_size_inches(8, 3)
    panel = figure.subplots()
    rows, theirs, off = [], [], {}
    for label, (name, base, key) in PHASES.items():
        one = paired(*(figures(rows_of(of), "test_accuracy") for of in (name, base)))
        sgd, both = papers_phases(key)
        assert one is not None
        theirs.append(both - sgd)
        off[label] = both - sgd - one.mean
        rows.append(Line(f"{label} ({one.count})", one.mean, one.low, one.high, ink.ours, one.count == 1))
    forest(panel, rows, ink)
    panel.plot(theirs, range(len(rows)), "D", ms=6, color=ink.paper, mfc="none", mew=1.5)
    note(panel, theirs[0], 0, "the paper", ink.paper)
    note(panel, rows[0].mean, 0, "ours", ink.ours)
    panel.set_xlabel("both signs − SGD, points of accuracy on CIFAR-100; hollow: one seed")
    late = {label for label in off if label.startswith(("in the last 25 of", "in the last 50 of 175"))}
    nearest = max(off[label] for label in late) < min(gap for label, gap in off.items() if label not in late)
    return found(nearest, "Noise in the last phase alone comes nearest to the paper's gain")


def first_epochs(figure: Figure, ink: Ink) -> str:
    """Draws SGD's test accuracy over the first epochs in four settings, and the range of the paper's runs."""
    figure.set_size_inches(8, 3.6)
    panel = figure.subplots()
    runs, epochs = papers_curves("SGD")[:, :25], np.arange(1, 26)
    panel.fill_between(epochs, runs.min(0), runs.max(0), color=ink.paper, alpha=0.25, lw=0)
    panel.plot(epochs, runs.mean(0), color=ink.paper, lw=2)
    styles = ((ink.soft, "-"), (ink.soft, ":"), (ink.soft, "--"), (ink.ours, "-"))
    ends = {"the paper, five runs": (runs.mean(0)[-5:].mean(), ink.paper)}
    off = {}
    for (label, name), (colour, style) in zip(COURSES.items(), styles, strict=True):
        ours = course(name)[:25]
        panel.plot(epochs, ours, style, color=colour, lw=1.6)
        ends[label] = (ours[-5:].mean(), colour)
        off[label] = abs(ours[5:25].mean() - runs[:, 5:25].mean())
    below = 0.0
    for label, (height, colour) in sorted(ends.items(), key=lambda end: end[1]):
        below = max(height, below + 3)  # labels leave each other room
        panel.annotate(label, (25.3, below), color=colour, fontsize=9, va="center", annotation_clip=False)
    panel.set_xlim(1, 38)
    panel.set_xticks([1, 5, 10, 15, 20, 25])
    panel.set_ylim(35, 88)
    panel.set_xlabel("epoch, learning rate 0.1")
    panel.set_ylabel("test accuracy, CIFAR-10, %")
    follows = off["2e-4"] < 1 and all(gap > 2 for label, gap in off.items() if label != "2e-4")
    return found(follows, "With weight decay 2e-4 SGD follows the paper's course; three other settings do not")


# --- the level, the minimum, the cost ---------------------------------------------------------------------------------


def level(figure: Figure, ink: Ink) -> str:
    """Draws accuracy against the ratio of norms, with the paper's curve at a/√3."""
    figure.set_size_inches(8, 3.8)
    panel = figure.subplots()
    curve = [point for point in targets()["fig3_noise_level"]["curves"]["S-SGD"] if point["level"] <= 1]
    ratios = np.array([point["level"] for point in curve]) / 3**0.5
    theirs, half = (np.array([point[key] for point in curve]) for key in ("mean", "half_width"))
    panel.fill_between(ratios, theirs - half, theirs + half, color=ink.paper, alpha=0.25, lw=0)
    panel.plot(ratios, theirs, color=ink.paper, lw=2)
    note(panel, ratios[4], theirs[4], "the paper", ink.paper)
    off = []
    for label, names, metric, colour, mark in (
        ("uniform", [f"uniform/{ratio}" for ratio in LEVELS.values()], "test_accuracy", ink.ours, "o"),
        ("uniform, statistics gathered again", [f"uniform/{ratio}" for ratio in LEVELS.values()], AGAIN, ink.ours, "D"),
        ("sphere", [f"sphere/{ratio}" for ratio in LEVELS], "test_accuracy", ink.soft, "s"),
    ):
        rows = [rows_of(f"noise_units/{name}", "1,2,3") for name in names]
        known = [sample(figures(one, metric).values()) for one in rows]
        at = [next(iter(one.values()))["level"] for one in rows]
        kept = [(x, one) for x, one in zip(at, known, strict=True) if x <= 0.6]
        xs, means, spreads = [x for x, _ in kept], [one.mean for _, one in kept], [one.sd for _, one in kept]
        fill = "none" if mark == "D" else colour
        panel.errorbar(xs, means, spreads, fmt=mark, ms=6, color=colour, mfc=fill, lw=1.4, label=label)
        if metric == AGAIN:
            off = [abs(one.mean - np.interp(x, ratios, theirs)) for x, one in kept]
    base = sample(figures(rows_of("noise_units/base"), "test_accuracy").values())
    panel.axhline(base.mean, color=ink.line, lw=1, zorder=0)
    note(panel, 0.5, base.mean, "our SGD", ink.soft)
    panel.legend(frameon=False, labelcolor=ink.text, loc="lower left", fontsize=9)
    panel.set_ylim(58, 70.5)
    panel.set_xlabel("level, ‖n‖ / ‖w‖ (the paper's level divided by √3)")
    panel.set_ylabel("test accuracy, CIFAR-100, %")
    return found(max(off) < 0.5, "Read as a peak of uniform noise (chosen to fit), the paper's levels give its curve")


def minimum(figure: Figure, ink: Ink) -> str:
    """Draws the accuracy of solutions against their sharpness, a dot for each seed."""
    figure.set_size_inches(8, 3.8)
    panel = figure.subplots()
    means = {}
    for label, method in SHARP.items():
        excess, accuracy = sharp(method, "excess"), sharp(method, "test_accuracy")
        noisy = "split" in label or "signs" in label
        colour = ink.ours if noisy else ink.soft
        panel.plot(excess, accuracy, "o", ms=4, color=colour, alpha=0.45, mew=0)
        means[method] = (np.mean(excess), np.mean(accuracy))
        panel.plot(*means[method], "o", ms=8, color=colour, mfc=colour if noisy else "none", mew=1.6)
        place = {"split": (-8, 6), "last both": (-8, 6), "both": (8, -14)}.get(method, (8, 2))
        text = label.replace("`", "").removesuffix(", seeds 1 to 3").replace(" in the last", "\nin the last")
        side = "right" if place[0] < 0 else "left"
        panel.annotate(text, means[method], xytext=place, textcoords="offset points", color=colour, fontsize=9, ha=side)
    panel.set_xlim(0.3, 3.1)
    panel.set_xlabel("symmetric excess at the level 0.29: sharper to the right (small dots are single seeds)")
    panel.set_ylabel("test accuracy, CIFAR-100, %")
    excess = [means[method][0] for method in ("base", "split", "last both", "both")]
    flattest_is_worse = means["both"][1] < min(means[name][1] for name in ("split", "sam", "last both"))
    holds = excess == sorted(excess, reverse=True) and flattest_is_worse
    return found(holds, "More noise finds flatter minima, but the flattest are not the most accurate")


def valley(figure: Figure, ink: Ink) -> str:
    """Draws the test error on lines between solutions of SGD and of both signs."""
    figure.set_size_inches(8, 3.2)
    panel = figure.subplots()
    shares = np.linspace(-0.25, 1.25, 61)
    inside = (shares >= -0.2) & (shares <= 1.2)
    together, apart = between(shares[inside], False), between(shares, True)
    panel.plot(shares, apart, color=ink.soft, lw=1.8)
    panel.plot(shares[inside], together, color=ink.ours, lw=2.2)
    note(panel, 0.62, 80, "trained apart from the first step on", ink.soft)
    note(panel, 0.25, 33, "from the same 125 epochs of SGD", ink.ours)
    panel.set_xticks([0, 1], ["SGD", "both signs"])
    panel.set_ylabel("test error, CIFAR-100, %")
    panel.set_ylim(20, 100)
    holds = together[(shares[inside] >= 0) & (shares[inside] <= 1)].max() < together[0] and apart.max() > 90
    return found(holds, "Solutions with a common start share one valley; solutions trained apart do not")


COSTS = {  # a loop: the file, the row's name, and the ways that are divided by SGD
    "GPT, CPU, eager": ("own-loop-cpu.json", "own_loop_gpt_{}_eager_over_sgd", ("one_pass", "both")),
    "GPT, CPU, compiled": ("own-loop-cpu.json", "own_loop_gpt_{}_compiled_over_sgd", ("one_pass", "both")),
    "WRN block, CPU, eager": ("optimizer-cpu.json", "{}_over_sgd", ("split", "both")),
    "WRN28-4, GPU, eager": ("optimizer-cuda.json", "{}_over_sgd_eager", ("split", "both")),
    "WRN28-4, GPU, compiled": ("optimizer-cuda.json", "{}_over_sgd_compiled", ("split", "both")),
    "WRN28-4, GPU, one CUDA graph": ("optimizer-cuda.json", "{}_over_sgd_graph", ("split", "both")),
    "the same, compiled": ("optimizer-cuda.json", "{}_over_sgd", ("split", "both")),
    "WRN28-4, GPU, ssgd train": ("speed-cuda.json", "wrn28_4_batch512_{}_over_sgd", ("split", "both")),
    "the same, batch 128": ("speed-cuda.json", "wrn28_4_{}_over_sgd", ("split", "both")),
    "ResNet20, GPU, ssgd train": ("speed-cuda.json", "resnet20_{}_over_sgd", ("split", "both")),
}
SHAPES = {"one_pass": ("s", "one pass"), "split": ("o", "split"), "both": ("D", "both signs")}


def costs(figure: Figure, ink: Ink) -> str:
    """Draws the time of a step over that of SGD in the same kind of loop, and its interquartile range."""
    figure.set_size_inches(8, 3.9)
    panel = figure.subplots()
    known: dict[str, list[float]] = {}
    named = set()
    for at, (label, (file, name, ways)) in enumerate(COSTS.items()):
        for way in ways:
            row = benchmark(file)[name.format(way)]
            value, reach = row["value"], row["spread"] / 2
            known.setdefault(label, []).append(value)
            mark, title = SHAPES[way]
            fill = "none" if way == "both" else ink.ours
            panel.plot([value - reach, value + reach], [at, at], color=ink.ours, lw=1.4)
            panel.plot(value, at, mark, ms=7, color=ink.ours, mfc=fill, mew=1.6, label=None if way in named else title)
            named.add(way)
    for one in (1, 2):
        panel.axvline(one, color=ink.line, lw=1, zorder=0)
    panel.set_ylim(len(COSTS) - 0.4, -0.6)
    panel.set_yticks(range(len(COSTS)), [*COSTS])
    panel.tick_params(axis="y", length=0, labelcolor=ink.text)
    panel.set_xlim(0.9, 2.5)
    panel.set_xlabel("time of a step ÷ that of SGD; lines are as long as the interquartile range")
    panel.legend(frameon=False, labelcolor=ink.text, loc="center", bbox_to_anchor=(0.45, 0.5), fontsize=9)
    waiting = ("WRN28-4, GPU, eager", "WRN28-4, GPU, compiled")
    holds = min(min(known[label]) for label in waiting) > 1.9
    holds &= max(half for label, (half, _) in known.items() if label not in waiting) < 1.25
    return found(holds, "Split costs little more than one pass, but not where the GPU waits for launches")


def bears(figure: Figure, ink: Ink) -> str:
    """Draws what the pair adds at equal clean loss, and the variance of each way along the training."""
    figure.set_size_inches(8, 3.6)
    left, right = figure.subplots(1, 2)
    net, every = tolerance_numbers.TEXT, tolerance_numbers.advantages(tolerance_numbers.TEXT, results())
    strengths = [damage for damage in net.damages if damage[0] == "noise"]
    for shift, (rival, colour) in enumerate({"one-sided": ink.ours, "one-sided-halves": ink.paper}.items()):
        for at, damage in enumerate(strengths):
            one, place = every[rival, damage], at + 0.12 * (2 * shift - 1)
            left.plot([place, place], [one.low, one.high], color=colour, lw=2, solid_capstyle="round")
            left.plot(place, one.mean, "o", ms=7, color=colour)
        label = f"than {tolerance_numbers.METHODS[rival]}"
        left.text(0.02, 0.93 - 0.08 * shift, label, color=colour, fontsize=9, transform=left.transAxes)
    left.axhline(0, color=ink.line, lw=1, zorder=0)
    left.set_xticks(range(len(strengths)), [strength for _, strength in strengths])
    left.set_xlabel("weight noise, ‖noise‖ / ‖weights‖")
    left.set_ylabel("bits by which the pair is better")
    size = min(one["batch"] for one in tolerance_numbers.gradients())
    level = max(one["level"] for one in tolerance_numbers.gradients())
    rows = [one for one in tolerance_numbers.gradients() if (one["batch"], one["level"]) == (size, level)]
    for way, colour in {"one-sided": ink.ours, "independent": ink.paper, "pair": ink.text, "batch": ink.soft}.items():
        values = [sum(row["of"][way].values()) for row in rows]
        right.plot([row["step"] for row in rows], values, color=colour, ls="--" if way == "batch" else "-")
        label = {"batch": "choice of the batch", "independent": "two draws", "one-sided": "one sign"}.get(way, way)
        note(right, rows[-1]["step"], values[-1], label, colour, ha="right")
    right.set_xlabel("step of the training")
    right.set_ylabel(f"variance ÷ gradient², level {level:g}")
    right.set_ylim(0, 1.15)
    holds = all(every[rival, damage].low > 0 for rival in tolerance_numbers.RIVALS for damage in strengths[1:])
    return found(holds, "At equal clean loss the pair's net bears strong noise of its weights better")


FIGURES: dict[str, Callable[[Figure, Ink], str]] = {
    one.__name__: one for one in (gains, pairs, paper, phases, first_epochs, level, minimum, valley, costs, bears)
}


def draw(name: str, theme: str, path: Path) -> str:
    """Writes a figure for a light or a dark page, and returns its title."""
    ink = THEMES[theme]
    style = {
        "svg.hashsalt": "ssgd",
        "svg.fonttype": "none",
        "font.size": 10,
        "text.color": ink.text,
        "axes.labelcolor": ink.soft,
        "axes.edgecolor": ink.line,
        "xtick.color": ink.soft,
        "ytick.color": ink.soft,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "lines.solid_capstyle": "round",
    }
    with plt.rc_context(style):
        figure = plt.figure(layout="constrained")
        title = FIGURES[name](figure, ink)
        figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, weight="bold")
        figure.savefig(path, transparent=True, metadata={"Date": None})
        plt.close(figure)
    text = path.read_text(encoding="utf-8")
    at = text.index("'DejaVu Sans'")
    fonts = text[at : text.index("sans-serif", at)]
    path.write_text(text.replace(fonts, "system-ui, "), encoding="utf-8")
    return title


def main() -> int:
    for name in FIGURES:
        for theme in THEMES:
            title = draw(name, theme, ROOT / "docs" / f"{name}-{theme}.svg")
        print(f"{name}: {title}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
