"""List the recipes, or show one with what it costs."""

from __future__ import annotations

import argparse
import json

from ..lab.experiments import catalogue
from ..lab.train.terminal import ended


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="only this recipe, in detail")
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    def work() -> int:
        if options.name is not None:
            recipe = catalogue.get(options.name)
            print(json.dumps(recipe.to_json(), indent=2) if options.json else recipe)
        elif options.json:
            print(json.dumps([catalogue.get(name).to_json() for name in catalogue.names()], indent=2))
        else:
            print(catalogue.listing())
        return 0

    return ended(work)
