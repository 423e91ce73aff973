"""How fast whole trainings go on one GPU: the engine's steps, one run and many, against SAM and the limits.

    PYTHONPATH=src python benchmarks/speed.py --out benchmarks/results/speed-cuda.json [--only NAME …]

Every run goes through the engine as `ssgd train` drives it: augmentation, schedule and metrics included. The images are
random bytes, which no kernel can tell from real ones.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F

from limits import copy_rate, limit, product_rate
from measure import Row, ratio, report, spread
from ssgd.lab import models
from ssgd.lab.data.images import DeviceImages, ImageSet
from ssgd.lab.train.distributed import Ranks
from ssgd.lab.train.engine import set_up
from ssgd.lab.train.kinds import Images
from ssgd.lab.train.recipe import Execution, Recipe
from ssgd.lab.train.running import Run
from vmapped import VmappedStep

DEVICE = torch.device("cuda", 0)
ROUNDS = 7


@dataclass(frozen=True)
class Case:
    """A run to be timed."""

    method: str
    model: str = "resnet20"
    batch: int = 128
    pair: bool = True  # S-SGD's passes at the same time
    vmapped: bool = False  # or as one vmapped pass

    def __str__(self) -> str:
        way = "vmapped" if self.vmapped else "" if self.pair else "one after the other"
        return f"{self.model} {self.method} batch {self.batch} {way}".rstrip()


RESNET20 = {
    "sgd": Case("base"),
    "both": Case("both:0.2"),
    "both_in_turn": Case("both:0.2", pair=False),
    "both_stacked": Case("both:0.2", vmapped=True),
    "split": Case("split:0.15"),
    "split_in_turn": Case("split:0.15", pair=False),
    "split_stacked": Case("split:0.15", vmapped=True),
    "halves": Case("halves"),
    "sam": Case("sam:0.05"),
}
WRN = {
    name: replace(RESNET20[name], model="wrn28-4")
    for name in ("sgd", "both", "both_in_turn", "both_stacked", "split", "split_in_turn")
}
LARGE = {name: replace(WRN[name], batch=512) for name in ("sgd", "both", "split")}
SIX = ("sgd", "both", "split", "halves")
PARTS = ["resnet20", "packed", "six", "sam", "wrn28_4", "first_step"]


def main() -> None:
    options = parse_options()
    if not torch.cuda.is_available():
        sys.exit("this benchmark measures a GPU, and torch sees none here")
    if options.prepare:
        Bench(options).run(Case(**json.loads(options.prepare)))
        return
    asked = options.only or PARTS
    cases = [*RESNET20.values()] if {"resnet20", "six"} & {*asked} else [RESNET20[n] for n in ("sgd", "both", "sam")]
    cases += [*WRN.values(), *LARGE.values()] if "wrn28_4" in asked else []
    prepare(cases, [word for word in ("--cudnn", "--eager") if getattr(options, word[2:])])
    bench = Bench(options)
    parts: dict[str, Callable[[], list[Row]]] = {
        "resnet20": bench.resnet20,
        "packed": bench.packed,
        "six": bench.six,
        "sam": bench.sam,
        "wrn28_4": bench.wrn,
        "first_step": first_step,
    }
    rows: list[Row] = []
    for name, part in parts.items():
        if name in asked:
            rows += part()
            report(rows, DEVICE, options.out)
    if options.profile:
        bench.profile(options.profile)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/speed-cuda.json"))
    parser.add_argument("--only", nargs="+", default=[], choices=PARTS, help="parts of it")
    parser.add_argument("--profile", type=Path, help="a folder for kernel tables of one step")
    parser.add_argument("--packs", nargs="+", type=int, default=[6, 12], help="how many runs side by side")
    parser.add_argument("--cudnn", action="store_true", help="convolutions by cuDNN alone")
    parser.add_argument("--eager", action="store_true", help="no torch.compile")
    parser.add_argument("--prepare", help=argparse.SUPPRESS)
    return parser.parse_args()


def prepare(cases: Sequence[Case], words: Sequence[str]) -> None:
    """Compile all in processes side by side: torch keeps what they make, and the runs to be timed find it."""
    began = time.perf_counter()
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            [sys.executable, __file__, *words, "--prepare", json.dumps(asdict(case))],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for case in cases
    ]
    for process in started:
        process.wait()
    print(f"{len(cases)} cases compiled in {time.perf_counter() - began:.0f} s", flush=True)


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.recipe = Recipe(phases="1000", lr=(0.1,)).resolved("cuda")
        set_up(self.recipe, Execution())  # before the data, as the engine does
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (50_000, 3, 32, 32), dtype=torch.uint8, generator=generator)
        labels = torch.randint(0, 100, (50_000,), generator=generator)
        self.source = DeviceImages(
            ImageSet("random", images, labels, images[:1000], labels[:1000], 100), DEVICE, torch.bfloat16
        )
        self.ready: dict[tuple[Case, int], Run] = {}

    def run(self, case: Case, copy: int = 0) -> Run:
        """A run, warmed up: compiled and captured. Kept for those who ask again."""
        if (case, copy) not in self.ready:
            self.ready[case, copy] = self._warmed_up(case, seed=copy % 4)
        return self.ready[case, copy]

    def _warmed_up(self, case: Case, seed: int) -> Run:
        name, _, level = case.method.partition(":")
        recipe = replace(
            self.recipe, model=case.model, method=name, level=float(level) if level else None, batch=case.batch
        )
        compiled = not self.options.eager
        run = Run(
            recipe,
            seed,
            self.source,
            DEVICE,
            Ranks(),
            Execution(
                compile=compiled,
                graph=True,
                kernels=not self.options.cudnn and not case.vmapped,  # vmap does not know them
                pair=case.pair,
            ),
        )
        if case.vmapped:
            run._eager = VmappedStep(
                run.method, run.opt, run.model, Images.objective, run.autocast, run.sums, compiled=compiled
            )
        began = time.perf_counter()
        for _ in range(3):
            step(run)
        torch.cuda.synchronize()
        print(f"ready: {case}, {time.perf_counter() - began:.1f} s", flush=True)
        return run

    def resnet20(self) -> list[Row]:
        runs = {name: self.run(case) for name, case in RESNET20.items() if name != "sam"}
        times = in_turn({name: lambda run=run: step(run) for name, run in runs.items()}, 200)
        rate = [128 / t for t in times["sgd"]]
        found = [Row("resnet20_sgd_images_per_s", statistics.median(rate), "images/s", ROUNDS, spread(rate))]
        found += [ratio(f"resnet20_{name}_over_sgd", times[name], times["sgd"]) for name in runs if name != "sgd"]
        found += self.of_limits("resnet20", "resnet20", 128, times["sgd"])
        return found + [host_time(name, runs[name]) for name in ("sgd", "both", "split")]

    def packed(self) -> list[Row]:
        """Many SGD runs side by side, each with its own graph and stream."""
        found, runs = [], []
        for count in self.options.packs:
            while len(runs) < count:
                runs.append(self.run(RESNET20["sgd"], copy=len(runs)))
            times = in_turn({"all": lambda: [step(run) for run in runs]}, 100)["all"]
            rate = [count * 128 / t for t in times]
            found.append(
                Row(f"resnet20_packed_{count}_per_s", statistics.median(rate), "images/s", ROUNDS, spread(rate))
            )
        best = max(found, key=lambda row: row.value)
        return [*found, replace(best, name="resnet20_packed_per_s")]

    def six(self) -> list[Row]:
        """A device that is full: what S-SGD's ways cost with six runs side by side, over six of SGD."""
        packs = {name: [self.run(RESNET20[name], copy=i) for i in range(6)] for name in SIX}
        times = in_turn({name: lambda runs=runs: [step(run) for run in runs] for name, runs in packs.items()}, 50)
        return [ratio(f"resnet20_six_{name}_over_sgd", times[name], times["sgd"]) for name in SIX[1:]]

    def wrn(self) -> list[Row]:
        found: list[Row] = []
        for prefix, cases in (("wrn28_4", WRN), ("wrn28_4_batch512", LARGE)):
            runs = {name: self.run(case) for name, case in cases.items()}
            times = in_turn({name: lambda run=run: step(run) for name, run in runs.items()}, 40)
            rate = [cases["sgd"].batch / t for t in times["sgd"]]
            found.append(Row(f"{prefix}_sgd_images_per_s", statistics.median(rate), "images/s", ROUNDS, spread(rate)))
            found += [ratio(f"{prefix}_{name}_over_sgd", times[name], times["sgd"]) for name in runs if name != "sgd"]
            found += self.of_limits(prefix, "wrn28-4", cases["sgd"].batch, times["sgd"])
        return found

    def of_limits(self, prefix: str, model: str, batch: int, times: list[float]) -> list[Row]:
        """The least time that bytes and operations allow, over the time taken."""
        least = limit(models.build(model, 100), batch)
        moved, computed = least.bytes / copy_rate(DEVICE), least.operations / product_rate(DEVICE)
        rows = []
        for name, bound in (("bytes", moved), ("operations", computed)):
            shares = [bound / t for t in times]
            row = Row(f"{prefix}_sgd_of_{name}_limit", statistics.median(shares), "of 1", ROUNDS, spread(shares))
            rows.append(replace(row, detail={"limit": batch / bound, "unit": "images/s"}))
        return rows

    def sam(self) -> list[Row]:
        both, graph = self.run(RESNET20["both"]), self.run(RESNET20["sam"])
        steps = {"both": lambda: step(both), "graph": lambda: step(graph)}
        eager = self.eager_sam()
        if eager is not None:
            steps["eager"] = eager
        times = in_turn(steps, 100)
        return [ratio(f"sam_{name}_over_both", times[name], times["both"]) for name in steps if name != "both"]

    def eager_sam(self) -> Callable[[], None] | None:
        """pytorch_optimizer's SAM as its documentation has it: two passes, first and second step."""
        try:
            from pytorch_optimizer import SAM
        except ImportError:
            print("pytorch_optimizer is not installed: its SAM is left out")
            return None
        net = models.build("resnet20", 100).to(DEVICE).to(memory_format=torch.channels_last)
        opt = SAM(net.parameters(), torch.optim.SGD, rho=0.05, lr=0.1, momentum=0.9, weight_decay=1e-4)
        epoch = self.source.epoch(0, 0)
        at = 0

        def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            with torch.autocast("cuda", torch.bfloat16):
                return F.cross_entropy(net(x), y)

        def one() -> None:
            nonlocal at
            x, y = epoch.batch(at % 390, 128)
            at += 1
            loss(x, y).backward()
            opt.first_step(zero_grad=True)
            loss(x, y).backward()
            opt.second_step(zero_grad=True)

        return one

    def profile(self, folder: Path) -> None:
        """The kernels of a step, by time."""
        folder.mkdir(parents=True, exist_ok=True)
        shown = {name: RESNET20[name] for name in ("sgd", "both", "split")}
        for name, case in (shown | {f"wrn28_4_{name}": WRN[name] for name in ("sgd", "split")}).items():
            run = self.run(case)
            kernels: dict[str, list[float]] = defaultdict(list)
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiled:
                for _ in range(10):
                    step(run)
                torch.cuda.synchronize()
            for event in profiled.events() or ():
                if event.device_type == torch.autograd.DeviceType.CUDA:
                    kernels[event.name].append(event.device_time)
            table = sorted(kernels.items(), key=lambda item: -sum(item[1]))
            lines = [
                f"{sum(t) / 10:9.1f} us {len(t) / 10:6.1f} calls {statistics.mean(t):7.2f} us each  {k[:150]}"
                for k, t in table
            ]
            sums: dict[str, list[float]] = defaultdict(list)
            for kernel, found in kernels.items():
                sums[part_of_step(kernel)] += found
            parts = [f"{part}: {sum(t) / 10:.1f} us, {len(t) / 10:.0f} kernels" for part, t in sums.items()]
            total = sum(map(sum, kernels.values())) / 10
            (folder / f"{name}.txt").write_text(
                f"{total:.1f} us of kernels a step, {sum(map(len, kernels.values())) / 10:.0f} kernels\n"
                + "\n".join([*parts, *lines])
            )


def part_of_step(kernel: str) -> str:
    """What a kernel is there for, by its name."""
    ours = ("_correlate", "_weight_sums", "_add_up")
    if kernel.startswith(ours) or any(word in kernel for word in ("dgrad", "wgrad", "fprop", "nhwc", "NHWC")):
        return "convolutions"
    if "batch_norm" in kernel:
        return "batch-norm and what is fused with it"
    return "the update" if "multi_tensor" in kernel else "the rest"


def step(run: Run) -> None:
    run.step()
    if run.epoch_is_over:
        run.epoch, run.step_in_epoch = run.epoch + 1, 0


def host_time(name: str, run: Run) -> Row:
    """What the host has to do for a step, while the device is still busy with those before."""
    found = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(20):
            step(run)
        found.append(1e6 * (time.perf_counter() - began) / 20)
    torch.cuda.synchronize()
    return Row(f"resnet20_{name}_host", statistics.median(found), "µs a step", ROUNDS, spread(found))


def in_turn(steps: dict[str, Callable[[], object]], count: int) -> dict[str, list[float]]:
    """Seconds a step, over ``count`` steps at a time, all taking turns; the first round does not count."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS + 1):
        for name, one in steps.items():
            torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(count):
                one()
            torch.cuda.synchronize()
            seconds[name].append((time.perf_counter() - began) / count)
    return {name: found[1:] for name, found in seconds.items()}


def first_step() -> list[Row]:
    """Seconds from the command to the end of its first epoch's first step, with nothing compiled before."""
    code = (
        "import time; began = time.time()\n"
        "import torch\n"
        "from speed import RESNET20, Bench, parse_options\n"
        "import sys; sys.argv = ['speed']\n"
        "bench = Bench(parse_options()); bench.run(RESNET20['split']); print('FIRST', time.time() - began)\n"
    )
    found = []
    for name, repeats in (("first_step_s", 1), ("first_step_cached_s", 1)):
        if name == "first_step_s":
            cache = tempfile.mkdtemp()
        environment = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TRITON_CACHE_DIR": cache + "/triton"}
        environment["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        line = next((line for line in done.stdout.splitlines() if line.startswith("FIRST")), None)
        if line is None:
            print(done.stdout[-2000:], done.stderr[-2000:])
            continue
        found.append(Row(name, float(line.split()[1]), "s", repeats))
    return found


if __name__ == "__main__":
    main()
