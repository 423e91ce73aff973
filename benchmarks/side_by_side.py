"""Language models side by side on one GPU: what a step of each costs, with few and with many connections to the device.

    PYTHONPATH=src python benchmarks/side_by_side.py --out benchmarks/results/side-by-side-cuda.json

A step is S-SGD's of the small LSTM as `ssgd train` drives it, on words drawn at random. The number of connections is
read once, when CUDA starts, so that each has a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, replace
from pathlib import Path

import torch

from measure import Row, report, spread
from ssgd.cli.main import CONNECTIONS
from ssgd.lab.data import load
from ssgd.lab.experiments import get
from ssgd.lab.train.distributed import Ranks
from ssgd.lab.train.engine import set_up
from ssgd.lab.train.recipe import Execution
from ssgd.lab.train.running import Run

COUNTS = (1, 2, 4, 8, 12)
WORDS, IN_A_STEP = 10_000, 20 * 35


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu tries the script out")
    parser.add_argument("--model", default="lstm-small", help="of `ssgd models`")
    parser.add_argument("--runs", type=int, nargs="+", default=COUNTS, help="how many side by side")
    parser.add_argument("--steps", type=int, default=30, help="of each run in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, default=Path("build/side-by-side.json"))
    parser.add_argument("--text", help=argparse.SUPPRESS)  # what a process of its own is started with
    options = parser.parse_args()
    if options.text:
        for row in measured(options):
            print(json.dumps(asdict(row)))
        return
    rows = []
    with tempfile.TemporaryDirectory() as text:
        write(Path(text), options.steps * (options.rounds + 1))
        for connections in ("8", CONNECTIONS):
            print(f"{connections} connections", flush=True)
            done = subprocess.run(
                [sys.executable, *sys.argv, "--text", text],
                env={**os.environ, "CUDA_DEVICE_MAX_CONNECTIONS": connections},
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            rows += [Row(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
    report(rows, torch.device(options.device), options.out)


def write(folder: Path, steps: int) -> None:
    """An epoch of so many steps, and each word at least once."""
    draw = random.Random(0)
    words = [f"w{number}" for number in range(WORDS)]
    enough = max(WORDS, (steps + 1) * IN_A_STEP)
    for part, length in {"train": enough, "valid": 2_000, "test": 2_000}.items():
        known = [*words, *draw.choices(words, k=length - WORDS)] if part == "train" else draw.choices(words, k=length)
        lines = (" ".join(known[at : at + 20]) for at in range(0, length, 20))
        (folder / f"random.{part}.txt").write_text("\n".join(lines) + "\n")


def measured(options: argparse.Namespace) -> list[Row]:
    """In this process, with the connections it was started with."""
    device = torch.device(options.device)
    recipe = replace(
        get("other_tasks/ptb-small/both"), model=options.model, data=options.text, phases="1000S", lr=(1.0,)
    )
    recipe = recipe.resolved(device.type)
    set_up(recipe, Execution(device=device.type))
    source = load(recipe.data, device=device, dtype=torch.float32)
    rows = []
    for count in options.runs:
        runs = [
            Run(recipe, seed, source, device, Ranks(), Execution(graph=device.type == "cuda")) for seed in range(count)
        ]
        times = [seconds(runs, options.steps) for _ in range(options.rounds + 1)][1:]  # the first captures the graph
        each = [1e3 * taken / options.steps / count for taken in times]
        name = f"lstm_{count}_runs_{os.environ['CUDA_DEVICE_MAX_CONNECTIONS']}_connections"
        rows.append(Row(name, statistics.median(each), "ms a run's step", options.rounds, spread(each)))
    return rows


def seconds(runs: list[Run], steps: int) -> float:
    started = time.perf_counter()
    for _ in range(steps):
        for run in runs:
            run.step()
    if runs[0].device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
