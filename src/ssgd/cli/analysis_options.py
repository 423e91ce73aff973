"""Options that the commands of the analysis share."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from ..lab.solutions import Solution, data_of
from ..lab.train.execution import Execution

RUN = "a run's folder, one of its checkpoints, or its weights.safetensors"


def add_options(parser: argparse.ArgumentParser, out: str) -> None:
    parser.add_argument("--out", type=Path, default=Path(out), help=f"results are OUT.npz, OUT.json … (default: {out})")
    parser.add_argument("--limit", type=int, help="take only the first so many training and test samples")
    parser.add_argument("--folder", help="where the data lie; else $SSGD_DATA, else a cache folder")
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: a GPU where there is one"
    )
    parser.add_argument("--quiet", action="store_true", help="show no progress bar")


def add_grid(parser: argparse.ArgumentParser, points: int, margin: float) -> None:
    parser.add_argument("--points", type=int, default=points, help=f"points on each axis (default: {points})")
    parser.add_argument(
        "--margin", type=float, default=margin, help=f"how far to go beyond the solutions (default: {margin:g})"
    )
    parser.add_argument(
        "--batchnorm",
        choices=("recompute", "interpolate", "keep"),
        default="recompute",
        help="its statistics at each point (default: recompute)",
    )
    add_precision(parser, bf16=True)
    parser.add_argument(
        "--together", type=int, default=1, metavar="N", help="points in one pass, for nets that leave a GPU idle"
    )
    parser.add_argument("--compile", action="store_true", help="use torch.compile: a minute at first, then faster")
    add_graph(parser)


def add_precision(parser: argparse.ArgumentParser, bf16: bool = False) -> None:
    others, digits = (("tf32", "bf16"), "to 3 and to 2 digits") if bf16 else (("tf32",), "to 3 digits")
    parser.add_argument(
        "--precision",
        choices=("fp32", *others),
        default="fp32",
        help=f"{' and '.join(others)}: faster on a GPU, {digits} (default: fp32)",
    )


def add_graph(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--graph", action="store_true", help="use CUDA graphs, for nets too small to keep a GPU busy")


def evaluation_options(options: argparse.Namespace, first: Solution) -> dict[str, Any]:
    """Returns the arguments of evaluate() that the options give; the data are those of the first solution."""
    given = {name: getattr(options, name) for name in ("out", "batchnorm", "precision", "together", "compile", "graph")}
    return {**given, "progress": not options.quiet, "data": data_of(first, options.limit)}


def refuse_torchrun(command: str) -> None:
    """Refuses several processes, each of which would do and write everything."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError(f"ssgd {command} works in one process: start it without torchrun")


def execution(options: argparse.Namespace) -> Execution:
    """Returns where to compute; makes the folder that results go to."""
    options.out.parent.mkdir(parents=True, exist_ok=True)
    return Execution(folder=options.folder, device=options.device)
