"""What knows what: no part of the package imports one that stands above it."""

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "src" / "ssgd"
LAYOUT = Path(__file__).parent.parent / "docs" / "layout.md"
LIBRARY = {
    "core",
    "kernels",
    "optimizer",
    "reference",
    "schedules",
    "methods",
    "analysis",
    "integrations",
    "jax",
    "files",
    "imported",
}
BELOW = {  # the library's rooms, which know nothing of the laboratory, and the entry points, which know both
    "core": {"kernels"},  # loaded where there is a GPU for them
    "kernels": {"core"},
    "files": set(),
    "imported": set(),
    "schedules": {"core"},
    "reference": {"core"},
    "optimizer": {"core"},
    "methods": {"core", "optimizer", "imported"},
    "analysis": {"core", "files"},
    "integrations": {"core", "optimizer"},
    "jax": {"core"},
    "lab": LIBRARY,
    "demo": {"core", "optimizer", "methods", "analysis", "lab"},
}
IN_THE_LAB = {  # its rooms, all of which may know the library, but for those of ALONE
    "columns": set(),
    "versions": set(),
    "compilation": {"versions"},
    "models": set(),
    "data": {"compilation"},
    "train": {"models", "data", "compilation", "columns", "versions"},
    "solutions": {"data", "models", "train"},
    "experiments": {"columns", "models", "data", "train", "solutions"},
    "report": {"experiments"},
}
ALONE = {
    "report": {"core", "files", "analysis"},
    "models": {"imported"},
}  # rooms of the laboratory that know no more of the library than this
ENTRY_POINTS = ("__init__.py", "__main__.py", "cli", "lab/__init__.py")  # they may know everything


def files():
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if not name.startswith(ENTRY_POINTS):
            yield pytest.param(path, id=name)


@pytest.mark.parametrize("path", list(files()))
def test_imports_go_downwards_only(path):
    inside = path.relative_to(PACKAGE).with_suffix("").parts
    for target in imported(path, inside):
        if inside[0] == target[0] == "lab":
            room, other = inside[1], target[1]
            assert other in IN_THE_LAB[room] | {room}, f"{'/'.join(inside)} imports {'.'.join(target)}"
        else:
            allowed = ALONE.get(inside[1], BELOW["lab"]) if inside[0] == "lab" else BELOW[inside[0]] | {inside[0]}
            assert target[0] in allowed, f"{'/'.join(inside)} imports {'.'.join(target)}"


def imported(path, inside):
    """The parts of the package that a file imports, also inside functions, each as its names from the top on."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = inside[: len(inside) - node.level] if path.name != "__init__.py" else inside[: -node.level]
            yield from _targets((*base, *(node.module or "").split(".")) if node.module else base, node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ssgd":
            yield from _targets(tuple(node.module.split(".")[1:]), node.names)
        elif isinstance(node, ast.Import):
            yield from [tuple(alias.name.split(".")[1:]) for alias in node.names if alias.name.startswith("ssgd.")]


def _targets(module, names):
    """What `from module import names` imports: modules, where the module is the package itself or the laboratory."""
    if module in ((), ("lab",)):
        below = PACKAGE.joinpath(*module)
        there = [a.name for a in names if (below / a.name).is_dir() or (below / f"{a.name}.py").is_file()]
        return [(*module, name) for name in there]
    return [module]


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from ..methods import sam", [("methods",)]),
        ("from ..lab import train", [("lab", "train")]),
        ("from .. import cli, __version__", [("cli",)]),
        ("from . import noise", [("core",)]),
        ("from ssgd import cli, SSGD", [("cli",)]),
        ("import ssgd.cli.main", [("cli", "main")]),
        ("from ssgd.lab.data.cifar import cifar", [("lab", "data", "cifar")]),
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
    assert set(BELOW) | set(IN_THE_LAB) | {"cli"} <= parts
