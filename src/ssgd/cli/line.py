"""Loss and error along the straight line between two solutions, beyond both ends."""

from __future__ import annotations

import argparse
import math

from .arguments import RUN, add_grid, add_options, evaluate_options, execution

KEPT = "the points that are done"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help=RUN)
    parser.add_argument("b", metavar="B", help="Another run of the same net.")
    add_grid(parser, points=31, margin=0.5)
    add_options(parser, "line")


def run(options: argparse.Namespace) -> int:
    from ..analysis import Line, draw_line, evaluate
    from ..analysis.results import with_ending
    from ..lab.solutions import solution, tasks
    from ..lab.train.distributed import is_first_process

    a, b = solution(options.a), solution(options.b)
    found = tasks(a, execution(options), options.limit, large=True)
    line = Line(a.state, b.state, found["train"].model, names=(a.name, b.name))
    surface = evaluate(line, found, line.grid(options.points, options.margin), **evaluate_options(options, a))
    if not is_first_process():  # torchrun's other processes have shared in the points
        return 0
    for name in surface.tasks:
        ends = zip(surface.names, surface.at_anchors(name), surface.at_anchors(name, "error"), strict=True)
        print(f"{name}: {', '.join(sentence(*end) for end in ends)}")
    draw_line(surface, with_ending(options.out, ".png"))
    print(f"written: {with_ending(options.out, '.npz')}, .json and .png")
    return 0


def sentence(name: str, loss: float, error: float) -> str:
    return f"{name}: loss {loss:.4f}" + ("" if math.isnan(error) else f", error {error:.2f} %")
