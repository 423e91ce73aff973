"""Fills the numbers of README and docs in from the rows under results/: ``python scripts/fill_numbers.py``.

A number stands between ``<!-- n: KEY -->`` and ``<!-- /n -->``. A key is a figure and the names of recipes, as in
``gain equal_cost/cifar100/resnet20/split-0.15 equal_cost/cifar100/resnet20/base``; ``c100/`` and ``c10/`` are short for
the first parts of such names. A table whose rows are trainings follows ``<!-- rows: FOLDER FIGURE … -->``: the folder
and the row's first word, looked up in LABELS, name the recipe, and each figure fills a column; ``-`` leaves one as it
is. Other tables stand behind ``<!-- table: NAME -->`` and are made by the function of that name.

Figures: ``mean`` (± the standard deviation over seeds), ``seeds`` (each of them), ``count``, ``passes``, ``cost``
(passes ÷ those of the first row). Over the second recipe, seed by seed: ``gain``, ``lead`` (without its sign),
``points`` (without its spread too), ``interval`` (95 % of it). With batch-norm's statistics gathered again: ``again``;
``own`` and ``more`` are the mean without that over the same seeds, and what it brings. ``!`` behind a figure takes its
spread off, behind ``:`` stands another metric than the recipe's own, behind ``@`` the only seeds that count.
``counted`` and ``gains`` are the sentences at the top of the page.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ssgd.lab.experiments import Results, experiments
from ssgd.lab.experiments.cells import AGAIN, Cell
from ssgd.lab.experiments.rows import Row
from ssgd.lab.experiments.statistics import paired, sample
from ssgd.lab.experiments.tables import targets
from ssgd.lab.report.answers import counted, gains_of_the_paper
from ssgd.lab.report.outcomes import Judge, Outcome, figures, passes
from ssgd.lab.report.verdicts import ABOVE, BELOW, CALIBRATED, REPRODUCED, UNDECIDED
from ssgd.lab.report.wording import signed

ROOT = Path(__file__).parent.parent
SHORT = {
    "c100/": "equal_cost/cifar100/resnet20/",
    "c10/": "equal_cost/cifar10/resnet20/",
    "B/": "ablations/B/5e-4/",
    "A-2e-4/": "ablations/A/2e-4/",
}
LABELS = {  # the last part of a recipe's name, by what a table calls it
    "SGD": "base",
    "SGD, 50 epochs": "base",
    "SGD, 90 epochs": "base",
    "SGD, 180 epochs": "base-2x",
    "Adam, 45 epochs": "base",
    "Adam, 36 epochs": "base",
    "Adam, 90 epochs": "base-2x",
    "Adam, 72 epochs": "base-2x",
    "both signs, 45 epochs": "both",
    "both signs, 36 epochs": "both",
    "both signs, 50 epochs": "both",
    "both signs, 90 epochs": "both",
    "both signs, 23 epochs": "both-half",
    "both signs, 18 epochs": "both-half",
    "both signs, 40 epochs": "both-half",
    "SGD(29)+S-SGD(26)": "both",
    "SGD(29)+split(26)": "split",
    "SGD(29)+S-SGD(13)": "both-half",
    "both signs, level 0.29": "both-0.29",
    "both signs in the last 50 of 125 epochs": "75-25S-25S-both-0.29",
    "both signs in the last 25 of 150 epochs": "75-50-25S-both-0.29",
    "SGD on the batch in halves, no noise": "halves",
    "split, level 0.15": "split-0.15",
    "split in the last 100 epochs": "75-50S-50S-split-0.15",
    "SAM, ρ 0.05": "sam-0.05",
    "SAM in the last 25 of 150 epochs": "75-50-25S-sam-0.05",
    "ASAM, ρ 0.5": "asam-0.5",
    "SGD in twice the epochs": "base-2x",
}
LENGTHS = {"both signs, 45 epochs": {"tiny-imagenet10": "both-half"}}  # the same words for two lengths
MARK = re.compile(r"(<!-- n: (.+?) -->)(.*?)(<!-- /n -->)", re.DOTALL)
ROWS = re.compile(r"(<!-- rows: (\S+) (.+?) -->\n+)((?:\|.*\n)+)")
TABLE = re.compile(r"(<!-- table: (\w+) -->\n+)((?:\|.*\n)+)")


@cache
def results() -> Results:
    return Results(ROOT / "results")


@cache
def cells() -> dict[str, Cell]:
    return {cell.name: cell for one in experiments() for cell in (*one.cells, *one.also)}


def rows_of(name: str, seeds: str = "") -> dict[int, Row]:
    """Returns the rows of a recipe by seed; of those of equal_cost seed 0 is left out, with which levels were tuned."""
    cell = _cell(name)
    found = results().of(cell, cell.name.startswith(("equal_cost", "other_tasks", "ablations")))
    return {seed: row for seed, row in found.items() if not seeds or str(seed) in seeds.split(",")}


def _cell(name: str) -> Cell:
    found = next((full + name.removeprefix(short) for short, full in SHORT.items() if name.startswith(short)), name)
    return cells()[found]


def told(figure: str, name: str = "", base: str = "", first: str = "") -> str:
    """Returns a figure as the pages write it; with ``!`` behind it without its spread."""
    if figure in ("counted", "gains"):
        every = [one for _, one in judged()]
        return counted(every) if figure == "counted" else gains_of_the_paper(every)
    if figure.endswith("!"):
        return told(figure[:-1], name, base, first).partition(" ±")[0]
    figure, _, seeds = figure.partition("@")
    figure, _, metric = figure.partition(":")
    rows = rows_of(name, seeds)
    if not rows:
        return ""
    metric = metric or _cell(name).metric
    ours = figures(rows, AGAIN if figure == "again" else metric)
    row = next(iter(rows.values()))
    if figure in ("mean", "again"):
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
    if figure == "epochs":
        return f"{row['epochs']} epochs"
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
    if figure == "points":
        return f"{abs(found.mean):.2f}"
    if figure == "lead":
        return f"{abs(found.mean):.2f} ± {found.sd:.2f}"
    if figure == "interval":
        return f"{signed(found.low)} to {signed(found.high)}"
    if figure == "gain":
        return signed(found.mean) + (f" ± {found.sd:.2f}" if found.count > 1 else "")
    raise ValueError(f"there is no figure {figure!r}")


def filled(text: str) -> str:
    """Returns a page with its numbers as the rows have them."""
    text = MARK.sub(lambda m: f"{m[1]}{told(*m[2].split())}{m[4]}", text)
    text = ROWS.sub(lambda m: m[1] + _rows(m[2], m[3].split(), m[4].splitlines()), text)
    return TABLE.sub(lambda m: m[1] + _table(TABLES[m[2]](), m[3].splitlines()[:2]), text)


def _rows(folder: str, wanted: list[str], lines: list[str]) -> str:
    head, rule, *body = lines
    done, first = [head, rule], ""
    for line in body:
        label, *known = (part.strip() for part in line.strip("|").split("|"))
        plain = label.replace("`", "").replace("split's noise with one sign for all", "one-sided")
        last = LENGTHS.get(plain, {}).get(folder.rpartition("/")[2]) or LABELS.get(plain)
        last = last or ("split" if plain.startswith("split") else "one-sided" if plain.startswith("one-s") else plain)
        name = f"{folder}/{last}"
        first = first or name
        values = [old if one == "-" else told(one, name, first, first) for one, old in zip(wanted, known, strict=True)]
        done.append("| " + " | ".join([label, *values]) + " |")
    return "\n".join(done) + "\n"


def _table(rows: list[list[str]], head: list[str]) -> str:
    return "\n".join([*head, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


@cache
def judged() -> list[tuple[str, Outcome]]:
    """Returns the outcomes of the paper's numbers, each with the title of its part."""
    judge = Judge(results())
    return [(one.title, found) for one in experiments() if one.part for found in judge.outcomes(one)]


def verdicts() -> list[list[str]]:
    """What became of each number that was run, part by part, with its number of seeds; the appendix shows the same."""
    found = []
    told_of = [(title, one) for title, one in judged() if one.ours and one.cell.paper is not None and " A" not in title]
    for title in dict.fromkeys(title for title, _ in told_of):
        mine = [one for part, one in told_of if part == title]
        row = []
        for names in ((REPRODUCED,), (BELOW, ABOVE), (UNDECIDED,), (CALIBRATED,)):
            row.append("; ".join(_cell_told(one) for one in mine if one.verdict in names))
        outside = [one for one in mine if one.gain_verdict in (BELOW, ABOVE)]
        found.append([title, *row, "; ".join(f"{one.cell.row}, {one.cell.column}" for one in outside)])
    return found


def _cell_told(one: Outcome) -> str:
    return f"{one.cell.row}, {one.cell.column} ({len(one.ours)})"


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


def units() -> list[list[str]]:
    levels = {"0.1": "0.058", "0.3": "0.17", "0.5": "0.29", "0.7": "0.4", "1": "0.58"}
    curve = {f"{point['level']:g}": point["mean"] for point in targets()["fig3_noise_level"]["curves"]["S-SGD"]}
    uniform = [f"noise_units/uniform/{ratio}" for ratio in levels.values()]
    sphere = [f"noise_units/sphere/{a}" for a in levels]
    some = "@1,2,3"
    return [
        ["the paper, five seeds", *(f"{curve[a]:.2f}" for a in levels)],
        ["`uniform`, a ratio of a/√3", *(told(f"mean{some}", name) for name in uniform)],
        ["− SGD's, seed by seed", *(told(f"gain{some}", name, "noise_units/base") for name in uniform)],
        [
            "with batch-norm's statistics gathered again",
            *(told("again", name).partition(" ")[0] for name in uniform),
        ],
        ["`sphere`, a ratio of a", *(told(f"mean{some}", name) for name in sphere)],
    ]


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


def pairs() -> list[list[str]]:
    """Returns the difference of each method to those before it, on CIFAR-100; bold where its interval has no zero."""
    names = {
        "SGD": "base",
        "halves without noise, 1 pass": "halves",
        "`split`, 1": "split-0.15",
        "both signs in the last 25 epochs, 1": "75-50-25S-both-0.29",
        "SAM in the last 25 epochs, 1": "75-50-25S-sam-0.05",
        "both signs, 2": "both-0.29",
        "SAM, 2": "sam-0.05",
        "ASAM, 2": "asam-0.5",
    }
    found, methods = [], list(names.values())
    for i, label in enumerate(names):
        row = [_difference(methods[i], other) for other in methods[:i]]
        found.append([label, *row, *[""] * (len(methods) - 1 - i)])
    return found[1:]


def _difference(name: str, other: str) -> str:
    gain, interval = (told(figure, f"c100/{name}", f"c100/{other}") for figure in ("gain!", "interval"))
    low, high = interval.split(" to ")
    return f"**{gain}** ({interval})" if low[0] == high[0] else f"{gain} ({interval})"


TABLES: dict[str, Callable[[], list[list[str]]]] = {
    "pairs": pairs,
    "verdicts": verdicts,
    "ablations": ablations,
    "units": units,
    "large_batches": large_batches,
    "tasks": tasks,
}


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
