"""What a step of each method costs: passes, time, memory and operator calls beside SGD's.

    python benchmarks/methods.py --device cpu

prints a row a method and writes it as JSON. Time is the step over that of plain SGD, measured in turn in the same run;
memory is what is held at the end of a pass, or kept between steps, beyond SGD's, in copies of the parameters; operator
calls are those of ResNet18's 62 tensors, as in optimizer.py beside this file.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.optim import SGD

from calls import count
from measure import Row, interleaved, ratio, report
from memory import footprint
from nets import resnet18
from optimizer import prefer_speed
from ssgd.methods import METHODS, Method
from times import Bench, Setting
from ways import Pass, Way

ALONE = [m for m in METHODS.values() if m.name != "mirror"]  # mirror needs ranks; its step is `noise`'s
SKIPPED_TRANSFORMS = ("dropout", "dropconnect")  # they act inside the passes, on modules, not on parameters


def main() -> None:
    options = parse_options()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    device = torch.device(options.device)
    chosen = [m for m in ALONE if not options.only or m.name in options.only]
    rows = [Row(f"{m.name}_passes", m.passes, "passes", 1) for m in chosen]
    rows += calls_and_memory(chosen, device)
    prefer_speed()
    rows += step_times(chosen, device, options.repeats)
    report(rows, device, options.out or Path(__file__).parent / "results" / f"methods-{device.type}.json")


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default: cpu)")
    parser.add_argument("--repeats", type=int, default=9, help="rounds of step times (default: 9)")
    parser.add_argument("--only", nargs="*", choices=[m.name for m in ALONE], help="some of the methods")
    parser.add_argument("--out", type=Path, help="JSON file (default: benchmarks/results/methods-<device>.json)")
    return parser.parse_args()


def calls_and_memory(chosen: list[Method], device: torch.device) -> list[Row]:
    """Beyond plain SGD's, for ResNet18's tensors without their net."""
    base = {"lr": 0.1, "momentum": 0.9, "foreach": True}
    sgd = partial(by_parameters, METHODS["base"], **base)
    own_calls, own = count(sgd, device, 1), footprint(sgd, device)
    size = sum(p.numel() * p.element_size() for p in resnet18().parameters())
    found = []
    for method in chosen:
        if method.name in SKIPPED_TRANSFORMS:
            continue
        build = partial(by_parameters, method, **base)
        calls: Counter[str] = count(build, device, 1)
        used = footprint(build, device)
        found += [
            Row(f"{method.name}_operator_calls", calls.total() - own_calls.total(), "calls", 1, detail=dict(calls)),
            Row(f"{method.name}_memory_in_pass", (used.held - own.held) / size, "× parameters", 1),
            Row(f"{method.name}_memory_kept", (used.kept - own.kept) / size, "× parameters", 1),
        ]
    return found


def step_times(chosen: list[Method], device: torch.device, repeats: int) -> list[Row]:
    """Each method on the net of optimizer.py's times, one after the other, again and again."""
    steps = {}
    for method in [METHODS["base"], *(m for m in chosen if m.name != "base")]:
        bench = Bench(Setting(channels_last=True, fused=False), device)
        way = by_net(method, bench.net, lr=1e-3, momentum=0.9, weight_decay=1e-4, foreach=True)
        steps[method.name] = partial(way.step, bench._run, bench.x, bench.y)
    seconds = interleaved(steps, repeats, device)
    return [ratio(f"{m.name}_time_over_sgd", seconds[m.name], seconds["base"]) for m in chosen]


def by_parameters(method: Method, parameters: list[nn.Parameter], **base: object) -> Way:
    """The method around SGD, for parameters without a net."""
    return by_net(method, nn.ParameterList(parameters), **base)


def by_net(method: Method, net: nn.Module, **base: object) -> Way:
    optimizer = method.build(SGD(net.parameters(), **base), net)  # type: ignore[arg-type]

    def step(run: Pass, x: torch.Tensor, y: torch.Tensor) -> None:
        for point, (xb, yb) in method.batches(optimizer, x, y):
            with point:
                run(xb, yb)
        optimizer.step()
        optimizer.zero_grad()

    return Way(optimizer, step)


if __name__ == "__main__":
    main()
