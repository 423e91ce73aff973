"""README and docs: their numbers are those of the rows under results/, and what they call run has been run."""

import argparse
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from ssgd.cli.reproduce import add_arguments
from ssgd.lab.experiments import experiment, plan

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import draw_figures  # noqa: E402
import fill_numbers  # noqa: E402

PAGES = fill_numbers.pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_are_current(page):
    text = page.read_text()
    assert fill_numbers.filled(text) == text, "run `make figures`"


EVIDENCE = ["evidence", "price", "results", "gap", "noise-level", "beyond", "tolerance", "minimum", "performance"]


@pytest.mark.parametrize("page", EVIDENCE)
def test_every_table_of_the_evidence_is_filled_in(page):
    """Behind the first column no number with a point in it stands by itself."""
    text = next(path for path in PAGES if path.stem == page).read_text()
    for one in (fill_numbers.MARK, fill_numbers.ROWS, fill_numbers.BENCH, fill_numbers.TABLE):
        text = one.sub("", text)
    for body in re.findall(r"^\|---.*\n((?:\|.*\n)+)", text, re.MULTILINE):
        for line in body.splitlines():
            assert not re.search(r"\d\.\d", line.split("|", 2)[2]), line


def test_a_page_that_is_wrong_is_filled_anew():
    key = "gain c100/split-0.15 c100/base"
    right = f"by <!-- n: {key} -->+0.69 ± 0.27<!-- /n --> points"
    assert fill_numbers.filled(right.replace("0.69", "0.70")) == right
    table = "<!-- rows: c100 base : cost mean -->\n| method | cost | test |\n|---|---|---|\n| SGD | 1 | {} |\n"
    assert fill_numbers.filled(table.format("0.00")) == table.format("68.24 ± 0.13")
    for wrong in ("mean c100/nothing", "means c100/base"):
        with pytest.raises((KeyError, ValueError), match=r"nothing|no figure 'means'"):
            fill_numbers.filled(f"<!-- n: {wrong} -->1<!-- /n -->")


def test_a_benchmark_keeps_the_decimals_that_stand_there():
    table = (
        "<!-- bench: optimizer-cpu.json both_over_sgd - {} -->\n| | a | b |\n|---|---|---|\n| 2 x | {} | 7 of {} |\n"
    )
    rows = json.loads((ROOT / "benchmarks/results/optimizer-cpu.json").read_text())["rows"]
    both, sam = (row["value"] for name in ("both", "sam") for row in rows if row["name"] == f"{name}_over_sgd")
    before = table.format("sam_over_sgd", "0.00", "0.0")
    assert fill_numbers.filled(before) == table.format("sam_over_sgd", f"{both:.2f}", f"{sam:.1f}")
    with pytest.raises(AssertionError, match="fewer numbers than names"):
        fill_numbers.filled(table.format("sam_over_sgd split_over_sgd", "0.00", "0.0"))


NOT_RUN = (  # the lines that show them say so
    "ablations --only 'A-2/*'",
    "ablations --only 'A-w/'",
    "ablations --only 'B/2e-4/b*/seed-[23]'",
    "fig5 --only 'epochs-4/16384'",
    "fig5 --only '*-scaled/1024' '*-scaled/4096'",
)


def planned(command):
    """Its runs; a pattern that none has in its name is refused."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args(shlex.split(command))
    (one,) = map(experiment, options.names)
    runs = plan(one, "paper", fill_numbers.results(), only=options.only).runs
    return {run.name: fill_numbers.results().find(run.recipe, run.seed) for run in runs}  # with whatever figures


def commands():
    """Those of README and docs that name a part of an experiment's runs, as what was measured."""
    text = "".join(page.read_text() for page in PAGES)
    found = dict.fromkeys(re.findall(r"^ssgd reproduce (\w+ --only .+)$", text, re.MULTILINE))
    return [command for command in found if command not in NOT_RUN]


@pytest.mark.parametrize("command", NOT_RUN)
def test_a_command_that_is_told_as_not_run_has_not_been(command):
    text = "".join((ROOT / "docs" / f"{page}.md").read_text() for page in ("results", "gap"))
    assert f"not run: ssgd reproduce {command}\n" in text
    assert not any(planned(command).values())


@pytest.mark.parametrize("command", commands())
def test_a_command_that_is_told_with_its_figures_has_been_run_to_its_end(command):
    assert not [name for name, row in planned(command).items() if row is None]


@pytest.mark.parametrize("name", draw_figures.FIGURES)
def test_figures_are_those_of_the_rows(name, tmp_path):
    """Drawn again they are the same, byte for byte, and their titles still hold."""
    for theme in draw_figures.THEMES:
        draw_figures.draw(name, theme, tmp_path / "again.svg")
        drawn = (ROOT / "docs" / f"{name}-{theme}.svg").read_text()
        assert (tmp_path / "again.svg").read_text() == drawn, "run `make figures`"


def test_every_figure_stands_on_a_page():
    text = "".join(page.read_text() for page in PAGES)
    assert all(f"{name}-{theme}.svg" in text for name in draw_figures.FIGURES for theme in draw_figures.THEMES)


def test_a_title_that_the_rows_do_not_bear_is_refused():
    with pytest.raises(ValueError, match="no longer say: noise helps"):
        draw_figures.found(False, "noise helps")
