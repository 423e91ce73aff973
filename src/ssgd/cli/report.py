"""One HTML page of the results: every table and figure of the paper, ours beside it, and runs of your own."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results",
        type=Path,
        default=Path("results"),
        help="The folder of the rows, or one file of them (default: results).",
    )
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), help="The file of the page (default: report.html)."
    )


def run(options: argparse.Namespace) -> int:
    from ..lab.report import write

    print(write(options.results, options.out))
    return 0
