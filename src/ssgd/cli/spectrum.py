"""The density of the Hessian's eigenvalues, its ends and its trace, for one solution or several."""

from __future__ import annotations

import argparse
import math

from .arguments import (
    add_graph,
    add_precision,
    add_solutions,
    execution,
    file_of,
    refuse_several_processes,
    short_names,
)

NEEDS = ("matplotlib",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_solutions(parser, "Each has a curve of its own.")
    parser.add_argument("--steps", type=int, default=90, help="The number of steps of Lanczos (default: 90).")
    parser.add_argument("--probes", type=int, default=5, help="The number of random vectors (default: 5).")
    parser.add_argument("--seed", type=int, default=0, help="The seed of the random vectors (default: 0).")
    add_precision(parser, bf16=False)
    parser.add_argument(
        "--together",
        type=int,
        default=1,
        metavar="N",
        help="Takes N probes in one pass: faster, in N times the memory.",
    )
    add_graph(parser)


def run(options: argparse.Namespace) -> int:
    refuse_several_processes("spectrum")
    from ..analysis import Hessian, draw_spectrum, save, spectrum
    from ..lab.solutions import solutions, tasks

    spectra = {}
    for found in solutions(options.solutions):
        task = tasks(found, execution(options), options.limit)["train"]
        matrix = Hessian(task, precision=options.precision, together=options.together, graph=options.graph)
        one = spectrum(matrix, options.steps, options.probes, options.seed, progress=not options.quiet)
        spectra[found.name] = one
        mean, error = (values[0] * one.parameters for values in one.moments(1))
        spread = "" if math.isnan(error) else f" ± {error:.2g}"  # a single probe has none
        print(
            f"{found.name}: largest {one.largest:.4g}, smallest {one.smallest:.4g}, trace {mean:.4g}{spread}"
            f" ({one.product} products, batch-norm in {one.mode} mode, {one.passes:.0f} passes over the data,"
            f" {one.seconds:.0f} s)"
        )
        save(one, file_of(found, options))
    drawn = dict(zip(short_names(list(spectra)), spectra.values(), strict=True))
    draw_spectrum(drawn, options.out / "spectrum.png")
    print(f"written: spectrum.png, and an .npz and a .json of each in {options.out}")
    return 0
