"""The density of the Hessian's eigenvalues, its ends and its trace, for one solution or several."""

from __future__ import annotations

import argparse
import math

from .arguments import RUN, add_graph, add_options, add_precision, execution, refuse_several_processes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("solutions", nargs="+", metavar="RUN", help=RUN)
    parser.add_argument("--steps", type=int, default=90, help="The number of steps of Lanczos (default: 90).")
    parser.add_argument("--probes", type=int, default=5, help="The number of random vectors (default: 5).")
    parser.add_argument("--seed", type=int, default=0, help="The seed of the random vectors (default: 0).")
    add_precision(parser)
    parser.add_argument(
        "--together",
        type=int,
        default=1,
        metavar="N",
        help="Takes N probes in one pass: faster, in N times the memory.",
    )
    add_graph(parser)
    add_options(parser, "spectrum")


def run(options: argparse.Namespace) -> int:
    refuse_several_processes("spectrum")
    from ..analysis import Hessian, draw_spectrum, save, spectrum
    from ..analysis.results import with_ending
    from ..lab.solutions import solution, tasks

    carried_out, spectra = execution(options), {}
    for number, path in enumerate(options.solutions):
        found = solution(path)
        task = tasks(found, carried_out, options.limit)["train"]
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
        save(one, with_ending(options.out, f"-{number}" if len(options.solutions) > 1 else ""))
    draw_spectrum(spectra, with_ending(options.out, ".png"))
    print(f"written: {with_ending(options.out, '')}*.npz, .json and {with_ending(options.out, '.png')}")
    return 0
