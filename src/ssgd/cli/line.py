"""Loss and error along the straight line between two solutions, beyond both ends."""

from __future__ import annotations

import argparse

from ..solutions import solution, tasks
from ..train.terminal import ended
from .looking import add_grid, add_options, execution, how


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", metavar="A", help="a run's folder, one of its checkpoints, or its weights.safetensors")
    parser.add_argument("b", metavar="B", help="another of the same net")
    add_grid(parser, points=31, margin=0.5)
    add_options(parser, "line")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    return ended(lambda: work(options))


def work(options: argparse.Namespace) -> int:
    from ..analysis.geometry import Line
    from ..analysis.pictures import draw_line
    from ..analysis.surface import evaluate

    a, b = solution(options.a), solution(options.b)
    found = tasks(a, execution(options), options.limit, large=True)
    line = Line(a.state, b.state, found["train"].model, names=(a.name, b.name))
    grid = line.grid(options.points, options.margin)
    surface = evaluate(line, found, grid, out=options.out, progress=not options.quiet, **how(options))
    for name in surface.tasks:
        losses, errors = surface.at_anchors(name), surface.at_anchors(name, "error")
        ends = ", ".join(
            f"{who}: loss {x:.4f}, error {y:.2f} %" for who, x, y in zip(surface.names, losses, errors, strict=True)
        )
        print(f"{name}: {ends}")
    draw_line(surface, options.out.with_suffix(".png"))
    print(f"written: {options.out.with_suffix('.npz')}, .json and .png")
    return 0
