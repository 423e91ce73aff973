"""Loss and error over the plane through three solutions, and a picture of each."""

from __future__ import annotations

import argparse

from ..lab.solutions import solution, tasks
from ..lab.train.terminal import ended, speaks
from .analysis_options import RUN, add_grid, add_options, evaluation_options, execution


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name in "ABC":
        parser.add_argument(name.lower(), metavar=name, help=RUN)
    add_grid(parser, points=21, margin=0.2)
    add_options(parser, "plane")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return ended(lambda: work(options), kept="the points that are done")


def work(options: argparse.Namespace) -> int:
    from ..analysis import Plane, draw_plane, evaluate
    from ..analysis.results import with_ending

    a, b, c = (solution(path) for path in (options.a, options.b, options.c))
    found = tasks(a, execution(options), options.limit, large=True)
    plane = Plane(a.state, b.state, c.state, found["train"].model, names=(a.name, b.name, c.name))
    surface = evaluate(plane, found, plane.grid(options.points, options.margin), **evaluation_options(options, a))
    if not speaks():  # torchrun's other processes have shared in the points
        return 0
    for name in surface.tasks:
        draw_plane(surface, name, path=with_ending(options.out, f"-{name}.png"))
    print(f"written: {with_ending(options.out, '.npz')}, .json, and a .png of each part of the data")
    return 0
