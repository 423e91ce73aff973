"""Arguments that several commands have in common, and the objects they name."""

from __future__ import annotations

import argparse
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from ..lab.solutions import Solution
    from ..lab.train.recipe import Execution

RUN = "A run's folder, one of its checkpoints, or its weights.safetensors."


def add_data_and_device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", help="The folder of the data; without it $SSGD_DATA, or else a cache folder.")
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help="The device; auto is a GPU where there is one.",
    )


def add_on(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--on", choices=("here", "ray"), default="here", help="Where the runs are made; ray is over a Ray cluster."
    )


def add_options(parser: argparse.ArgumentParser, out: str) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path(out), help=f"The results go to OUT.npz, OUT.json … (default: {out})."
    )
    parser.add_argument("--limit", type=int, help="Takes only this many training and test samples.")
    add_data_and_device(parser)
    parser.add_argument("--quiet", action="store_true", help="Shows no progress bar.")


def add_grid(parser: argparse.ArgumentParser, points: int, margin: float) -> None:
    parser.add_argument(
        "--points", type=int, default=points, help=f"The number of points on each axis (default: {points})."
    )
    parser.add_argument(
        "--margin", type=float, default=margin, help=f"How far the axes go beyond the solutions (default: {margin:g})."
    )
    parser.add_argument(
        "--batchnorm",
        choices=("recompute", "interpolate", "keep"),
        default="recompute",
        help="How batch-norm's statistics are found at each point (default: recompute).",
    )
    add_precision(parser, bf16=True)
    parser.add_argument(
        "--together",
        type=int,
        default=1,
        metavar="N",
        help="Takes N points in one pass, for nets that leave a GPU idle.",
    )
    parser.add_argument(
        "--compile", action="store_true", help="Compiles the passes by torch.compile: a minute at first, then faster."
    )
    add_graph(parser)


def add_precision(parser: argparse.ArgumentParser, bf16: bool = False) -> None:
    others, digits = ("tf32 and bf16 are", "3 and to 2 digits") if bf16 else ("tf32 is", "3 digits")
    parser.add_argument(
        "--precision",
        choices=("fp32", "tf32", "bf16") if bf16 else ("fp32", "tf32"),
        default="fp32",
        help=f"The arithmetic; {others} faster on a GPU, to {digits} (default: fp32).",
    )


def add_graph(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--graph", action="store_true", help="Runs the passes as CUDA graphs, for nets too small to keep a GPU busy."
    )


def evaluate_options(options: argparse.Namespace, of: Solution) -> dict[str, Any]:
    """Returns the arguments of evaluate() that a grid's options give; the data are the first solution's."""
    from ..lab.solutions import data_of

    given = {name: getattr(options, name) for name in ("out", "batchnorm", "precision", "together", "compile", "graph")}
    return {**given, "progress": not options.quiet, "data": data_of(of, options.limit)}


def refuse_several_processes(command: str) -> None:
    """Every process would do, and write, all of it."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError(f"ssgd {command} works in one process: start it without torchrun")


def execution(options: argparse.Namespace) -> Execution:
    from ..lab.train.recipe import Execution

    options.out.parent.mkdir(parents=True, exist_ok=True)
    return Execution(folder=options.folder, device=options.device)


def net_and_data(options: argparse.Namespace, kind: str) -> tuple[nn.Module, Any]:
    """The net of the run ``options.solution``, in eval mode, and its data, which have to be of that kind."""
    import torch

    from ..lab.solutions import net_of, solution
    from ..lab.train.job import Sources
    from ..lab.train.recipe import Execution

    found, execution = solution(options.solution), Execution(folder=options.folder, device=options.device)
    source: Any = Sources(execution).get(replace(found.recipe, precision="fp32"), torch.device(execution.kind))
    if source.kind != kind:
        raise ValueError(f"{found.name} learned from {found.recipe.data}, of the kind {source.kind}, not {kind}")
    return net_of(found, source).to(execution.kind).eval(), source
