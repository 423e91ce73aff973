"""The small convolutions against cuDNN's: every shape of ResNet20 that they serve, and the plans to choose from.

    PYTHONPATH=src python benchmarks/convolutions.py            # times, and the fastest plan for each shape
    PYTHONPATH=src python benchmarks/convolutions.py --check    # are they right: alone, in a net, compiled, captured

A time is that of one of 20 calls in a CUDA graph, so launches do not count. It needs a CUDA device and Triton.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cached_property
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from measure import Row, report, spread
from ssgd.kernels import convolutions as kernels
from ssgd.kernels.conv2d import conv3x3, use_fast_convolutions
from ssgd.lab.models import build

DEVICE = torch.device("cuda")
CALLS, ROUNDS, KEPT = 20, 11, 3
WRONG = 1e-2  # relative to the largest value
WHAT = ("forward", "grad_input", "grad_weight")
Plan = kernels.Tile | kernels.Split


class Shape(NamedTuple):
    inputs: int
    outputs: int
    size: int
    stride: int

    def __str__(self) -> str:
        return f"{self.inputs}to{self.outputs}_{self.size}x{self.size}_stride{self.stride}"


SHAPES = (
    Shape(3, 16, 32, 1),
    Shape(16, 16, 32, 1),
    Shape(32, 32, 16, 1),
    Shape(64, 64, 8, 1),
    Shape(16, 32, 32, 2),
    Shape(32, 64, 16, 2),
)


class Problem:
    """Tensors of a shape, and what should come out."""

    def __init__(self, shape: Shape, batch: int, dtype: torch.dtype = torch.bfloat16, last: bool = True) -> None:
        generator = torch.Generator(DEVICE).manual_seed(0)

        def images(channels: int, size: int) -> Tensor:
            found = torch.randn(batch, channels, size, size, device=DEVICE, generator=generator).to(dtype)
            return found.contiguous(memory_format=torch.channels_last)

        self.shape = shape
        self.x = images(shape.inputs, shape.size)
        self.gradient = images(shape.outputs, (shape.size - 1) // shape.stride + 1)
        weight = torch.randn(shape.outputs, shape.inputs, 3, 3, device=DEVICE, generator=generator)
        self.weight = weight.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)
        self.half = weight.to(dtype).contiguous(memory_format=torch.channels_last)
        self.outs = {
            "forward": torch.empty_like(self.gradient),
            "grad_input": torch.empty_like(self.x),
            "grad_weight": torch.empty_like(self.weight),
        }

    def kernel(self, what: str, plan: Plan) -> Callable[[], None]:
        stride, out = self.shape.stride, self.outs[what]
        first = self.x if what == "forward" else self.gradient
        second = self.x if what == "grad_weight" else self.weight
        return lambda: getattr(kernels, what)(first, second, out, stride, plan)

    def cudnn(self, what: str) -> Callable[[], object]:
        options = [[self.shape.stride] * 2, [1, 1], [1, 1], False, [0, 0], 1]
        if what == "forward":
            return lambda: torch.ops.aten.convolution(self.x, self.half, None, *options)
        mask = [what == "grad_input", what == "grad_weight", False]
        return lambda: torch.ops.aten.convolution_backward(self.gradient, self.x, self.half, None, *options, mask)

    @cached_property
    def right(self) -> dict[str, Tensor]:
        x, weight = (t.float().requires_grad_() for t in (self.x, self.half))
        out = F.conv2d(x, weight, stride=self.shape.stride, padding=1)
        return dict(
            zip(WHAT, (out.detach(), *torch.autograd.grad(out, (x, weight), self.gradient.float())), strict=True)
        )

    def error(self, what: str) -> float:
        """The largest difference, over the largest value."""
        return relative(self.outs[what], self.right[what])


def relative(found: Tensor, right: Tensor) -> float:
    return float((found.float() - right).abs().max() / right.abs().max())


# --- times ----------------------------------------------------------------------------------------------------------


def plans(shape: Shape, what: str) -> Iterator[Plan]:
    """What could be fast: 16 loads a thread or so, and no more shared memory than two programs can have."""
    if what == "grad_weight":
        yield from splits(shape)
        return
    source, to = shape[:2] if what == "forward" else shape[1::-1]
    for taps in (9,) if source < 16 else (8, 4, 1) if source < 64 else (4, 2, 1):
        for pixels, warps in ((32, 2), (64, 2), (64, 4), (128, 4), (128, 8), (256, 8)):
            for channels in {to, max(to // 2, 16)}:
                loads = pixels * taps * source // (8 if source >= 16 else 1) // (32 * warps)
                shared = 2 * (taps + (taps > 1)) * source * (pixels + channels)
                if loads <= 32 and shared <= 100_000:
                    yield kernels.Tile(pixels, channels, taps, warps)


def splits(shape: Shape) -> Iterator[kernels.Split]:
    for rows, columns in ((4, 4),) if shape.inputs < 16 else ((4, 4), (4, 1), (1, 4), (1, 1)):
        left, right = rows * shape.inputs, columns * shape.outputs
        if (shape.inputs >= 16 and not 64 <= left <= 128) or left * right > 128 * 128:
            continue
        for programs in (132, 264, 528) if shape.stride == 1 else (132, 264):
            parts = programs // ((3 if rows == 1 else 1) * (3 if columns == 1 else 1))
            for pixels in (64, 128, 256):
                for warps, stages in ((4, 1), (4, 3), (8, 1)):
                    registers = (left * right + pixels * (left + right) // 2 * (stages == 1)) // (32 * warps)
                    shared = 2 * pixels * (left + right) * stages
                    if registers <= 224 and shared <= 200_000 and (left >= 16 * warps or shape.inputs < 16):
                        yield kernels.Split(parts, pixels, rows, columns, warps, stages)


def try_plan(shape: Shape, batch: int, what: str, plan: Plan) -> str | None:
    """Triton keeps what it builds on disk. Returns what went wrong."""
    try:
        problem = Problem(shape, batch)
        problem.kernel(what, plan)()
        torch.cuda.synchronize()
        return None if problem.error(what) < WRONG else f"wrong by {problem.error(what):.1e}"
    except Exception as problem:
        return f"{type(problem).__name__}: {problem}".splitlines()[0]


def time_plans(shape: Shape, batch: int, what: str, plans: list[Plan]) -> tuple[list[float], list[list[float]], str]:
    """cuDNN's seconds, those of each plan up to the first that fails, and what went wrong with that one."""
    torch.backends.cudnn.benchmark = True
    problem = Problem(shape, batch)
    theirs, ours = seconds(problem.cudnn(what)), []
    try:
        for plan in plans:
            found = seconds(problem.kernel(what, plan))
            if problem.error(what) > WRONG:
                return theirs, ours, f"wrong by {problem.error(what):.1e}"
            ours.append(found)
    except Exception as wrong:
        return theirs, ours, f"{type(wrong).__name__}: {wrong}".splitlines()[0]
    return theirs, ours, ""


def seconds(call: Callable[[], object]) -> list[float]:
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS):
            call()
    found = []
    for _ in range(ROUNDS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / 1000 / CALLS)
    return found[1:]


class Tuner:
    """Plans in processes of their own: after an illegal access a process is of no more use."""

    def __init__(self, processes: int) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(["torch", "triton", "ssgd.kernels.convolutions", "ssgd.lab.models"])
        self.many, self.one = (context.Pool(count, maxtasksperchild=1) for count in (processes, 1))

    def usable(self, batch: int, asked: list[tuple[Shape, str, Plan]]) -> list[tuple[Shape, str, Plan]]:
        failed = self.many.starmap(try_plan, [(s, batch, w, p) for s, w, p in asked], chunksize=1)
        for (shape, what, plan), problem in zip(asked, failed, strict=True):
            if problem:
                print(f"left out: {shape} {what} {plan}: {problem}", flush=True)
        return [one for one, problem in zip(asked, failed, strict=True) if not problem]

    def times(
        self, shape: Shape, batch: int, what: str, plans: list[Plan]
    ) -> tuple[list[float], dict[Plan, list[float]]]:
        found: dict[Plan, list[float]] = {}
        theirs: list[float] = []
        while plans:
            theirs, ours, wrong = self.one.apply(time_plans, (shape, batch, what, plans))
            found |= dict(zip(plans, ours, strict=False))
            if wrong:
                print(f"left out: {shape} {what} {plans[len(ours)]}: {wrong}", flush=True)
            plans = plans[len(ours) + 1 :] if wrong else []
        return theirs, found


def times(batches: list[int], processes: int) -> Iterator[Row]:
    tuner = Tuner(processes)
    first, *others = sorted(batches, key=lambda batch: abs(batch - 128))
    asked = [(s, w, p) for s in SHAPES for w in WHAT if served(s, w) for p in dict.fromkeys(plans(s, w))]
    todo = tuner.usable(first, asked)
    print(f"{len(todo)} of {len(asked)} plans can be used", flush=True)
    best: dict[tuple[Shape, str], list[Plan]] = {}
    for shape in SHAPES:
        for what in WHAT:
            own = [plan for s, w, plan in todo if (s, w) == (shape, what)]
            if not own:
                continue
            theirs, found = tuner.times(shape, first, what, own)
            best[shape, what] = ranked = sorted(found, key=lambda plan: statistics.median(found[plan]))[:KEPT]
            yield from rows(shape, what, first, theirs, {plan: found[plan] for plan in ranked})
    for batch in others:
        kept = tuner.usable(batch, [(s, w, p) for (s, w), own in best.items() for p in own])
        for (shape, what), own in best.items():
            theirs, found = tuner.times(shape, batch, what, [plan for plan in own if (shape, what, plan) in kept])
            yield from rows(shape, what, batch, theirs, found)


def served(shape: Shape, what: str) -> bool:
    """Images need no gradient."""
    return shape.inputs >= 16 or what != "grad_input"


def rows(shape: Shape, what: str, batch: int, theirs: list[float], found: dict[Plan, list[float]]) -> Iterator[Row]:
    yield row(f"{what}_{shape}_batch{batch}_cudnn", theirs)
    for place, (plan, ours) in enumerate(found.items()):
        over = statistics.median(ours) / statistics.median(theirs)
        yield row(f"{what}_{shape}_batch{batch}_{place}", ours, {"plan": asdict(plan), "over_cudnn": over})
        micro = statistics.median(ours) * 1e6
        kind = shape.inputs, shape.outputs, shape.stride
        print(f"{batch:4} {what:12} {kind}: {plan}  # {micro:.2f} µs, × cuDNN: {over:.2f}", flush=True)


def row(name: str, found: list[float], detail: dict[str, object] | None = None) -> Row:
    micro = [t * 1e6 for t in found]
    return Row(name, statistics.median(micro), "µs", ROUNDS, spread(micro), detail=detail)


# --- checks ---------------------------------------------------------------------------------------------------------


def check() -> None:
    for shape in (*SHAPES, Shape(16, 64, 7, 1), Shape(64, 16, 9, 2), Shape(32, 16, 33, 1), Shape(32, 32, 1, 1)):
        for dtype in (torch.bfloat16, torch.float16):
            for last in (True, False):
                right_and_reproducible(Problem(shape, 5, dtype, last))
    print("right, and the same bits every time")
    captured_on_two_streams()
    print("right in a CUDA graph of two streams")
    for compiled in (False, True):
        a_net_learns_the_same(compiled)


def right_and_reproducible(problem: Problem) -> None:
    def found() -> tuple[Tensor, ...]:
        x, weight = problem.x.detach().requires_grad_(), problem.weight.detach().requires_grad_()
        out = conv3x3(x, weight, problem.shape.stride)
        return (out.detach(), *torch.autograd.grad(out, (x, weight), problem.gradient))

    first, again = found(), found()
    for what, one, other in zip(WHAT, first, again, strict=True):
        assert torch.equal(one, other), f"{what} of {problem.shape} changes from call to call"
        error, most = relative(one, problem.right[what]), 1e-3 if what == "grad_weight" else 5e-3
        assert error < most, f"{what} of {problem.shape} in {problem.x.dtype} is off by {error:.1e}"
        assert what == "grad_weight" or one.is_contiguous(memory_format=torch.channels_last)


def captured_on_two_streams() -> None:
    problems = [Problem(SHAPES[0], 64), Problem(SHAPES[0], 64)]
    problems[1].x.neg_()
    streams = [torch.cuda.Stream() for _ in problems]

    def run() -> list[Tensor]:
        found: list[Tensor] = []
        for problem, stream in zip(problems, streams, strict=True):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                x, weight = problem.x.detach().requires_grad_(), problem.weight.detach().requires_grad_()
                out = conv3x3(x, weight, 1)
                found += [out.detach(), *torch.autograd.grad(out, (x, weight), problem.gradient)]
        for stream in streams:
            torch.cuda.current_stream().wait_stream(stream)
        return found

    eager = [t.clone() for t in run()]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = run()
    for _ in range(3):
        for tensor in captured:
            tensor.zero_()
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, eager, captured)), "a graph of two streams gives other bits than eager calls"


def a_net_learns_the_same(compiled: bool) -> None:
    torch.manual_seed(0)
    net = build("resnet20", 10).to(DEVICE).to(memory_format=torch.channels_last)
    x = torch.randn(128, 3, 32, 32, device=DEVICE).contiguous(memory_format=torch.channels_last)
    y = torch.randint(10, (128,), device=DEVICE)

    def gradients(bf16: bool = True) -> Tensor:
        torch.compiler.reset()
        model = torch.compile(net, fullgraph=True, dynamic=False) if compiled and bf16 else net
        with torch.autocast("cuda", torch.bfloat16, enabled=bf16):
            loss = F.cross_entropy(model(x), y)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(net.parameters()))])

    right, cudnn = gradients(bf16=False), gradients()
    assert use_fast_convolutions(net) == 19
    ours = gradients()
    assert not torch.equal(ours, cudnn), "the kernels were not used"
    theirs, error = (float((g - right).norm() / right.norm()) for g in (cudnn, ours))
    print(f"ResNet20{', compiled' * compiled}: gradients off by {error:.1e}, cuDNN's in bf16 by {theirs:.1e}")
    assert error < 1.5 * theirs, "ResNet20's gradients are off by more than bf16 explains"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only check that they are right")
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--processes", type=int, default=12, help="that compile")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "convolutions-cuda.json")
    options = parser.parse_args()
    if torch.version.cuda is None:
        sys.exit("this needs a CUDA device")
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = False
    if options.check:
        check()
    else:
        report(list(times(options.batches, options.processes)), DEVICE, options.out)


if __name__ == "__main__":
    main()
