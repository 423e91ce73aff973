"""Loss and error over the plane through three solutions, and a picture of each."""

from __future__ import annotations

import argparse

from .arguments import add_solutions
from .line import KEPT, NEEDS, add_grid, evaluated

__all__ = ["KEPT", "NEEDS", "add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_solutions(parser, "Three of the same net.")
    add_grid(parser, points=21, margin=0.2)


def run(options: argparse.Namespace) -> int:
    from ..analysis import Plane, draw_plane

    surface = evaluated(Plane, options, count=3)
    if surface is None:
        return 0
    for name in surface.tasks:
        draw_plane(surface, name, path=options.out / f"plane-{name}.png")
    print(f"written: plane.npz, .json, and a .png of each part of the data in {options.out}")
    return 0
