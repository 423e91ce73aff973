"""Draws README's first picture from the rows under results/: ``python scripts/draw_gains.py``.

A dot is the mean over the seeds that a method and its base share, and a line its 95 % interval: how much smaller the
method's error, word error rate or perplexity is than the base's, in per cent of the base's. Filled dots cost as many
passes as the base, hollow dots twice as many.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from fill_numbers import rows_of
from matplotlib import pyplot as plt

from ssgd.lab.experiments.statistics import Difference, paired
from ssgd.lab.report.outcomes import figures

ROOT = Path(__file__).parent.parent
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
COLOURS = {"light": ("#1b1f24", "#57606a", "#0072b2", "#a8b1bb"), "dark": ("#e6edf3", "#9aa4af", "#58b4e8", "#5a646f")}


def gain(common: str, end: str, metric: str, accuracy: bool) -> Difference | None:
    """Returns how much smaller the error is than the base's, in per cent of it; None where nothing was run."""

    def errors(name: str) -> dict[int, float]:
        try:
            found = figures(rows_of(common + name), metric)
        except KeyError:
            return {}
        return {seed: 100 - value if accuracy else value for seed, value in found.items()}

    base, ours = errors("base"), errors(end)
    shared = base.keys() & ours.keys()
    return paired({s: 100 * (base[s] - ours[s]) / base[s] for s in shared}, dict.fromkeys(shared, 0.0))


def points() -> list[tuple[str, str, bool, Difference]]:
    """Returns task, method, whether it costs twice, and its gain, for all that was run over several seeds."""
    found = []
    for task, (common, metric, accuracy) in TASKS.items():
        for method, (ends, twice) in METHODS.items():
            gains = [one for end in ends if (one := gain(common, end, metric, accuracy)) is not None]
            if gains and gains[0].count > 1:
                found.append((task, method, twice, gains[0]))
    return found


def draw(path: Path, theme: str, rows: list[tuple[str, str, bool, Difference]]) -> None:
    """Writes the picture for a light or a dark page: a panel for each task, with an axis of its own."""
    text, soft, ours, line = COLOURS[theme]
    plt.rcParams.update({"svg.hashsalt": "ssgd", "font.family": "sans-serif", "font.size": 10})
    tasks = list(dict.fromkeys(task for task, *_ in rows))
    counts = [sum(task == one for one, *_ in rows) for task in tasks]
    size = (8, 0.28 * sum(counts) + 0.75 * len(tasks) + 0.4)
    figure, panels = plt.subplots(len(tasks), figsize=size, height_ratios=counts, layout="constrained")
    for panel, task in zip(panels, tasks, strict=True):
        mine = [row for row in rows if row[0] == task]
        for at, (_, method, twice, one) in enumerate(mine):
            colour = ours if method.startswith("S-SGD") else soft
            panel.plot([one.low, one.high], [at, at], color=colour, lw=2, solid_capstyle="round")
            panel.plot(one.mean, at, "o", ms=7, color=colour, mfc="none" if twice else colour, mew=1.6)
        panel.set_title(task, loc="left", color=text, fontsize=10, weight="bold")
        panel.axvline(0, color=line, lw=1)
        panel.set_ylim(len(mine) - 0.4, -0.6)
        panel.set_yticks(range(len(mine)), [f"{method} ({one.count} seeds)" for _, method, _, one in mine])
        panel.tick_params(colors=soft, length=0)
        panel.tick_params(axis="y", labelcolor=text)
        panel.spines[:].set_visible(False)
    panels[-1].set_xlabel("how much smaller than the base's, % of it (95 % interval)", color=text)
    figure.savefig(path, transparent=True, metadata={"Date": None})
    plt.close(figure)


def main() -> int:
    rows = points()
    for theme in COLOURS:
        draw(ROOT / "docs" / f"gains-{theme}.svg", theme, rows)
    for task, method, twice, one in rows:
        print(f"{task:40} {method:28} {'2' if twice else '1'}  {one.mean:+6.2f} ({one.low:+.2f} to {one.high:+.2f})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
