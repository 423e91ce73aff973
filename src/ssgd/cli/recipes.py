"""List the recipes, or show one with what it costs."""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="Shows only this recipe, in detail.")
    parser.add_argument("--json", action="store_true", help="Prints JSON, for programs.")


def run(options: argparse.Namespace) -> int:
    from ..lab.experiments import catalogue

    if options.name is not None:
        recipe = catalogue.get(options.name)
        print(json.dumps(recipe.to_json(), indent=2) if options.json else recipe)
    elif options.json:
        print(json.dumps([catalogue.get(name).to_json() for name in catalogue.names()], indent=2))
    else:
        print(catalogue.listing())
    return 0
