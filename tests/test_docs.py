"""README and docs: their code runs, their links lead somewhere, the tests they name are there, their figures are those
of the results."""

import ast
import importlib
import json
import re
import runpy
from dataclasses import fields
from functools import cache
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from ssgd import SSGD
from ssgd.cli.main import COMMANDS
from ssgd.methods import METHODS
from ssgd.recipes import get
from ssgd.recipes.beyond import LABELS, labels
from ssgd.report.paper import targets
from ssgd.report.statistics import paired
from ssgd.train import Execution, Recipe

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- not run: .+ -->\n)?```(python|diff)\n(.*?)```", re.DOTALL)
FIGURES = re.compile(r"<!-- figures: (\S+) (.+?) -->(.*?\n\|.*?)\n\n", re.DOTALL)


def blocks(language):
    """Every code block of a language as (source, whether it is run), with the page and line it stands at as its id."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            not_run, kind, source = match.groups()
            if kind == language:
                place = f"{page.name}:{text[: match.start()].count(chr(10)) + 1}"
                found.append(pytest.param(source, not not_run, id=place))
    return found


def names():
    """What the pages leave to the reader: a net, data, a loss, and an optimizer where a block is about its use."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(144, 3)
    )
    loader = [(torch.randn(4, 1, 8, 8), torch.randint(3, (4,))) for _ in range(2)]
    return {
        "torch": torch,
        "model": model,
        "loader": loader,
        "x": loader[0][0],
        "y": loader[0][1],
        "loss_fn": F.cross_entropy,
        "epochs": 2,
        "opt": SSGD(SGD(model.parameters(), lr=0.1), 0.2),
    }


def run(source, place="docs"):
    space = names()
    before = [p.detach().clone() for p in space["model"].parameters()]
    exec(compile(source, place, "exec"), space)
    return space, any(not torch.equal(p, b) for p, b in zip(space["model"].parameters(), before, strict=True))


# --- code -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "is_run"), blocks("python"))
def test_python_runs(source, is_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if not is_run:
        compile(source, "docs", "exec")
        return
    space, trained = run(source)
    assert trained == (".step()" in source or "step(opt)" in source)
    assert all(p.isfinite().all() for p in space["model"].parameters())


@pytest.mark.parametrize(("source", "is_run"), blocks("diff"))
def test_both_sides_of_a_diff_train(source, is_run):
    for side, other in ("-+", "+-"):
        lines = [line[1:] for line in source.splitlines() if not line.startswith(other)]
        space, trained = run("\n".join(lines))
        assert trained
        assert isinstance(space["opt"], SSGD) == (side == "+")


@pytest.mark.parametrize("name", [name for name in METHODS if name != "mirror"])  # which needs ranks
def test_the_loop_of_the_readme_serves_every_method(name):
    (source,) = (b.values[0] for b in blocks("python") if "methods.get(" in b.values[0] and "README" in b.id)
    _, trained = run(source.replace('methods.get("split")', f'methods.get("{name}")'))
    assert trained


# --- what the pages point at ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        assert ROOT / "docs" in file.parents or page.parent == ROOT, f"{target} is not part of the site"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert anchor in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings], target


def test_every_page_is_in_the_navigation():
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(page.name for page in PAGES[1:])


def test_the_tests_named_in_guarantees_exist():
    named = set(re.findall(r"`((?:distributed/)?test_\w+\.py)::(\w+)`", guarantees()))
    assert len(named) > 80
    for file, test in sorted(named):
        assert test in functions(ROOT / "tests" / file), f"{file}::{test}"


@cache
def functions(file):
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


def test_the_sentences_quoted_in_guarantees_are_those_of_the_errors():
    strings = [
        node.value
        for file in (ROOT / "src").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    quoted = re.findall(r"“(.+?)”", guarantees())
    assert len(quoted) > 15
    for sentence in quoted:
        assert any(sentence in string for string in strings), sentence


def test_guarantees_have_a_row_for_every_method():
    rows = re.findall(r"^\| `([\w-]+)` \|(.+)\|$", guarantees(), re.MULTILINE)
    assert [name for name, _ in rows] == list(METHODS)
    assert all(len(cells.split("|")) == 6 for _, cells in rows)


def guarantees():
    return (ROOT / "docs" / "guarantees.md").read_text()


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_card_that_agrees_with_the_registry(name):
    cards = re.split(r"^### ", (ROOT / "docs" / "methods.md").read_text(), flags=re.MULTILINE)[1:]
    assert [card.partition("\n")[0] for card in cards] == list(METHODS)
    card, method = next(card for card in cards if card.startswith(f"{name}\n")), METHODS[name]
    assert f"Cost: {method.passes:g} pass" in card and "Reference: " in card
    for s in method.settings:
        assert f"`{s.name}` = {s.default:g} ({s.low:g} to {s.high:g}): {s.help}\n" in card + "\n"


# --- what is made from the code ---------------------------------------------------------------------------------------


def test_the_page_of_commands_has_every_command_option_and_field():
    page = runpy.run_path(str(ROOT / "scripts" / "docs_hooks.py"))["on_page_markdown"](
        (ROOT / "docs" / "commands.md").read_text()
    )
    assert "<!--" not in page
    for name, command in COMMANDS.items():
        section = page.partition(f"### ssgd {name}\n")[2].partition("\n### ")[0]
        assert command.__doc__.strip() in section and f"    ssgd {name}" in section
        for option in re.findall(r'add_argument\(\s*"(--[\w-]+)"', Path(command.__file__).read_text()):
            assert re.search(rf"^\| `{option}[ `]", section, re.MULTILINE), f"ssgd {name} {option}"
    for field in (*fields(Recipe), *fields(Execution)):
        assert re.search(rf"^\| `{field.name}` \| \S.+ \| .* \|$", page, re.MULTILINE), field.name


def test_marks_of_restructured_text_are_taken_out():
    clean = runpy.run_path(str(ROOT / "scripts" / "docs_hooks.py"))["on_page_content"]
    assert clean("<p>a :class:<code>Law</code> ::</p>") == "<p>a <code>Law</code>:</p>"
    assert clean("<p>::</p><p>a::b</p>") == "<p>a::b</p>"


@pytest.mark.parametrize("name", re.findall(r"^::: (\S+)$", (ROOT / "docs" / "reference.md").read_text(), re.MULTILINE))
def test_what_the_reference_names_is_there_and_has_a_docstring(name):
    module, _, last = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), last)
    except ImportError as missing:
        pytest.skip(str(missing))
    assert found.__doc__


def test_the_reference_has_all_that_ssgd_exports():
    named = (ROOT / "docs" / "reference.md").read_text()
    assert all(f"\n::: ssgd.{name}\n" in named for name in importlib.import_module("ssgd").__all__)


# --- figures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_figures_are_those_of_the_results(page):
    """The comment before a table names the rows of a JSON file that its figures come from."""
    missing = []
    for file, figures, table in FIGURES.findall(page.read_text()):
        quoted = dict(figure.split("=") for figure in figures.split())
        lacking = set(quoted.values()) - set(re.findall(r"[\d.]+", table))
        assert not lacking, f"the table lacks {lacking}"
        if not (ROOT / file).exists():
            missing.append(file)
            continue
        rows = {row["name"]: row["value"] for row in json.loads((ROOT / file).read_text())["rows"]}
        for name, value in quoted.items():
            decimals = len(value.partition(".")[2])
            assert f"{rows[name]:.{decimals}f}" == value, f"{page.name} says {name} is {value}, {file} {rows[name]}"
    if missing:
        pytest.skip(f"{', '.join(sorted(set(missing)))} is not there to compare with")


def beyond(task, label):
    """Those of the recipe as it is today."""
    rows = [json.loads(line) for line in (ROOT / "results" / "beyond.jsonl").read_text().splitlines()]
    phases = get(f"beyond/{task}/{label}").phases
    return [row for row in rows if row["experiment"] == f"beyond/{task}/{label}" and row["phases"] == phases]


def spoken(rows, metric):
    values = [row[metric] for row in rows]
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def difference(rows, base, metric):
    return paired(*({row["seed"]: row[metric] for row in group} for group in (rows, base)))


def gain(rows, base, metric):
    found = difference(rows, base, metric)
    return f"{found.mean:+.2f} ± {found.sd:.2f}".replace("-", "−")


def interval(rows, base, metric):
    """Of 95 %."""
    found = difference(rows, base, metric)
    return f"{found.low:+.2f} to {found.high:+.2f}".replace("-", "−")


@pytest.mark.parametrize(
    ("page", "task", "told"),
    [
        ("speech.md", "an4", ("AN4", "test_wer", "test_cer")),
        ("speech.md", "connected-digits", ("connected digits", "test_wer", "test_cer")),
        ("data.md", "tiny-imagenet10", ("tiny-imagenet10", "test_accuracy", "test_top5_accuracy")),
    ],
)
def test_tables_of_beyond_are_those_of_their_rows(page, task, told):
    name, *metrics = told
    text = (ROOT / "docs" / page).read_text()
    table = text[text.index(f"| {name} | passes |") :].partition("\n\n")[0]
    base = beyond(task, "base")
    found = [label for label in LABELS if beyond(task, label)]
    for label, line in zip(found, table.splitlines()[2:], strict=True):
        rows = beyond(task, label)
        figures = " | ".join(spoken(rows, metric) for metric in metrics)
        gained = "" if label == "base" else f"{gain(rows, base, metrics[0])} "
        cost = f"{rows[0]['epochs']} epochs | {rows[0]['passes']:g} | {len(rows)}"
        assert line.endswith(f", {cost} | {figures} | {gained}|"), line


def test_differences_of_an4_are_told():
    text = (ROOT / "docs" / "speech.md").read_text()
    base, longer = beyond("an4", "base"), beyond("an4", "base-2x")
    for label in ("ssgd", "split", "one-sided", "base-2x"):
        assert interval(beyond("an4", label), base, "test_wer") in text
    for label, other in (("split", beyond("an4", "one-sided")), ("ssgd", longer)):
        assert f"by {gain(beyond('an4', label), other, 'test_wer').removeprefix('−')}" in text
    assert interval(beyond("an4", "ssgd"), longer, "test_wer") in text
    readme = (ROOT / "README.md").read_text()
    for label in ("ssgd", "split"):
        high, low = interval(beyond("an4", label), base, "test_wer").replace("−", "").split(" to ")
        assert f"interval {low} to {high})" in readme


def test_what_tuning_gave_is_told():
    text = (ROOT / "README.md").read_text()
    assert ", ".join(f"{row['level']:g}: {row['test_accuracy']:.2f}" for row in rows_of("tune")) in text


def test_the_table_of_words_is_that_of_its_rows():
    text = (ROOT / "docs" / "language.md").read_text()
    for label, name in (("base", "SGD"), ("ssgd", "SGD(29)+S-SGD(26)"), ("split", "SGD(29)+split(26)")):
        rows = beyond("ptb-large", label)
        figures = " | ".join(spoken(rows, metric) for metric in ("test_perplexity", "valid_perplexity"))
        assert f"| {name} | {rows[0]['passes']:g} | {len(rows)} | {figures} |" in text
    table = text[text.index("| small LSTM | passes |") :].partition("\n\n")[0]
    base = beyond("ptb-small", "base")
    for label, line in zip(labels("ptb-small"), table.splitlines()[2:], strict=True):
        rows = beyond("ptb-small", label)
        figures = " | ".join(spoken(rows, metric) for metric in ("test_perplexity", "valid_perplexity"))
        told = "| |" if label == "base" else f"{gain(rows, base, METRIC)} | {interval(rows, base, METRIC)} |"
        cost = f"{rows[0]['epochs']} epochs | {rows[0]['passes']:g} | {len(rows)}"
        assert line.endswith(f", {cost} | {figures} | {told}"), line


METRIC = "test_perplexity"


def test_the_readmes_table_beyond_cifar_is_that_of_its_rows():
    text = (ROOT / "README.md").read_text()
    whole = ("base", "ssgd", "split", "ssgd-half")
    for task, name, metric, told in (
        ("ptb-large", "Penn Treebank, large", "test_perplexity", whole[:3]),
        ("ptb-small", "Penn Treebank, small", "test_perplexity", whole),
        ("an4", "AN4", "test_wer", whole),
        ("tiny-imagenet10", "ten classes", "test_accuracy", whole),
    ):
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {name}")]
        figures = " | ".join(spoken(beyond(task, label), metric) for label in told)
        assert f" | {figures} |" in line


def rows_of(name):
    return [json.loads(line) for line in (ROOT / "results" / f"{name}.jsonl").read_text().splitlines()]


def at_the_papers_decay():
    """Of seeds that no tuning has seen."""
    rows = [row for row in rows_of("price") + rows_of("baseline") if row["data"] == "cifar100" and row["seed"] > 0]
    return [row for row in rows if row["weight_decay"] == 5e-4]


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "docs" / "method.md"], ids=lambda page: page.name)
@pytest.mark.parametrize(
    ("rows", "labels"),
    [
        (
            rows_of("split-cifar100"),
            {"sgd": "SGD", "halves": "SGD on the batch in halves, no noise", "split": "split, level 0.15"},
        ),
        (at_the_papers_decay(), {"sgd": "SGD", "ssgd": "both signs, level 0.5", "split": "split, level 0.26"}),
    ],
    ids=("1e-4", "5e-4"),
)
def test_the_tables_of_split_are_those_of_their_rows(page, rows, labels):
    lines = page.read_text().splitlines()
    for method, label in labels.items():
        chosen = [row for row in rows if row["method"] == method]
        figures = [spoken(chosen, key) for key in ("test_accuracy", "train_accuracy")]
        if method != "sgd":
            base = [row for row in rows if row["method"] == "sgd"]
            figures += [told(chosen, base, "test_accuracy") for told in (gain, interval)]
        assert any(line.startswith(f"| {label} |") and all(f"| {one} |" in line for one in figures) for line in lines)


def test_both_signs_and_split_are_compared():
    groups = [[row for row in at_the_papers_decay() if row["method"] == method] for method in ("split", "ssgd")]
    told = f"(by {gain(*groups, 'test_accuracy')}, {interval(*groups, 'test_accuracy')})"
    assert told in (ROOT / "README.md").read_text()


def test_the_table_of_the_level_is_that_of_its_rows():
    text = (ROOT / "docs" / "noise-level.md").read_text()
    rows = [row for name in ("level", "price") for row in rows_of(name) if row["seed"] == 1 and row["method"] == "ssgd"]
    for law in ("uniform", "sphere"):
        mine = {row["level"]: row["test_accuracy"] for row in rows if row["law"] == law}
        (line,) = [line for line in text.splitlines() if line.startswith(f"| `{law}`, a ratio")]
        assert line.endswith(" | ".join(f"{mine[a]:.2f}" for a in (0.1, 0.3, 0.5, 0.7, 1.0)) + " |")
    theirs = {point["level"]: point["mean"] for point in targets()["fig3_noise_level"]["curves"]["S-SGD"]}
    assert "| the paper, five seeds | " + " | ".join(f"{theirs[a]:.2f}" for a in (0.1, 0.3, 0.5, 0.7, 1.0)) in text


def test_what_statistics_gathered_again_bring_is_told():
    rows = json.loads((ROOT / "results" / "recomputed-bn.json").read_text())["rows"]
    text = (ROOT / "docs" / "howto.md").read_text()
    known = {(row["method"], row["seed"]): row["test_accuracy"] for row in at_the_papers_decay()}
    for method, name in (("sgd", "SGD"), ("ssgd", "both signs, level 0.5"), ("split", "`split`, level 0.26")):
        mine = [row for row in rows if row["method"] == method]
        assert all(row["test_accuracy"] == known[method, row["seed"]] for row in mine)
        own, again = (
            [{"seed": row["seed"], "of": row[key]} for row in mine] for key in ("test_accuracy", "recomputed")
        )
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
        assert line.endswith(f" | {spoken(own, 'of')} | {spoken(again, 'of')} | {gain(again, own, 'of')} |")
        told = {"ssgd": ("README.md", "docs/results.md", "docs/noise-level.md"), "split": ("README.md",)}
        assert all(spoken(again, "of") in (ROOT / page).read_text() for page in told.get(method, ()))
    assert all(row["recomputed"] > row["test_accuracy"] for row in rows if row["method"] == "ssgd")  # all five seeds
    after = 100 - np.load(ROOT / "results" / "fig7" / "plane.npz")["anchor_errors"][1][0]
    before = rows_of("fig7")[0]["test_accuracy"]
    assert f"from {before:.2f} to {after:.2f} %" in text


def test_the_table_of_sharpness_is_that_of_its_rows():
    text = (ROOT / "docs" / "analysis.md").read_text()
    rows = json.loads((ROOT / "results" / "sharpness.json").read_text())["rows"]
    decimals = {"test_accuracy": 2, "loss": 3, "excess": 2, "sam": 3, "keskar": 0}
    for method, name in (("sgd", "SGD"), ("split", "split, 0.26"), ("ssgd", "both signs, 0.5")):
        mine = [row for row in rows if row["method"] == method]
        figures = [
            f"{mean(values):.{places}f} ± {stdev(values):.{places}f}"
            for key, places in decimals.items()
            if (values := [row[key] for row in mine])
        ]
        assert f"| {name} | {' | '.join(figures)} |" in text
    by_seed = {(row["method"], row["seed"]): row for row in rows}
    for seed in (3, 4, 5):  # flatter in every seed
        for key in ("excess", "keskar"):
            sgd, split, both = (by_seed[method, seed][key] for method in ("sgd", "split", "ssgd"))
            assert sgd > split > both


def test_the_line_of_figure_2_is_told():
    line = np.load(ROOT / "results" / "fig2" / "line.npz")
    at = {x: f"{error:.2f}" for x, error in zip(line["x"].round(3), line["errors"][1], strict=True)}
    told = f"from {at[0.0]} to {at[-0.25]} %, as far beyond S-SGD's from {at[1.0]} to {at[1.25]} %"
    text = (ROOT / "docs" / "analysis.md").read_text()
    assert told in text and f"({at[0.5]} %)" in text


def test_where_we_differ_is_told_in_figures_of_the_rows():
    text = (ROOT / "docs" / "results.md").read_text()
    solutions = {row["experiment"].split("/")[1]: row for row in rows_of("fig7")}
    paper = targets()["fig7_surface"]
    for label, name in (("sgd-m", "SGD_m"), ("sgd-f", "SGD_f")):
        assert f"{solutions[label]['train_accuracy']:.2f}" in text and f"{paper['train'][name]:.2f} %" in text
    both, sgd = (solutions[label]["test_accuracy"] for label in ("ssgd", "sgd-f"))
    theirs = paper["test"]["S-SGD"] - paper["test"]["SGD_f"]
    assert f"has {both:.2f} where SGD from the same 125 epochs has {sgd:.2f}" in text
    assert f"a gain of {both - sgd:.2f}, the paper's is {theirs:.2f}" in text
    little = [row for row in rows_of("baseline") if row["experiment"] == "cifar100/1e-4"]
    assert f"({spoken(little, 'train_accuracy')})" in text and spoken(little, "test_accuracy").split()[0] in text
    assert spoken([row for row in at_the_papers_decay() if row["method"] == "ssgd"], "test_accuracy") in text


def test_the_table_of_the_small_lstm_is_that_of_its_rows():
    text = (ROOT / "docs" / "language.md").read_text()
    for row in rows_of("small-lstm"):
        recipe, figures = row["recipe"], (row["valid_perplexity"], row["test_perplexity"])
        told = f"| {recipe['dropout']} | {recipe['decay_after']} | " + " | ".join(f"{one:.2f}" for one in figures)
        assert f"{told} |" in text
