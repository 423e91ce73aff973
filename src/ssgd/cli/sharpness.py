"""Sharpness of a minimum under S-SGD's noise, in SAM's direction, and in Keskar's box; a level that suits it."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import append_line
from .arguments import add_solutions, execution, file_of, refuse_several_processes

if TYPE_CHECKING:
    from ..lab.solutions import Solution

PAIRS = 10
NEEDS = ("scipy", "matplotlib")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_solutions(parser, "Each is measured on its training data.")
    parser.add_argument(
        "--level", type=float, default=0.1, help="The level of noise of the run's distribution (default: 0.1)."
    )
    parser.add_argument(
        "--pairs", type=int, help="The pairs of noise (default: 10, and 4 at each level of --find-level)."
    )
    parser.add_argument("--rho", type=float, default=0.05, help="The length of SAM's climb (default: 0.05).")
    parser.add_argument("--epsilon", type=float, default=1e-3, help="The size of Keskar's box (default: 0.001).")
    parser.add_argument(
        "--subspace", type=int, default=100, help="The dimension of Keskar's subspace; 0 is the full space."
    )
    parser.add_argument(
        "--find-level", action="store_true", help="Draws the excess against the level, and suggests a level."
    )
    parser.add_argument("--seed", type=int, default=0, help="The seed of the noise (default: 0).")
    parser.add_argument("--results", type=Path, metavar="FILE", help="A file that gets a line of JSON for each run.")


def run(options: argparse.Namespace) -> int:
    refuse_several_processes("sharpness")
    from ..lab.solutions import solutions

    several = solutions(options.solutions)
    for found in several:
        if len(several) > 1:
            print(f"{found.name}:")
        row = measure(found, options)
        if options.results is not None:
            append_line(options.results, json.dumps(row, allow_nan=False))
    print(f"written: an .npz and a .json of each measure in {options.out}")
    return 0


def measure(found: Solution, options: argparse.Namespace) -> dict[str, Any]:
    """Measures, prints and writes the sharpness of one solution; returns its row."""
    from ..analysis import find_level, keskar, sam_sharpness, save, symmetric_excess
    from ..lab.solutions import tasks

    name = file_of(found, options)
    distribution, task = found.recipe.distribution, tasks(found, execution(options), options.limit)["train"]
    pairs = PAIRS if options.pairs is None else options.pairs
    excess = symmetric_excess(task, options.level, distribution=distribution, pairs=pairs, seed=options.seed)
    if not math.isfinite(excess.clean):
        raise ValueError(f"{found.name} holds weights that are not finite, or its loss is not: {excess.clean}")
    if not math.isfinite(excess.mean):
        raise ValueError(f"the loss of {found.name} is not finite at level {options.level:g}: lower --level")
    sd = excess.sd if pairs > 1 else None
    spread = "" if sd is None else f" ± {sd:.5f}, worst {excess.worst:.5f}"
    print(f"symmetric excess at level {options.level:g} ({distribution}): {excess.mean:.5f}{spread}")
    save(excess, f"{name}-excess")
    sam = sam_sharpness(task, options.rho)
    print(f"SAM's at rho {options.rho:g}: {sam.value:.5f}, to first order {sam.first_order:.5f}")
    save(sam, f"{name}-sam")
    box = keskar(task, options.epsilon, subspace=options.subspace or None, seed=options.seed)
    where = f"a subspace of {options.subspace}" if options.subspace else "the full space"
    print(f"Keskar's at epsilon {options.epsilon:g} in {where}: {box.value:.3f}")
    save(box, f"{name}-keskar")
    if options.find_level:
        pairs_asked = {} if options.pairs is None else {"pairs": options.pairs}
        curve = find_level(task, distribution=distribution, seed=options.seed, **pairs_asked)
        print(curve.verdict)
        save(curve, f"{name}-level")
        curve.draw(f"{name}-level.png")
    asked = {name: getattr(options, name) for name in ("limit", "level", "rho", "epsilon", "subspace")}
    return {
        "experiment": found.recipe.name,
        "seed": found.recipe.seeds[0],
        "loss": excess.clean,
        "excess": excess.mean,
        "excess_sd": sd,
        "sam": sam.value,
        "keskar": box.value,
        **asked,
        "pairs": pairs,
        "distribution": distribution,
        "noise_seed": options.seed,
    }
