"""Loss and error along the straight line between two solutions, beyond both ends."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from .arguments import add_graph, add_precision, add_solutions, execution, short_names

if TYPE_CHECKING:
    from ..analysis import Line, Plane, Surface

KEPT = "the points that are done"
NEEDS = ("matplotlib",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_solutions(parser, "Two of the same net.")
    add_grid(parser, points=31, margin=0.5)


def run(options: argparse.Namespace) -> int:
    from ..analysis import Line, draw_line

    surface = evaluated(Line, options, count=2)
    if surface is None:
        return 0
    for name in surface.tasks:
        ends = zip(surface.names, surface.at_anchors(name), surface.at_anchors(name, "error"), strict=True)
        print(f"{name}: {', '.join(sentence(*end) for end in ends)}")
    draw_line(surface, options.out / "line.png")
    print(f"written: line.npz, .json and .png in {options.out}")
    return 0


def sentence(name: str, loss: float, error: float) -> str:
    return f"{name}: loss {loss:.4f}" + ("" if math.isnan(error) else f", error {error:.2f} %")


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
    add_graph(parser)


def evaluated(through: Callable[..., Line | Plane], options: argparse.Namespace, count: int) -> Surface | None:
    """Evaluates the line or plane through so many solutions, over the first one's data.

    Processes of torchrun share in the points; all but the first get None, for there is nothing left to do.
    """
    from ..analysis import evaluate
    from ..lab.solutions import data_of, solutions, tasks
    from ..lab.train.distributed import is_first_process

    found, kind = solutions(options.solutions), {2: "line", 3: "plane"}[count]
    if len(found) != count:
        raise ValueError(f"a {kind} goes through {count} solutions: name {count} runs, not {len(found)}")
    names = short_names([one.name for one in found])
    parts = tasks(found[0], execution(options), options.limit, forward_only=True)
    geometry = through(*(one.state for one in found), parts["train"].model, names=names)
    same = ("batchnorm", "precision", "graph")
    surface = evaluate(
        geometry,
        parts,
        geometry.grid(options.points, options.margin),
        out=options.out / kind,
        progress=not options.quiet,
        data=data_of(found[0], options.limit),
        **{name: getattr(options, name) for name in same},
    )
    return surface if is_first_process() else None
