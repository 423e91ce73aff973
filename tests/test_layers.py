"""What knows what: no part of the package imports one that stands above it."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "ssgd"
LAYOUT = Path(__file__).parent.parent / "docs" / "layout.md"
BELOW = {
    "core": set(),
    "capture": set(),
    "compilation": set(),
    "columns": set(),
    "files": set(),
    "safetensors": {"files"},
    "schedules": {"core"},
    "reference": {"core"},
    "optimizer": {"core"},
    "methods": {"core", "optimizer"},
    "models": set(),
    "data": {"core", "compilation", "files"},
    "analysis": {"core", "capture", "files"},
    "train": {
        "core",
        "optimizer",
        "methods",
        "models",
        "data",
        "capture",
        "compilation",
        "columns",
        "files",
        "safetensors",
    },
    "recipes": {"models", "data", "train"},
    "solutions": {"core", "models", "analysis", "safetensors", "train"},
    "reproduce": {"core", "columns", "files", "methods", "train", "recipes", "analysis", "solutions"},
    "report": {"files"},  # results alone
    "integrations": {"core", "optimizer"},
    "jax": {"core"},
    "demo": {"core", "columns", "optimizer", "data", "analysis"},
}
ENTRY_POINTS = ("__init__.py", "__main__.py", "cli", "train/__main__.py")  # they may know everything


def files():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(ENTRY_POINTS):
            yield pytest.param(path, id=name)


@pytest.mark.parametrize("path", list(files()))
def test_imports_go_downwards_only(path):
    inside = path.relative_to(PACKAGE).with_suffix("").parts
    allowed = BELOW[inside[0]] | {inside[0]}
    for part in imported(path, inside):
        assert part in allowed, f"{'/'.join(inside)} imports {part}"


def imported(path, inside):
    """The parts of the package that a file imports, also inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = inside[: len(inside) - node.level] if path.name != "__init__.py" else inside[: -node.level]
            target = (*base, *(node.module or "").split(".")) if node.module else base
            yield from [target[0]] if target else [a.name for a in node.names if (PACKAGE / a.name).is_dir()]
        elif isinstance(node, ast.ImportFrom) and node.module == "ssgd":
            yield from [alias.name for alias in node.names if (PACKAGE / alias.name).is_dir()]
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            yield from [name.split(".")[1] for name in names if name.startswith("ssgd.")]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from ..train import recipe", ["train"]),
        ("from .. import cli, __version__", ["cli"]),
        ("from . import noise", ["core"]),
        ("from ssgd import cli, SSGD", ["cli"]),
        ("import ssgd.cli.main", ["cli"]),
        ("from ssgd.data.cifar import cifar", ["data"]),
        ("import torch", []),
    ],
)
def test_imports_are_seen_however_they_are_written(line, found, tmp_path):
    file = tmp_path / "file.py"
    file.write_text(line)
    assert list(imported(file, ("core", "file"))) == found


def test_the_page_of_the_layout_has_every_part():
    rows = [line.split("|")[1] for line in LAYOUT.read_text().splitlines() if line.startswith("| `")]
    parts = {name.rstrip("/").removesuffix(".py") for row in rows for name in re.findall(r"`([\w.]+/?)`", row)}
    assert set(BELOW) | {"cli"} <= parts
