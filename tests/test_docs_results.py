"""README and docs: their numbers are those of the rows under results/, and what they call run has been run."""

import argparse
import re
import shlex
import sys
from pathlib import Path

import pytest

from ssgd.cli.reproduce import add_arguments
from ssgd.lab.experiments import experiment, plan

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

import fill_numbers  # noqa: E402

PAGES = fill_numbers.pages()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_pages_are_current(page):
    text = page.read_text()
    assert fill_numbers.filled(text) == text, "run `python scripts/fill_numbers.py`"


def test_most_numbers_with_a_spread_are_filled_in():
    text = "".join(page.read_text() for page in PAGES)
    assert len(fill_numbers.MARK.findall(text)) > 80
    assert len(fill_numbers.ROWS.findall(text)) == 9 and len(fill_numbers.TABLE.findall(text)) == 6


def test_a_page_that_is_wrong_is_filled_anew():
    key = "gain c100/split-0.15 c100/base"
    right = f"by <!-- n: {key} -->+0.69 ± 0.27<!-- /n --> points"
    assert fill_numbers.filled(right.replace("0.69", "0.70")) == right
    table = "<!-- rows: c100 cost mean -->\n| method | cost | test |\n|---|---|---|\n| SGD | 1 | {} |\n"
    assert fill_numbers.filled(table.format("0.00")) == table.format("68.24 ± 0.13")
    with pytest.raises(KeyError):
        fill_numbers.filled("<!-- n: mean c100/nothing -->1<!-- /n -->")


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


def test_readmes_picture_is_that_of_the_rows(monkeypatch, tmp_path):
    """Drawn again it is the same, byte for byte."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import draw_gains

    rows = draw_gains.points()
    assert len(rows) > 8
    for theme in draw_gains.COLOURS:
        draw_gains.draw(tmp_path / f"{theme}.svg", theme, rows)
        drawn = (ROOT / "docs" / f"gains-{theme}.svg").read_text()
        assert (tmp_path / f"{theme}.svg").read_text() == drawn, "run python scripts/draw_gains.py"
