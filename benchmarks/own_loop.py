"""What S-SGD costs in a loop of one's own: one_pass(), split() and points() against SGD in the same kind of loop.

    python benchmarks/own_loop.py --device cuda

prints a table and writes it as JSON. Three kinds of loop: ``eager``; ``compiled``, where the net is given to
``torch.compile`` as it comes; and ``graph``, where the whole step with the compiled net is captured in one CUDA graph.
Ratios are to the base alone in the same kind of loop, whose own times stand beside, all measured in turn. On a CPU a
small GPT is measured in single precision, and ``graph`` runs the step without capturing it: to see that it works.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

import ways
from measure import CLOCKS, Clock, DispatchCounter, Row, interleaved, meter, ratio, report, spread
from ssgd import SSGD
from ssgd.lab import models

KINDS = ("eager", "compiled", "graph")
WARM_UP = 3
GOALS = {  # of one pass, by kind
    "gpt": (1.10, 1.08, 1.08),
    "wrn28_4": (1.35, 1.15, 1.15),
    "resnet50": (1.35, 1.15, 1.15),
    "resnet20": (2.0, 1.3, 1.15),
}


class Block(nn.Module):
    """Attention and a wide layer, normalised before each."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.norm2, self.heads = nn.LayerNorm(width), nn.LayerNorm(width), heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        samples, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(samples, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(attended.reshape(samples, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Words and positions, blocks, and a head that is the table of words."""

    def __init__(self, layers: int, width: int, heads: int, length: int, words: int) -> None:
        super().__init__()
        self.words, self.positions = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks, self.norm = nn.ModuleList(Block(width, heads) for _ in range(layers)), nn.LayerNorm(width)
        self.head = nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.positions(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits.flatten(0, 1)


@dataclass
class Task:
    """A net, a batch, and the base that trains it."""

    name: str
    net: Callable[[], nn.Module]
    batch: Callable[[], tuple[Tensor, Tensor]]
    base: Callable[[Any], Optimizer]
    level: float = 0.15
    bf16: bool = True
    has_batch_norm: bool = True
    backend: str = "inductor"

    def autocast(self, device: torch.device) -> AbstractContextManager[None]:
        return torch.autocast(device.type, torch.bfloat16) if self.bf16 else nullcontext()  # type: ignore[return-value]


def gpt(name: str, layers: int, width: int, heads: int, length: int, words: int, samples: int, **more: Any) -> Task:
    def batch() -> tuple[Tensor, Tensor]:
        tokens = torch.randint(words, (samples, length))
        return tokens, tokens.roll(-1, 1)

    def base(parameters: Any) -> Optimizer:
        return AdamW(parameters, lr=1e-4, fused=True)

    return Task(name, lambda: GPT(layers, width, heads, length, words), batch, base, has_batch_norm=False, **more)


def images(name: str, model: str, samples: int, size: int, classes: int, **more: Any) -> Task:
    def batch() -> tuple[Tensor, Tensor]:
        x = torch.randn(samples, 3, size, size).to(memory_format=torch.channels_last)
        return x, torch.randint(classes, (samples,))

    def base(parameters: Any) -> Optimizer:
        return SGD(parameters, lr=0.01, momentum=0.9, fused=True)

    return Task(
        name,
        lambda: models.build(model, classes).to(memory_format=torch.channels_last),
        batch,
        base,
        **more,  # type: ignore[call-overload]
    )


def tasks(device: torch.device, tiny: bool) -> list[Task]:
    if tiny:
        small: dict[str, Any] = {"bf16": False, "backend": "eager"}
        return [gpt("gpt", 1, 16, 2, 4, 11, 4, **small), images("resnet20", "resnet20", 4, 8, 10, **small)]
    if device.type == "cpu":
        return [gpt("gpt", 4, 128, 4, 128, 256, 32, bf16=False)]
    return [
        gpt("gpt", 12, 768, 12, 1024, 50_304, 16),
        images("wrn28_4", "wrn28-4", 512, 32, 100),
        images("resnet50", "imagenet-resnet50", 128, 224, 1000),
        images("resnet20", "resnet20", 128, 32, 10),
    ]


@dataclass
class Loop:
    """One way to train a task, in one kind of loop, with a net and an optimizer of its own."""

    task: Task
    way: str
    kind: str
    device: torch.device
    optimizer: Optimizer = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        net = self.task.net().to(self.device)
        self.net: Any = net if self.kind == "eager" else torch.compile(net, backend=self.task.backend)
        self.x, self.y = (t.to(self.device) for t in self.task.batch())
        base = self.task.base(net.parameters())
        if self.way == "sam":
            from pytorch_optimizer import SAM

            defaults = {k: v for k, v in base.defaults.items() if k in ("lr", "momentum", "fused")}
            self.optimizer = SAM(net.parameters(), type(base), rho=0.05, **defaults)
        else:
            self.optimizer = base if self.way == "sgd" else SSGD(base, self.task.level, model=self.net, seed=0)
        self.layers = sum(isinstance(m, nn.Linear | nn.Embedding | nn.modules.conv._ConvNd) for m in net.modules())

    def pass_(self, x: Tensor, y: Tensor) -> Tensor:
        """Forward and backward."""
        with self.task.autocast(self.device):
            loss = F.cross_entropy(self.net(x), y.flatten())
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self) -> None:
        opt: Any = self.optimizer
        if self.way == "sam":

            def closure() -> Tensor:
                opt.zero_grad()
                return self.pass_(self.x, self.y)

            closure()
            opt.step(closure)
        else:
            for around, (x, y) in self.passes(opt):
                with around:
                    self.pass_(x, y)
            opt.step()
        opt.zero_grad()

    def passes(self, opt: Any) -> Iterator[tuple[Any, Any]]:
        """What a pass runs inside, and what it runs over."""
        batch = self.x, self.y
        if self.way == "sgd":
            yield nullcontext(), batch
        elif self.way == "both":
            yield from ((point, batch) for point in opt.points())
        elif self.way == "split":
            yield from opt.split(batch)
        elif self.way == "one_pass_repeated":
            yield opt.one_pass(), opt.repeated(*batch)
        else:
            yield opt.one_pass(batch_norm="batch" if self.way == "one_pass_batch" else "halves"), batch

    def ready(self) -> Callable[[], None]:
        """The step, warmed up, and captured where this kind of loop is a graph."""
        on_cuda = self.device.type == "cuda"
        with torch.cuda.stream(torch.cuda.Stream()) if on_cuda else nullcontext():
            for _ in range(WARM_UP):
                self.step()
        if on_cuda:
            torch.cuda.synchronize()
        if self.kind != "graph":
            return self.step
        graph = torch.cuda.CUDAGraph() if on_cuda else None
        noisy = self.optimizer if isinstance(self.optimizer, SSGD) else None
        if noisy is not None and graph is not None:
            noisy.register_graph(graph)
        with torch.cuda.graph(graph) if graph is not None else nullcontext():
            self.step()

        def replay() -> None:
            if noisy is not None:
                noisy.before_replay()
            graph.replay() if graph is not None else self.step()

        return replay


def ways_of(task: Task) -> list[str]:
    names = ["sgd", "one_pass", "one_pass_repeated", "split", "both"]
    return [*names, *["one_pass_batch"] * task.has_batch_norm, *["sam"] * ways.has_sam()]


def rows(task: Task, device: torch.device, repeats: int, kinds: list[str], clock: Clock) -> list[Row]:
    """Times of each kind of loop, then operators, host time and memory of the eager one."""
    found = []
    for kind in kinds:
        loops = {way: Loop(task, way, kind, device) for way in ways_of(task) if way != "sam" or kind != "graph"}
        seconds = interleaved({way: loop.ready() for way, loop in loops.items()}, repeats, device, clock)
        ms = [1000 * t for t in seconds["sgd"]]
        found.append(Row(f"own_loop_{task.name}_sgd_{kind}", statistics.median(ms), "ms", repeats, spread(ms)))
        goal = dict(zip(KINDS, GOALS[task.name], strict=True))[kind] if device.type == "cuda" else 1.10
        for way in (way for way in seconds if way != "sgd"):
            name, limit = f"own_loop_{task.name}_{way}_{kind}_over_sgd", goal if way == "one_pass" else None
            found.append(ratio(name, seconds[way], seconds["sgd"], goal=limit))
        del loops
        gc.collect()
        if kind != "eager":
            torch._dynamo.reset()
    for way in ways_of(task):
        found += counts(Loop(task, way, "eager", device), f"own_loop_{task.name}_{way}")
    return found


class Working(DispatchCounter):
    """Counts operators that do work: no views, and no memory alone."""

    IDLE = frozenset(("aten::empty", "aten::new_empty", "aten::empty_like", "aten::detach", "aten::_unsafe_view"))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        views = any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)
        self.calls -= views or func.name().partition(".")[0] in self.IDLE
        return super().__torch_dispatch__(func, types, args, kwargs)


def counts(loop: Loop, name: str) -> list[Row]:
    """Working operators of a step, host time for each layer with weights, and the peak of memory beyond the weights."""
    for _ in range(WARM_UP):
        loop.step()
    with Working() as counter:
        loop.step()
    begun = time.perf_counter()
    loop.step()
    host = time.perf_counter() - begun
    gc.collect()
    with meter(loop.device, [*loop.net.parameters(), loop.x, loop.y]) as reading:
        reading.reset_peak()
        loop.step()
        peak = reading.peak()
    found = [Row(f"{name}_operators", counter.calls, "calls", 1), Row(f"{name}_peak", peak / 2**20, "MiB", 1)]
    if loop.device.type == "cuda":  # elsewhere the host does the work as well
        found.append(Row(f"{name}_host_us_a_layer", 1e6 * host / loop.layers, "µs", 1))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to run (default: cpu)")
    parser.add_argument("--tiny", action="store_true", help="nets of no use and two repeats: to see that it runs")
    parser.add_argument("--repeats", type=int, default=15, help="rounds of step times (default: 15)")
    parser.add_argument("--threads", type=int, help="torch's CPU threads (default: as torch chooses)")
    parser.add_argument("--only", nargs="+", help="of the tasks: gpt, wrn28_4, resnet50, resnet20")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, help="of loops (default: all; on a CPU no graph)")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="what CPU times are read from")
    parser.add_argument("--out", type=Path, help="JSON file (default: results/own-loop-<device>.json)")
    options = parser.parse_args()
    device = torch.device(options.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no CUDA device here: use --device cpu")
    if options.threads:
        torch.set_num_threads(options.threads)
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    kinds = options.kinds or list(KINDS[: 3 if device.type == "cuda" or options.tiny else 2])
    found = []
    for task in tasks(device, options.tiny):
        if not options.only or task.name in options.only:
            found += rows(task, device, 2 if options.tiny else options.repeats, kinds, CLOCKS[options.clock])
    name = "own-loop-tiny.json" if options.tiny else f"results/own-loop-{device.type}.json"  # one is ignored by git
    report(found, device, options.out or Path(__file__).parent / name)


if __name__ == "__main__":
    main()
