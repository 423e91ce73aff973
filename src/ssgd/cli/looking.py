"""What the commands that look at solutions have in common: their options, and where results go."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ..lab.solutions import Solution, data_of
from ..lab.train.execution import Execution


def add_options(parser: argparse.ArgumentParser, out: str) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path(out), help=f"results go to OUT.npz, OUT.json … (default: {out})"
    )
    parser.add_argument("--limit", type=int, help="only the first so many training and test samples")
    parser.add_argument("--folder", help="where the data lie; else $SSGD_DATA, else a cache folder")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: a GPU where there is one"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def add_grid(parser: argparse.ArgumentParser, points: int, margin: float) -> None:
    parser.add_argument("--points", type=int, default=points, help=f"on each axis (default: {points})")
    parser.add_argument("--margin", type=float, default=margin, help=f"beyond the solutions (default: {margin:g})")
    parser.add_argument(
        "--batchnorm",
        choices=("recompute", "interpolate", "keep"),
        default="recompute",
        help="its statistics at each point (default: recompute)",
    )
    parser.add_argument(
        "--precision",
        choices=("fp32", "tf32", "bf16"),
        default="fp32",
        help="the others are faster on a GPU, to 3 and to 2 digits (default: fp32)",
    )
    parser.add_argument(
        "--together", type=int, default=1, metavar="N", help="points in one pass, for nets that leave a GPU idle"
    )
    parser.add_argument("--compile", action="store_true", help="by torch.compile: a minute at first, then faster")
    add_graph(parser)


def add_graph(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--graph", action="store_true", help="as CUDA graphs, for nets too small to keep a GPU busy")


def how(options: argparse.Namespace, of: Solution) -> dict[str, Any]:
    """What evaluate() is told of a grid's options, and of the data, which are those of the first solution."""
    given = {name: getattr(options, name) for name in ("out", "batchnorm", "precision", "together", "compile", "graph")}
    return {**given, "progress": not options.quiet, "data": data_of(of, options.limit)}


def alone(command: str) -> None:
    """What shares nothing out would be done, and written, by every process."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError(f"ssgd {command} works in one process: start it without torchrun")


def execution(options: argparse.Namespace) -> Execution:
    options.out.parent.mkdir(parents=True, exist_ok=True)
    return Execution(folder=options.folder, device=options.device)
