"""What a step of S-SGD costs beside the passes: operator calls, memory, time.

    python benchmarks/optimizer.py --device cpu

prints a table and writes it as JSON. **Operator calls** are top-level calls on the optimizer's side in one step for
the 62 tensors of ResNet18, beyond the base's own step: those torch.profiler records with no other operator as their
caller, while gradients are put into ``p.grad`` without calling any. A foreach call over all tensors counts once.
**Memory** is beyond that of the base, in bytes or in copies of the weights that get noise. **Times** are ratios to the
step of the fastest SGD found, all ways measured in turn in the same run. README.md beside this file explains every row.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

import calls
import graphs
import memory
import times
import ways
from measure import CLOCKS, report


def main() -> None:
    options = parse_options()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler writes two lines a measurement
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here: use --device cpu")
    if options.threads:
        torch.set_num_threads(options.threads)
    if not ways.has_sam():
        print("pytorch_optimizer is not installed, so the rows of its SAM are left out.")
    rows = calls.rows(device, repeats=1 if options.quick else 3) + memory.rows(device)
    prefer_speed()
    repeats = options.repeats or (3 if options.quick else 61 if device.type == "cpu" else 15)
    rows += times.rows(device, repeats, options.compile, CLOCKS[options.clock])
    if device.type == "cuda":
        rows += graphs.rows(device, repeats=3 if options.quick else 15)
    report(rows, device, options.out or Path(__file__).parent / "results" / f"optimizer-{device.type}.json")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default: cpu)")
    parser.add_argument("--quick", action="store_true", help="few repeats: to see that it runs, not to quote figures")
    parser.add_argument("--repeats", type=int, help="rounds of step times (default: CPU 61, CUDA 15, with --quick 3)")
    parser.add_argument("--threads", type=int, help="torch's CPU threads (default: as torch chooses)")
    parser.add_argument(
        "--clock",
        choices=tuple(CLOCKS),
        default="wall",
        help="CPU: what step times are read from; on a machine that is busy take cpu, with --threads 1 (default: wall)",
    )
    parser.add_argument("--compile", action="store_true", help="CUDA: try torch.compile for the net too")
    parser.add_argument("--out", type=Path, help="JSON file (default: benchmarks/results/optimizer-<device>.json)")
    return parser.parse_args()


def prefer_speed() -> None:
    """What a user who wants SGD fast would set."""
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")


if __name__ == "__main__":
    main()
