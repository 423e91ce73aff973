"""List the recipes, or show one with what it costs."""

from __future__ import annotations

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="Shows only this recipe, in detail.")
    parser.add_argument("--json", action="store_true", help="Prints JSON, for programs.")


def run(options: argparse.Namespace) -> int:
    from ..lab import recipes

    if options.name is not None:
        recipe = recipes.get(options.name)
        print(json.dumps(recipe.to_json(), indent=2) if options.json else recipe)
    elif options.json:
        print(json.dumps([recipes.get(name).to_json() for name in recipes.RECIPES], indent=2))
    else:
        print(recipes.listing())
    return 0
