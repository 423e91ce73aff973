"""What moving the weights costs on CUDA: w → w + n → w → w − n → w with kernels of our own and with torch's operations.

    PYTHONPATH=src python benchmarks/noise.py --out benchmarks/results/noise-cuda.json

Times of single moves are the device's: the moves are queued behind a kernel that sleeps, so that no launch is waited
for. ``_eager`` rows are the whole cycle as a step without a CUDA graph sees it. Bytes are counted by hand, each tensor
read or written once a pass over it, and the limit is the rate of a large copy in the same run; what fits the L2 cache
can be faster than that.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from measure import CudaMeter, Row, interleaved, ratio, report, spread
from ssgd.core.moving import Chosen
from ssgd.core.noise import DISTRIBUTIONS
from ssgd.core.weights import NoisyWeights
from ssgd.kernels.noise import FusedWeights
from ssgd.lab import models

NETS = {"resnet20": ("resnet20", 100), "wrn28_4": ("wrn28-4", 100), "resnet50": ("imagenet-resnet50", 1000)}
MOVES = ("plus", "rest", "minus", "restore")
# Reads and writes of all weights in each move. With torch, plus draws (1), takes two norms (2), scales (2), copies (2)
# and adds (3); minus copies (2) and subtracts (3); rest and restore copy (2).
PASSES = {
    "fused": {"plus": 4, "rest": 2, "minus": 4, "restore": 2},
    "torch": {"plus": 10, "rest": 2, "minus": 5, "restore": 2},
}
ASLEEP = 20_000_000  # clock cycles, about 10 ms: longer than it takes to queue a cycle


def main() -> None:
    options = parse_options()
    if not torch.cuda.is_available():
        sys.exit("this benchmark needs a CUDA device, and torch sees none here")
    device = torch.device("cuda", torch.cuda.current_device())
    limit = copy_rates(options.repeats, device)
    rows = [Row("copy_limit", statistics.median(limit), "GB/s", options.repeats, spread(limit))]
    for name, (model, classes) in NETS.items():
        torch.manual_seed(0)
        net = models.build(model, classes).to(device)
        weights = [p for p in net.parameters() if p.dim() > 1]
        rows += net_rows(name, weights, rows[0].value, options.repeats, device)
    report(rows, device, options.out)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=30, help="default: 30")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "noise-cuda.json")
    return parser.parse_args()


def net_rows(name: str, weights: Sequence[Tensor], limit: float, repeats: int, device: torch.device) -> list[Row]:
    cycles = {"fused": Cycle(weights, fused=True), "torch": Cycle(weights, fused=False)}
    times: dict[str, list[list[float]]] = {form: [] for form in cycles}
    for _ in range(repeats + 1):
        for form, cycle in cycles.items():
            times[form].append(cycle.device_seconds())
    found = []
    for form, cycle in cycles.items():
        by_move = list(zip(*times[form][1:], strict=True))  # the first builds and allocates
        for move, seconds in zip(MOVES, by_move, strict=True):
            moved = PASSES[form][move] * cycle.bytes
            found += device_rows(f"{name}_{move}_{form}", seconds, moved, limit)
        whole = [sum(one) for one in times[form][1:]]
        found += device_rows(f"{name}_cycle_{form}", whole, sum(PASSES[form].values()) * cycle.bytes, limit)
        found.append(Row(f"{name}_peak_{form}", cycle.peak(device) / cycle.bytes, "× weights", 1))
    eager = interleaved({form: cycle.run for form, cycle in cycles.items()}, repeats, device)
    for form, cycle_seconds in eager.items():
        us = [1e6 * t for t in cycle_seconds]
        found.append(Row(f"{name}_cycle_{form}_eager", statistics.median(us), "µs", repeats, spread(us)))
    found.append(ratio(f"{name}_cycle_torch_over_fused_eager", eager["torch"], eager["fused"]))
    return found


def device_rows(name: str, seconds: Sequence[float], moved: int, limit: float) -> list[Row]:
    """The time, and the rate at which bytes were moved as a part of the limit."""
    us = [1e6 * t for t in seconds]
    parts = [moved / t / 1e9 / limit for t in seconds]
    return [
        Row(name, statistics.median(us), "µs", len(us), spread(us), detail={"bytes": moved}),
        Row(f"{name}_of_limit", statistics.median(parts), "× copy rate", len(us), spread(parts)),
    ]


class Cycle:
    """w → w + n → w → w − n → w, for one list of weights."""

    def __init__(self, weights: Sequence[Tensor], fused: bool) -> None:
        kind = FusedWeights if fused else NoisyWeights
        self.weights = kind([Chosen(w, 0, i) for i, w in enumerate(weights)], DISTRIBUTIONS["sphere"])
        self.bytes = sum(w.numel() * w.element_size() for w in weights)

    def run(self) -> None:
        for move in MOVES:
            self.go(move)

    def go(self, move: str) -> None:
        if move in ("plus", "minus"):
            self.weights.move(1 if move == "plus" else -1, (0, 0, 0), 0, [0.1], again=move == "plus")
        else:
            self.weights.restore()

    def device_seconds(self) -> list[float]:
        """Of each move, with the device always busy."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(len(MOVES) + 1)]
        torch.cuda.synchronize()
        torch.cuda._sleep(ASLEEP)
        events[0].record()
        for move, event in zip(MOVES, events[1:], strict=True):
            self.go(move)
            event.record()
        torch.cuda.synchronize()
        return [a.elapsed_time(b) / 1000 for a, b in pairwise(events)]

    def peak(self, device: torch.device) -> int:
        """Bytes beyond those there before, at any moment of a cycle."""
        meter = CudaMeter(device)
        meter.reset_peak()
        self.run()
        return meter.peak()


def copy_rates(repeats: int, device: torch.device, size: int = 2**31) -> list[float]:
    """GB/s read and written by copies of ``size`` bytes."""
    source = torch.zeros(size, dtype=torch.uint8, device=device).random_()
    target = torch.empty_like(source)
    seconds = interleaved({"copy": lambda: target.copy_(source)}, repeats, device)["copy"]
    return [2 * size / t / 1e9 for t in seconds]


if __name__ == "__main__":
    main()
