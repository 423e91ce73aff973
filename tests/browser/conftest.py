"""The pages that are looked at, and the browser that looks."""

from pathlib import Path

import pytest

from ssgd.lab.report import write
from tests.report_rows import write_results

from .chromium import PROGRAM, Chromium

COMMITTED = Path(__file__).parents[2] / "docs" / "report.html"


@pytest.fixture(scope="session")
def browser():
    if PROGRAM is None:
        pytest.skip("Chromium is not installed: make test-browser installs it")
    found = Chromium()
    yield found
    found.close()


@pytest.fixture(scope="session")
def made_up(tmp_path_factory):
    """The page of made-up results, which have a little of everything."""
    folder = tmp_path_factory.mktemp("made-up")
    write_results(folder / "results")
    write(folder / "results", folder / "report.html")
    return folder / "report.html"


@pytest.fixture(params=["made up", "committed"])
def page(request, made_up):
    return made_up if request.param == "made up" else COMMITTED
