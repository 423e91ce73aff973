"""``ssgd COMMAND``: finds the command and runs it."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import __version__
from . import methods

COMMANDS = {"methods": methods}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="ssgd", description="Training that finds flat minima.")
    parser.add_argument("--version", action="version", version=f"ssgd {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for name, command in COMMANDS.items():
        help = (command.__doc__ or "").strip().split("\n")[0]
        command.add_arguments(commands.add_parser(name, help=help, description=command.__doc__))
    options = parser.parse_args(arguments)
    if not hasattr(options, "run"):
        parser.print_help()
        return 2
    return int(options.run(options) or 0)


if __name__ == "__main__":
    sys.exit(main())
