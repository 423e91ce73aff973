"""Reproduce tables and figures of the paper, or questions of our own; without a name, list them.

Runs that have a row in the results are not made again, and what was cut goes on. Those of several names go side by
side on a GPU, and what two of them need is trained once.
"""

from __future__ import annotations

import argparse
import sys

from .arguments import add_data_and_device, add_on

KEPT = "the last checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="An experiment, such as table2, fig3 or equal_cost; one or several."
    )
    parser.add_argument(
        "--scale",
        choices=("smoke", "small", "paper"),
        default="paper",
        help="How much of it: smoke takes seconds on embedded data, small has fewer seeds, paper is all (default).",
    )
    parser.add_argument(
        "--seeds", type=int, nargs="+", metavar="N", help="The seeds, instead of those of the experiment."
    )
    parser.add_argument(
        "--only", nargs="+", metavar="PATTERN", help="Makes only runs whose name holds it, such as 'resnet20/*/seed-0'."
    )
    parser.add_argument("--limit", type=int, metavar="N", help="Makes only the first N missing runs, seed by seed.")
    parser.add_argument(
        "--minutes", type=float, metavar="N", help="Stops after N minutes with all saved: the same command goes on."
    )
    parser.add_argument("--plan", action="store_true", help="Lists what is missing and what it costs, and stops.")
    parser.add_argument("--out", default="runs", help="The folder that gets a folder for each run (default: runs).")
    parser.add_argument(
        "--results", default="results", metavar="DIR", help="The folder of the rows (default: results)."
    )
    add_data_and_device(parser)
    parser.add_argument(
        "--at-once", type=int, default=12, metavar="N", help="The number of runs side by side on a GPU (default: 12)."
    )
    parser.add_argument("--deterministic", action="store_true", help="Gives the same bits every time, somewhat slower.")
    add_on(parser)


def run(options: argparse.Namespace) -> int:
    from ..core.checks import check_count
    from ..lab import experiments
    from ..lab.experiments import wording
    from ..lab.experiments.running import carry_out
    from ..lab.train.distributed import is_first_process
    from ..lab.train.recipe import Execution
    from .progress import Progress

    if options.limit is not None:
        check_count("limit", options.limit)
    results = experiments.Results(options.results)
    if not options.names:
        print(wording.listing(options.scale, results, options.out))
        return 0
    chosen = [experiments.experiment(name) for name in dict.fromkeys(options.names)]
    same = ("out", "folder", "device", "at_once", "deterministic", "minutes")
    execution = Execution(**{name: getattr(options, name) for name in same}, progress=True)
    part = {"seeds": options.seeds, "only": options.only}
    plans = experiments.plans(chosen, options.scale, results, options.out, **part)
    if is_first_process():
        print(wording.of_plans(plans, results, execution, options.limit), flush=True)
        if options.plan and any(plan.to_do for plan in plans):
            print(wording.to_do(plans, options.limit))
    if options.plan:
        return 0
    failures = carry_out(plans, execution, results, limit=options.limit, on=options.on, listener=Progress)
    if is_first_process():
        after = experiments.plans(chosen, options.scale, results, options.out, **part)
        print("\n\n".join(wording.outcome(plan, results) for plan in after))
    for name, sentence in failures.items():
        print(f"{name} failed: {sentence}", file=sys.stderr)
    return int(bool(failures))
