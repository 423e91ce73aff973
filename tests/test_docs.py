"""README and docs: their code runs, their links lead somewhere, the tests they name are there."""

import ast
import importlib
import re
import runpy
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from ssgd import SSGD
from ssgd.cli.main import COMMANDS, command
from ssgd.lab.train import Execution, Recipe
from ssgd.methods import METHODS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(<!-- not run: .+ -->\n)?```(python|diff)\n(.*?)```", re.DOTALL)


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
    steps = ".step()" in source or "step(opt)" in source
    assert trained == (steps and re.search(r"\bmodel\b", source) is not None)  # a few blocks have a net of their own
    assert all(p.isfinite().all() for p in space["model"].parameters())


@pytest.mark.parametrize(("source", "is_run"), blocks("diff"))
def test_both_sides_of_a_diff_train(source, is_run):
    for side, other in ("-+", "+-"):
        lines = [line[1:] for line in source.splitlines() if not line.startswith(other)]
        space, trained = run("\n".join(["import torch", *lines]))
        assert trained
        assert isinstance(space["opt"], SSGD) == (side == "+")


@pytest.mark.parametrize("name", [name for name in METHODS if name != "mirror"])  # which needs ranks
def test_the_loop_of_the_page_of_methods_serves_every_method(name):
    (source,) = (b.values[0] for b in blocks("python") if 'methods.get("split")' in b.values[0] and "methods" in b.id)
    _, trained = run(source.replace('methods.get("split")', f'methods.get("{name}")'))
    assert trained


# --- what the pages point at ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\"", page.read_text()):
        target = "".join(target)
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


def test_every_method_but_the_base_has_a_reference():
    references = (ROOT / "docs" / "methods.md").read_text().partition("## References")[2]
    assert {"base", *re.findall(r"`([\w-]+)`(?=.* \|.*\|$)", references, re.MULTILINE)} >= METHODS.keys()


# --- what is made from the code ---------------------------------------------------------------------------------------


def test_the_page_of_commands_has_every_command_option_and_field():
    page = runpy.run_path(str(ROOT / "scripts" / "docs_hooks.py"))["on_page_markdown"](
        (ROOT / "docs" / "commands.md").read_text()
    )
    assert "<!--" not in page
    for name in COMMANDS:
        module = command(name)
        section = page.partition(f"### ssgd {name}\n")[2].partition("\n### ")[0]
        assert module.__doc__.strip() in section and f"    ssgd {name}" in section
        for option in re.findall(r'add_argument\(\s*"(--[\w-]+)"', Path(module.__file__).read_text()):
            assert re.search(rf"^\| `{option}[ `]", section, re.MULTILINE), f"ssgd {name} {option}"
    for field in (*fields(Recipe), *fields(Execution)):
        assert re.search(rf"^\| `{field.name}` \| \S.+ \| .* \|$", page, re.MULTILINE), field.name


def test_marks_of_restructured_text_are_taken_out():
    clean = runpy.run_path(str(ROOT / "scripts" / "docs_hooks.py"))["on_page_content"]
    assert clean("<p>a :class:<code>Distribution</code> ::</p>") == "<p>a <code>Distribution</code>:</p>"
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
