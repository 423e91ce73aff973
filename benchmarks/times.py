"""Step times as ratios to the fastest SGD there is, every way measured in turn in the same run."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ways
from graphs import captured
from measure import Clock, Row, interleaved, ratio, spread
from nets import wide_block, wide_resnet28
from ways import Way

GOALS = {"both": 2.05, "split": 1.10}
WAYS = {
    "sgd": ways.sgd,
    "two_passes": ways.two_passes,
    "both": ways.points,
    "two_halves": ways.two_halves,
    "split": ways.split,
    "sam": ways.sam,
}


@dataclass(frozen=True)
class Setting:
    """How SGD is run; all ways are then run like it."""

    channels_last: bool
    fused: bool  # else foreach
    compiled: bool = False
    graph: bool = False  # the whole step in one CUDA graph

    @property
    def kind(self) -> str:
        return "_".join([*["compiled"] * self.compiled, *["graph"] * self.graph]) or "eager"

    def __str__(self) -> str:
        layout = "channels_last" if self.channels_last else "contiguous"
        return f"{self.kind}, {layout}, {'fused' if self.fused else 'foreach'}"


def rows(device: torch.device, repeats: int, compiled: bool, clock: Clock) -> list[Row]:
    """The ratios in the setting with the fastest SGD; after them, on CUDA, in the fastest of every other kind."""
    trials = {setting: Bench(setting, device) for setting in settings(device, compiled)}
    seconds = interleaved(
        {str(s): bench.step("sgd") for s, bench in trials.items()}, max(repeats // 2, 2), device, clock
    )
    by_speed = sorted(trials, key=lambda setting: statistics.median(seconds[str(setting)]))
    for setting in by_speed:
        print(f"SGD, {setting}: {statistics.median(seconds[str(setting)]) * 1000:.1f} ms")
    best_of_kind = {setting.kind: setting for setting in reversed(by_speed)}
    found = ratios(trials[by_speed[0]], repeats, "", clock)
    for kind, setting in best_of_kind.items():
        if setting is not by_speed[0] and device.type == "cuda":
            found += ratios(trials[setting], repeats, f"_{kind}", clock)
    return found


def settings(device: torch.device, compiled: bool) -> list[Setting]:
    """What SGD is tried with."""
    if device.type == "cpu":
        return [Setting(channels_last, fused) for channels_last in (False, True) for fused in (False, True)]
    kinds = [(False, False), (False, True)] + ([(True, False), (True, True)] if compiled else [])
    return [Setting(True, False), *(Setting(True, True, compile_it, graph) for compile_it, graph in kinds)]


def ratios(bench: Bench, repeats: int, suffix: str, clock: Clock) -> list[Row]:
    names = [name for name in WAYS if name != "sam" or (ways.has_sam() and not bench.setting.graph)]
    seconds = interleaved({name: bench.step(name) for name in names}, repeats, bench.device, clock)
    sgd = [1000 * t for t in seconds["sgd"]]
    detail = {"net": bench.net_name, "batch": len(bench.x), "setting": str(bench.setting)}
    found = [Row(f"sgd_step{suffix}", statistics.median(sgd), "ms", repeats, spread(sgd), detail=detail)]
    for name in names[1:]:
        goal = None if suffix else GOALS.get(name)
        found.append(ratio(f"{name}_over_sgd{suffix}", seconds[name], seconds["sgd"], goal=goal))
    return found


class Bench:
    """One net in one setting, and a batch: the ways share it, so that they run the same kernels."""

    def __init__(self, setting: Setting, device: torch.device) -> None:
        self.setting = setting
        self.device = device
        torch.manual_seed(0)
        layout = torch.channels_last if setting.channels_last else torch.contiguous_format
        if device.type == "cuda":
            self.net_name, self.net, shape = "WRN28-4, bf16 autocast", wide_resnet28(4), (512, 3, 32, 32)
        else:
            self.net_name, self.net, shape = "one block of WRN28-4, 128 channels", wide_block(128), (64, 128, 16, 16)
        self.net = self.net.to(device=device, memory_format=layout)  # type: ignore[call-overload]
        self.x = torch.randn(shape, device=device).to(memory_format=layout)
        self.y = torch.randint(10, shape[:1], device=device)
        self._called: nn.Module | Callable[..., Tensor] = self.net
        if setting.compiled:  # a graph for each of the two batch sizes, whole and half
            self._called = torch.compile(self.net, dynamic=False)

    def step(self, name: str) -> Callable[[], object]:
        """One step in the way of that name."""
        kernel = {"fused": True} if self.setting.fused else {"foreach": True}
        way: Way = WAYS[name](list(self.net.parameters()), lr=1e-3, momentum=0.9, weight_decay=1e-4, **kernel)
        if self.setting.graph:
            return captured(way, self._run, self.x, self.y)
        return lambda: way.step(self._run, self.x, self.y)

    def _run(self, x: Tensor, y: Tensor) -> Tensor:
        on_cuda = self.device.type == "cuda"
        with torch.autocast("cuda", torch.bfloat16, enabled=on_cuda, cache_enabled=not self.setting.graph):
            loss = F.cross_entropy(self._called(x), y)
        loss.backward()
        return loss
