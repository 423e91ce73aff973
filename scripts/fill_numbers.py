"""Fills the numbers of README and docs in from results/ and benchmarks/results/: ``python scripts/fill_numbers.py``.

A number stands between ``<!-- n: KEY -->`` and ``<!-- /n -->``. A key is a figure and the names of recipes, as in
``gain equal_cost/cifar100/resnet20/split-0.15 equal_cost/cifar100/resnet20/base``; ``c100/`` and ``c10/`` are short for
the first parts of such names. Or a key is a file of benchmarks/results/ and the name of its row: the number keeps the
decimals that stand there.

Tables are filled in three ways. ``<!-- rows: FOLDER NAME … : FIGURE … -->`` names the recipe of each row and the figure
of each column. ``<!-- bench: FILE NAME … -->`` names the benchmark of each number behind the first column, in reading
order; with ``{}`` in a name, the names are those of one row and ``{}`` is its first column. ``<!-- table: NAME -->`` is
made by the function of that name.

Figures: ``mean`` (± the standard deviation over seeds), ``seeds`` (each of them), ``count``, ``passes``, ``cost``
(passes ÷ those of the first row). Over the second recipe, seed by seed: ``gain``, ``lead`` (without its sign),
``interval`` (95 % of it), ``differences`` (each of them), ``share`` (how many per cent of the errors are gone). With
batch-norm's statistics gathered again: ``again``; ``own`` and ``more`` are the mean without that over the same seeds,
and what it brings. ``paper`` and ``papers-gain`` are the paper's own, ``epoch`` the seconds of the fastest epoch.
``!`` behind a figure takes its spread off, behind ``:`` stands another metric than the recipe's own (``again``: the
accuracy with statistics gathered again), behind ``@`` the only seeds that count. ``counted`` and ``gains`` are the
sentences at the top of the page of results, ``adds text/one-sided noise/0.3`` and ``adds-interval`` what the pair
adds to that method under that damage.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import numpy as np
import tolerance_numbers

from ssgd import paper_level
from ssgd.lab.experiments import Results, experiments
from ssgd.lab.experiments.cells import AGAIN, Cell
from ssgd.lab.experiments.rows import Row
from ssgd.lab.experiments.statistics import paired, sample
from ssgd.lab.experiments.tables import targets
from ssgd.lab.report.answers import counted, gains_of_the_paper
from ssgd.lab.report.outcomes import Judge, Outcome, figures, passes
from ssgd.lab.report.verdicts import ABOVE, BELOW, CALIBRATED, REPRODUCED, UNDECIDED
from ssgd.lab.report.wording import signed
from ssgd.methods import METHODS
from ssgd.methods.registry import Setting

ROOT = Path(__file__).parent.parent
SHORT = {
    "c100/": "equal_cost/cifar100/resnet20/",
    "c10/": "equal_cost/cifar10/resnet20/",
    "B/": "ablations/B/5e-4/",
    "A-2e-4/": "ablations/A/2e-4/",
}
KNOWN = {"mean", "again", "own", "more", "seeds", "count", "passes", "cost", "paper", "papers-gain", "epoch"}
KNOWN |= {"gain", "share", "lead", "interval", "differences"}
MARK = re.compile(r"(<!-- n: (.+?) -->)(.*?)(<!-- /n -->)", re.DOTALL)
ROWS = re.compile(r"(<!-- rows: (\S+) (.+?) : (.+?) -->\n+)((?:\|.*\n)+)")
BENCH = re.compile(r"(<!-- bench: (\S+) (.+?) -->\n+)((?:\|.*\n)+)")
TABLE = re.compile(r"(<!-- table: (\w+) -->\n+)((?:\|.*\n)+)")
NUMBER = re.compile(r"\d+(?:\.(\d+))?|–")  # or what was not measured


@cache
def results() -> Results:
    return Results(ROOT / "results")


@cache
def benchmark(file: str) -> dict[str, dict[str, Any]]:
    """Returns the rows of a file of benchmarks/results/ by name."""
    return {row["name"]: row for row in json.loads((ROOT / "benchmarks" / "results" / file).read_text())["rows"]}


@cache
def cells() -> dict[str, Cell]:
    """Returns a cell for each name: rather one of test data, of the paper, in the experiment that it is named for."""
    known: dict[str, Cell] = {}
    every = [(one.name, cell) for one in experiments() for cell in (*one.cells, *one.also)]
    worth = {id(c): (c.metric.startswith("test"), c.paper is not None, c.name.startswith(f"{e}/")) for e, c in every}
    for _, cell in sorted(every, key=lambda pair: worth[id(pair[1])], reverse=True):
        known.setdefault(cell.name, cell)
    return known


def rows_of(name: str, seeds: str = "") -> dict[int, Row]:
    """Returns the rows of a recipe by seed; of those of equal_cost seed 0 is left out, with which levels were tuned.

    A training that belongs to no experiment is found by the name of its rows.
    """
    cell = _cell(name)
    if cell is None:
        found = {row.seed: row for row in results().rows if row["experiment"] == name}
        if not found:
            raise KeyError(name)
    else:
        found = results().of(cell, cell.name.startswith(("equal_cost", "other_tasks", "ablations")))
    return {seed: row for seed, row in found.items() if not seeds or str(seed) in seeds.split(",")}


def _cell(name: str) -> Cell | None:
    found = next((full + name.removeprefix(short) for short, full in SHORT.items() if name.startswith(short)), name)
    return cells().get(found)


def told(figure: str, name: str = "", base: str = "", first: str = "") -> str:
    """Returns a figure as the pages write it; with ``!`` behind it without its spread."""
    if figure in ("counted", "gains"):
        every = [one for _, one in judged()]
        return counted(every) if figure == "counted" else gains_of_the_paper(every)
    if figure.endswith("!"):
        return told(figure[:-1], name, base, first).partition(" ±")[0]
    if figure in ("adds", "adds-interval"):
        return tolerance_numbers.adds(results(), name, base, figure == "adds-interval")
    figure, _, seeds = figure.partition("@")
    figure, _, metric = figure.partition(":")
    if figure not in KNOWN:
        raise ValueError(f"there is no figure {figure!r}")
    if figure == "epoch":
        every = json.loads((ROOT / "results" / "large-lstm-epochs.json").read_text())["rows"]
        return next(f"{row['fastest_s']:.1f}" for row in every if row["experiment"] == name)
    rows, cell = rows_of(name, seeds), _cell(name)
    if figure in ("paper", "papers-gain"):
        assert cell is not None and cell.paper is not None
        return f"{cell.paper if figure == 'paper' else cell.gain:.2f}"
    if not rows:
        return ""
    row = next(iter(rows.values()))
    metric = (
        AGAIN
        if metric == "again"
        else metric or (cell.metric if cell else "test_perplexity" if "test_perplexity" in row else "test_accuracy")
    )
    ours = figures(rows, AGAIN if figure == "again" else metric)
    if figure in ("mean", "again"):
        if not ours:
            return ""
        found = sample(ours.values())
        return f"{found.mean:.2f}" + (f" ± {found.sd:.2f}" if found.count > 1 else "")
    if figure == "own":
        found = sample(value for seed, value in ours.items() if rows[seed].get(AGAIN) is not None)
        return f"{found.mean:.2f} ± {found.sd:.2f}"
    if figure == "seeds":
        return ", ".join(f"{value:.2f}" for value in ours.values())
    if figure == "count":
        return str(len(ours))
    if figure == "passes":
        return f"{passes(row):g}"
    if figure == "cost":
        return f"{(passes(row) or 0) / (passes(next(iter(rows_of(first).values()))) or 1):g}"
    if figure == "more":
        found = paired(figures(rows, AGAIN), {s: v for s, v in ours.items() if rows[s].get(AGAIN) is not None})
        assert found is not None
        return f"{signed(found.mean)} ± {found.sd:.2f}"
    if not base or base == name:
        return ""
    theirs = figures(rows_of(base, seeds), metric)
    if figure == "differences":
        return ", ".join(signed(ours[seed] - theirs[seed]) for seed in ours if seed in theirs)
    found = paired(ours, theirs, not metric.endswith("accuracy"))
    if found is None:
        return ""
    if figure == "share":
        return (
            f"{mean(100 * (ours[seed] - theirs[seed]) / (100 - theirs[seed]) for seed in ours if seed in theirs):.1f}"
        )
    if figure == "lead":
        return f"{abs(found.mean):.2f} ± {found.sd:.2f}"
    if figure == "interval":
        return f"{signed(found.low)} to {signed(found.high)}"
    return signed(found.mean) + (f" ± {found.sd:.2f}" if found.count > 1 else "")


def filled(text: str) -> str:
    """Returns a page with its numbers as the rows and the benchmarks have them."""
    text = MARK.sub(lambda m: f"{m[1]}{_number(m[2].split(), m[3])}{m[4]}", text)
    text = ROWS.sub(lambda m: m[1] + _rows(m[2], m[3].split(), m[4].split(), m[5].splitlines()), text)
    text = BENCH.sub(lambda m: m[1] + _bench(m[2], m[3].split(), m[4].splitlines()), text)
    return TABLE.sub(lambda m: m[1] + _table(TABLES[m[2]](), m[3].splitlines()[:2]), text)


def _number(key: list[str], known: str) -> str:
    if not key[0].endswith(".json"):
        return told(*key)
    return NUMBER.sub(lambda m: _measured(*key, m), known)


def _measured(file: str, name: str, known: re.Match[str]) -> str:
    """Returns a benchmark's value, or behind ``.spread`` its spread, with as many decimals as stand there."""
    name, _, key = name.partition(".")
    return f"{benchmark(file)[name][key or 'value']:.{len(known[1] or '')}f}"


def _rows(folder: str, names: list[str], wanted: list[str], lines: list[str]) -> str:
    done, first = lines[:2], f"{folder}/{names[0]}"
    for name, line in zip(names, lines[2:], strict=True):
        values = [told(one, f"{folder}/{name}", first, first) for one in wanted]
        done.append("| " + " | ".join([_parts(line)[0], *values]) + " |")
    return "\n".join(done) + "\n"


def _bench(file: str, names: list[str], lines: list[str]) -> str:
    """Fills the numbers behind the first column, one after the other."""
    of_each = any("{}" in name for name in names)
    done, left = lines[:2], iter(names)
    for line in lines[2:]:
        label, *known = _parts(line)
        if of_each:
            left = iter(name.replace("{}", label.strip("`")) for name in names)
        done.append("| " + " | ".join([label, *(_cell_filled(file, part, left) for part in known)]) + " |")
        assert not (of_each and list(left)), f"{file}: {label} has fewer numbers than names"
    assert not list(left), f"{file}: a table has fewer numbers than names"
    return "\n".join(done) + "\n"


def _cell_filled(file: str, text: str, left: Iterator[str]) -> str:
    def value(known: re.Match[str]) -> str:
        name = next(left)
        return known[0] if name == "-" or known[0] == "–" else _measured(file, name, known)

    return NUMBER.sub(value, text)


def _parts(line: str) -> list[str]:
    return [part.strip() for part in line.strip("|").split("|")]


def _table(rows: list[list[str]], head: list[str]) -> str:
    return "\n".join([*head, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


# --- the paper's numbers ----------------------------------------------------------------------------------------------


@cache
def judged() -> list[tuple[str, Outcome]]:
    """Returns the outcomes of the paper's numbers, each with the title of its part."""
    judge = Judge(results())
    return [(one.title, found) for one in experiments() if one.part for found in judge.outcomes(one)]


def coverage() -> list[list[str]]:
    """Returns for each table and figure how many of its numbers were run, and what became of them."""
    told_of = [(title, one) for title, one in judged() if one.cell.paper is not None and " A" not in title]
    found = []
    for title in dict.fromkeys(title for title, _ in told_of):
        mine = [one for part, one in told_of if part == title]
        ran = [one for one in mine if one.ours.values]
        counts = [len(mine), len(ran), sum(len(one.ours.values) > 1 for one in ran)]
        counts += [sum(one.verdict == verdict for one in ran) for verdict in (REPRODUCED, BELOW, ABOVE, UNDECIDED)]
        counts.append(sum(one.verdict == CALIBRATED for one in ran))
        found.append([title, *(str(count or "") for count in counts)])
    return found


def large_batches() -> list[list[str]]:
    paper = targets()["fig5_large_batch"]["accuracy_by_batch"]
    found = []
    for label, key, batch in (
        ("4,096", "", "4096"),
        ("16,384", "", "16384"),
        ("16,384, rate 0.4", "-rate-4", "16384"),
        ("16,384, rate 12.8 after a warm-up", "-scaled", "16384"),
    ):
        sgd, both = (f"fig5/{method}{key}/{batch}" for method in ("base", "both"))
        theirs = ["" if key else f"{paper[name][batch]:.2f}" for name in ("SGD", "S-SGD")]
        fits = [told("mean:train_accuracy", name) for name in (sgd, both)]
        found.append([label, told("mean", sgd), theirs[0], told("mean", both), theirs[1], *fits])
    return found


def spectra() -> list[list[str]]:
    """Returns the ends of the Hessians' spectra, and the trace over its probes with its standard error."""
    found = []
    for label, name in (("SGD", "base"), ("both signs, 0.29", "both")):
        file = ROOT / "results" / "figA6" / f"{name}.npz"
        parts, about = np.load(file), json.loads(file.with_suffix(".json").read_text())
        values, traces = parts["values"], (parts["values"] * parts["weights"]).sum(1) * about["parameters"]
        largest = ", ".join(f"{value:.1f}" for value in np.sort(values.max(0))[:-9:-1])
        error = stdev(traces) / len(traces) ** 0.5
        found.append([label, largest, f"−{-values.min():.2f}", f"{traces.mean():.0f} ± {error:.0f}"])
    return found


# --- the gap to the paper ---------------------------------------------------------------------------------------------


def ablations() -> list[list[str]]:
    found = []
    for net, decay in (("A", "5e-4"), ("A", "2e-4"), ("B", "5e-4"), ("B", "2e-4")):
        base, both, split = (f"ablations/{net}/{decay}/{label}" for label in ("base", "both-0.29", "split-0.15"))
        row = [f"{net}, {decay}", told("seeds@1,2,3", base)]
        for name in (both, split):
            row += [told("seeds@1,2,3", name), told("differences@1,2,3", name, base)]
        found.append([*row, told("seeds:train_accuracy@1,2,3", base)])
    paper, train = targets()["table2_cifar"]["ResNet20"], targets()["fig7_surface"]["train"]["SGD_f"]
    sgd, both_signs = paper["SGD"][1], paper["S-SGD (0.5)"][1]
    last = [f"{sgd:.2f}", f"{both_signs:.2f}", signed(both_signs - sgd), "", "", f"{train:.2f}"]
    return [*found, ["the paper", *last]]


PHASES = {  # when both signs come: our recipe, our SGD, and the paper's accuracies of both
    "in all 175 epochs": ("c100/both-0.29", "c100/base", "75-50-50S"),
    "in the last 25 of 150": ("c100/75-50-25S-both-0.29", "c100/base", "75-50-25S"),
    "in the last 50 of 125": ("c100/75-25S-25S-both-0.29", "c100/base", "75-25S-25S"),
    "from epoch 76 to 100 of 150": ("c100/75-25S-50-both-0.29", "c100/base", "75-25S-50"),
    "in all 87": ("c100/37S-25S-25S-both-0.29", "c100/base", "37S-25S-25S"),
    "in the last 50 of 175": ("fig7/both", "fig7/base-f", "figure 7"),
}


def papers_phases(key: str) -> tuple[float, float]:
    """Returns the paper's SGD and both signs of one of PHASES."""
    if key == "figure 7":
        theirs = targets()["fig7_surface"]["test"]
        return theirs["SGD_f"], theirs["S-SGD"]
    if key == "75-50-50S":
        theirs = targets()["table2_cifar"]["ResNet20"]
        return theirs["SGD"][1], theirs["S-SGD (0.5)"][1]
    rows = targets()["table1_equal_compute"]["rows"]
    return rows["75-50-50"]["CIFAR-100"], rows[key]["CIFAR-100"]


def phases() -> list[list[str]]:
    found = []
    for label, (name, base, key) in PHASES.items():
        sgd, both = papers_phases(key)
        ours = [told("mean", name), told("count", name), told("gain!", name, base)]
        found.append([label, *ours, f"{both:.2f}", signed(both - sgd)])
    return found


COURSES = {  # SGD's first epochs at the rate 0.1
    "weight decay 5e-4": "course/resnet20",
    "5e-4, with TensorFlow's default memory": "course/resnet20-tf",
    "5e-4, statistics gathered again": "course/anew",
    "2e-4": "course/2e-4",
}


def papers_curves(method: str, part: str = "epochs_0_90") -> np.ndarray:
    """Returns the paper's test accuracy of figure 4, by run and epoch."""
    return np.array(targets()["fig4_convergence"]["curves"][part][method])


def course(name: str) -> np.ndarray:
    """Returns the test accuracy after each epoch of seed 0."""
    return np.array(rows_of(name)[0].curve("test"), float)


def first_epochs() -> list[list[str]]:
    every = {"the paper's SGD, five runs": papers_curves("SGD"), **{k: course(v)[None] for k, v in COURSES.items()}}
    return [
        [
            label,
            f"{runs[:, 5:15].mean():.1f}",
            f"{runs[:, 15:25].mean():.1f}",
            f"{runs[:, 15:25].std(1, ddof=1).mean():.1f}",
        ]
        for label, runs in every.items()
    ]


def courses() -> list[list[str]]:
    found = []
    for label, key, name in (("SGD", "SGD", "base"), ("both signs", "S-SGD", "both-0.29")):
        early, late = papers_curves(key)[:, 40:75], papers_curves(key, "epochs_100_175")[:, :25]
        ours = course(f"table2/cifar10/resnet20/{name}")
        found.append([f"{label}, the paper", f"{early.mean():.1f}", f"{late.mean():.1f}"])
        found.append([f"{label}, ours", f"{ours[40:75].mean():.1f}", f"{ours[100:125].mean():.1f}"])
    return found


# --- the level, the minimum, other tasks, the baseline ----------------------------------------------------------------

LEVELS = {"0.1": "0.058", "0.3": "0.17", "0.5": "0.29", "0.7": "0.4", "1": "0.58"}  # the paper's unit, and the ratio


def paper_levels() -> list[list[str]]:
    return [["level, ‖n‖ / ‖w‖", *(f"{paper_level(a):.3f}" for a in (0.1, 0.25, 0.4, 0.5, 0.7, 1.0))]]


def units() -> list[list[str]]:
    curve = {f"{point['level']:g}": point["mean"] for point in targets()["fig3_noise_level"]["curves"]["S-SGD"]}
    uniform = [f"noise_units/uniform/{ratio}" for ratio in LEVELS.values()]
    sphere = [f"noise_units/sphere/{a}" for a in LEVELS]
    some = "@1,2,3"
    return [
        ["the paper, five seeds", *(f"{curve[a]:.2f}" for a in LEVELS)],
        ["`uniform`, a ratio of a/√3", *(told(f"mean{some}", name) for name in uniform)],
        ["− SGD's, seed by seed", *(told(f"gain{some}", name, "noise_units/base") for name in uniform)],
        [
            "with batch-norm's statistics gathered again",
            *(told("again", name).partition(" ")[0] for name in uniform),
        ],
        ["`sphere`, a ratio of a", *(told(f"mean{some}", name) for name in sphere)],
    ]


def find_level() -> list[list[str]]:
    found = []
    for row in benchmark("find-level-cpu.json").values():
        detail = row["detail"]
        curve = {level: mean(one[level] for one in detail["curves"]) for level in detail["curves"][0]}
        best = max(curve, key=lambda level: curve[level])
        ours = [f"{mean(detail['suggestions']):.2f}", *(f"{value:.2f}" for value in curve.values())]
        found.append([row["name"], *ours, f"{mean(detail['at_suggestion']):.2f}", best])
    return found


SHARP = {  # how a solution was trained, by what results/sharpness.json calls it
    "SGD": "base",
    "halves without noise": "halves",
    "`split`, 0.15, from epoch 76 on": "late split",
    "`split`, 0.15": "split",
    "SAM, ρ 0.05, seeds 1 to 3": "sam",
    "both signs, 0.29, in the last 25 epochs": "last both",
    "both signs, 0.29": "both",
}


@cache
def sharp(method: str, figure: str) -> list[float]:
    """Returns a figure of the solutions of a method, by seed."""
    rows = json.loads((ROOT / "results" / "sharpness.json").read_text())["rows"]
    return [row[figure] for row in rows if row["method"] == method]


def sharpness() -> list[list[str]]:
    decimals = {"test_accuracy": 2, "loss": 3, "excess": 2, "sam": 3, "keskar": 0}
    found = []
    for label, method in SHARP.items():
        kept = {figure: sharp(method, figure) for figure in decimals}
        cells = [f"{mean(v):.{decimals[k]}f} ± {stdev(v):.{decimals[k]}f}" for k, v in kept.items()]
        found.append([label, *cells])
    return found


def between(shares: np.ndarray, apart: bool) -> np.ndarray:
    """Returns the test error, %, on the line from SGD's solution (share 0) to that of both signs (share 1).

    Of solutions trained apart it was measured on the line, of those with a common start on figure 7's plane.
    """
    if apart:
        line = np.load(ROOT / "results" / "apart" / "line.npz")
        return np.interp(shares, line["x"], line["errors"][1])
    plane = np.load(ROOT / "results" / "fig7" / "plane.npz")
    (x0, y0), (x1, y1) = plane["anchors"][1:]
    x, y = x0 + shares * (x1 - x0), y0 + shares * (y1 - y0)
    rows = np.array([np.interp(x, plane["x"], row) for row in plane["errors"][1].T])  # one for each y of the grid
    return np.array([np.interp(y[i], plane["y"], rows[:, i]) for i in range(len(shares))])


def tasks() -> list[list[str]]:
    names = {
        "ptb-large": "Penn Treebank, large LSTM, perplexity, one seed",
        "ptb-small": "Penn Treebank, small LSTM, perplexity, seeds 1 to 3",
        "an4": "AN4, WER %, seeds 1 to 5",
        "tiny-imagenet10": "ten classes of Tiny ImageNet, accuracy %, seeds 1 to 3",
    }
    labels = ("base", "both", "split", "both-half")
    return [
        [told_as, *(told("mean", f"other_tasks/{name}/{label}") for label in labels)] for name, told_as in names.items()
    ]


def baseline() -> list[list[str]]:
    found = []
    for decay in ("1e-4", "2e-4", "5e-4"):
        names = (f"baseline/cifar10/{decay}", f"baseline/cifar100/{decay}")
        found.append([decay, *(told(f"{figure}@0,1,2", name) for name in names for figure in ("seeds", "mean"))])
    paper = targets()["table2_cifar"]["ResNet20"]["SGD"]
    return [*found, ["the paper (table 2)", "", f"{paper[0]:.2f}", "", f"{paper[1]:.2f}"]]


def limits() -> list[list[str]]:
    """Returns the share of the device's limits that is reached; of S-SGD it follows from its cost over SGD."""
    rows, found = benchmark("speed-cuda.json"), []
    names = {
        "ResNet20, batch 128": "resnet20",
        "WRN28-4, batch 128": "wrn28_4",
        "WRN28-4, batch 512": "wrn28_4_batch512",
    }
    for label, net in names.items():
        both, split = (rows[f"{net}_{method}_over_sgd"]["value"] for method in ("both", "split"))
        shares = [rows[f"{net}_sgd_of_{bound}_limit"]["value"] for bound in ("bytes", "operations")]
        found.append([label, *(f"{of:.2f}" for sgd in shares for of in (sgd, 2 * sgd / both, sgd / split))])
    return found


def methods() -> list[list[str]]:
    told_as = {name: re.sub("-(?= ?n )", "−", method.description) for name, method in METHODS.items()}
    return [[f"`{name}`", told_as[name], f"{method.passes:g}"] for name, method in METHODS.items()]


def settings() -> list[list[str]]:
    """Returns what can be set of each method, as the registry has it; methods that share a setting share a row."""
    found: dict[Setting, list[str]] = {}
    for name, method in METHODS.items():
        for one in method.settings:
            found.setdefault(one, []).append(f"`{name}`")
    return [
        [
            ", ".join(names),
            f"`{one.name}`",
            f"{one.default:g}",
            f"{one.low:g} to {one.high:g}",
            one.help.replace("||", "‖"),
        ]
        for one, names in found.items()
    ]


TABLES: dict[str, Callable[[], list[list[str]]]] = {
    one.__name__: one
    for one in (
        coverage,
        large_batches,
        spectra,
        ablations,
        phases,
        first_epochs,
        courses,
        paper_levels,
        units,
        find_level,
        sharpness,
        tasks,
        baseline,
        limits,
        methods,
        settings,
    )
} | {name: partial(lambda make: make(results()), make) for name, make in tolerance_numbers.TABLES.items()}


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def main() -> int:
    for page in pages():
        before = page.read_text(encoding="utf-8")
        after = filled(before)
        if after != before:
            page.write_text(after, encoding="utf-8")
            print(f"filled: {page.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
