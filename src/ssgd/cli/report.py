"""One HTML page of the results: every table and figure of the paper, ours beside it."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..lab.train.terminal import ended


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, default=Path("results"), help="folder of the rows (default: results)")
    parser.add_argument("--out", type=Path, default=Path("report.html"), help="the page (default: report.html)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return ended(lambda: work(options), kept=None)


def work(options: argparse.Namespace) -> int:
    from ..lab.report import write

    print(write(options.results, options.out))
    return 0
