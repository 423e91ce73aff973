"""What mkdocs calls while it builds the site: docs/commands.md is filled from the commands themselves."""

from __future__ import annotations

import argparse
import ast
import inspect
import re
from dataclasses import fields
from types import ModuleType
from typing import Any

from ssgd.cli.main import COMMANDS
from ssgd.lab.train import Execution, Recipe

WITH_FIELDS = ("train", "compare")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page before it becomes HTML."""
    return markdown.replace("<!-- commands -->", commands()).replace("<!-- fields -->", all_fields())


def on_page_content(html: str, **_: Any) -> str:
    """A page as HTML: docstrings have a few marks that are reStructuredText's."""
    html = re.sub(r":(?:class|func|meth):(?=<code>)", "", html)
    return re.sub(r"\s*::(?=</p>)", ":", html.replace("<p>::</p>", ""))


def commands() -> str:
    return "\n\n".join(_command(name, command) for name, command in COMMANDS.items())


def all_fields() -> str:
    return "\n\n".join(
        f"### {title}\n\n{(kind.__doc__ or '').strip()}\n\n{_table(_fields(kind), ('field', 'meaning', 'default'))}"
        for title, kind in (("Recipe", Recipe), ("Execution", Execution))
    )


def _command(name: str, command: ModuleType) -> str:
    parser = argparse.ArgumentParser(add_help=False)
    command.add_arguments(parser)
    positional = [action for action in parser._actions if not action.option_strings]
    options = [action for action in parser._actions if action.option_strings]
    words = [f"{_shown(action)} …" if action.nargs in ("+", "*") else _shown(action) for action in positional]
    words = [
        f"[{word}]" if action.nargs in ("?", "*") else word for action, word in zip(positional, words, strict=True)
    ]
    words += ["[RECIPE]", "[key=value …]"] if name in WITH_FIELDS else []
    usage = " ".join(["ssgd", name, *words, *(["[OPTIONS]"] if options or name in WITH_FIELDS else [])])
    rows = [(_shown(action), (action.help or "") % {**vars(action), "prog": "ssgd"}) for action in positional + options]
    parts = [f"### ssgd {name}", (command.__doc__ or "").strip(), f"    {usage}"]
    if rows:
        parts.append(_table(rows, ("argument", "meaning")))
    if name in WITH_FIELDS:
        parts.append("Every [field](#fields) is an option too.")
    return "\n\n".join(parts)


def _shown(action: argparse.Action) -> str:
    if not action.option_strings:
        return str(action.metavar or action.dest.upper())
    value = action.metavar or ("|".join(map(str, action.choices)) if action.choices else action.dest.upper())
    return action.option_strings[-1] + ("" if action.nargs == 0 else f" {value}")


def _fields(kind: type) -> list[tuple[str, str, str]]:
    """The fields of a dataclass with the strings that stand below them, and their defaults."""
    (body,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(body, ast.ClassDef)
    texts = {
        field.target.id: text.value.value
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
    }
    return [(field.name, str(texts[field.name]), _default(getattr(kind(), field.name))) for field in fields(kind)]


def _default(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def _table(rows: list[tuple[str, ...]], head: tuple[str, ...]) -> str:
    lines = [head, ("---",) * len(head), *((f"`{first}`", *rest) for first, *rest in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
