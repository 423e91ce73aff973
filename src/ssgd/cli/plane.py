"""Loss and error over the plane through three solutions, and a picture of each."""

from __future__ import annotations

import argparse

from .arguments import RUN, add_grid, add_options, evaluate_options, execution

KEPT = "the points that are done"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in "ABC":
        parser.add_argument(name.lower(), metavar=name, help=RUN)
    add_grid(parser, points=21, margin=0.2)
    add_options(parser, "plane")


def run(options: argparse.Namespace) -> int:
    from ..analysis import Plane, draw_plane, evaluate
    from ..analysis.results import with_ending
    from ..lab.solutions import solution, tasks
    from ..lab.train.distributed import is_first_process

    a, b, c = (solution(path) for path in (options.a, options.b, options.c))
    found = tasks(a, execution(options), options.limit, large=True)
    plane = Plane(a.state, b.state, c.state, found["train"].model, names=(a.name, b.name, c.name))
    surface = evaluate(plane, found, plane.grid(options.points, options.margin), **evaluate_options(options, a))
    if not is_first_process():  # torchrun's other processes have shared in the points
        return 0
    for name in surface.tasks:
        draw_plane(surface, name, path=with_ending(options.out, f"-{name}.png"))
    print(f"written: {with_ending(options.out, '.npz')}, .json, and a .png of each part of the data")
    return 0
