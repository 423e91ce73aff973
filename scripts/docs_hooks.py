"""What mkdocs calls while it builds the site: docs/commands.md is filled from the commands themselves."""

from __future__ import annotations

import argparse
import re
from typing import Any

from ssgd.cli.fields import GROUPS
from ssgd.cli.main import COMMANDS, command
from ssgd.lab.train import Execution, Recipe, fields

WITH_FIELDS = ("train", "compare", "tune")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """A page before it becomes HTML."""
    return markdown.replace("<!-- commands -->", commands()).replace("<!-- fields -->", all_fields())


def on_page_content(html: str, **_: Any) -> str:
    """A page as HTML: docstrings have a few marks that are reStructuredText's."""
    html = re.sub(r":(?:class|func|meth):(?=<code>)", "", html)
    return re.sub(r"\s*::(?=</p>)", ":", html.replace("<p>::</p>", ""))


def commands() -> str:
    return "\n\n".join(map(_command, COMMANDS))


def all_fields() -> str:
    head = ("field", "meaning", "default")
    return "\n\n".join(
        f"### {kind.__name__}\n\n{(kind.__doc__ or '').strip()}\n\n{_table(fields.table(kind()), head)}"
        for kind in (Recipe, Execution)
    )


def _command(name: str) -> str:
    module = command(name)
    parser = argparse.ArgumentParser(prog=f"ssgd {name}", add_help=False)
    module.add_arguments(parser)
    of_fields = {id(a) for group in parser._action_groups if group.title in GROUPS for a in group._group_actions}
    own = [action for action in parser._actions if id(action) not in of_fields and action.dest != "help"]
    positional = [action for action in own if not action.option_strings]
    options = [action for action in own if action.option_strings]
    words = [f"{_shown(action)} …" if action.nargs in ("+", "*") else _shown(action) for action in positional]
    words = [
        f"[{word}]" if action.nargs in ("?", "*") else word for action, word in zip(positional, words, strict=True)
    ]
    words += ["[key=value …]"] if name in WITH_FIELDS else []
    usage = " ".join(["ssgd", name, *words, *(["[OPTIONS]"] if options or name in WITH_FIELDS else [])])
    rows = [(_shown(action), (action.help or "") % {**vars(action), "prog": "ssgd"}) for action in positional + options]
    parts = [f"### ssgd {name}", (module.__doc__ or "").strip(), f"    {usage}"]
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


def _table(rows: list[tuple[str, ...]], head: tuple[str, ...]) -> str:
    lines = [head, ("---",) * len(head), *((f"`{first}`", *rest) for first, *rest in rows)]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
