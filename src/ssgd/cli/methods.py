"""List the methods: what each does, what a step costs, what can be set."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from inspect import cleandoc

from ..lab.columns import in_columns
from ..methods.registry import METHODS, Method


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", choices=list(METHODS), metavar="NAME", help="Shows only this method, in detail."
    )
    parser.add_argument("--json", action="store_true", help="Prints JSON, for programs.")


def run(options: argparse.Namespace) -> None:
    chosen = [METHODS[options.name]] if options.name else list(METHODS.values())
    if options.json:
        print(json.dumps([_plain(method) for method in chosen], indent=2))
    elif options.name:
        _print_details(chosen[0])
    else:
        _print_table(chosen)


def _print_table(chosen: list[Method]) -> None:
    rows = [("method", "passes", "settings (default, range)", "what it is")]
    for m in chosen:
        settings = ", ".join(f"{s.name}={s.default:g} [{s.low:g}, {s.high:g}]" for s in m.settings)
        epochs = f" × {m.epochs:g} epochs" if m.epochs != 1 else ""
        rows.append((m.name, f"{m.passes:g}{epochs}", settings or "–", m.description))
    print(in_columns(rows))


def _print_details(method: Method) -> None:
    passes = "1 pass" if method.passes == 1 else f"{method.passes:g} passes"
    print(f"{method.name}: {method.description}\n{passes} a step, built by {method.make.__name__}\n")
    for s in method.settings:
        print(f"  {s.name:10} {s.help} (default {s.default:g}, {s.low:g} to {s.high:g})")
    print(f"\n{cleandoc((method.transform or method.make).__doc__ or '')}".rstrip())


def _plain(method: Method) -> dict[str, object]:
    return {
        "name": method.name,
        "description": method.description,
        "passes": method.passes,
        "epochs": method.epochs,
        "halves": method.halves,
        "warm_restarts": method.warm_restarts,
        "settings": [asdict(s) for s in method.settings],
    }
