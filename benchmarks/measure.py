"""Operator calls, live bytes and interleaved step times, and the table and JSON file they end up in."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.profiler import ProfilerActivity, profile
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True)
class Row:
    """One figure: a median with its interquartile range, or a count that came out the same every time."""

    name: str
    value: float
    unit: str
    repeats: int
    spread: float = 0.0
    goal: float | None = None  # at most this
    detail: Mapping[str, Any] | None = None  # what the figure is made of


def report(rows: Sequence[Row], device: torch.device, out: Path) -> None:
    """Print the table and write the JSON file."""
    width = max(len(row.name) for row in rows)
    print(f"{'':{width}}  {'value':>9} {'spread':>8}  {'goal':>6}  unit")
    for row in rows:
        missed = "" if row.goal is None or row.value <= row.goal else "  (missed)"
        goal = "" if row.goal is None else f"{row.goal:g}"
        spread = f"{row.spread:.3g}" if row.spread else ""
        print(f"{row.name:{width}}  {_short(row.value):>9} {spread:>8}  {goal:>6}  {row.unit}{missed}")
    content = {"environment": environment(device), "rows": [_without_none(asdict(row)) for row in rows]}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(content, indent=1) + "\n")
    print(f"written: {out}")


def environment(device: torch.device) -> dict[str, Any]:
    """What the figures depend on."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.system() + " " + platform.machine(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else _cpu_name(),
        "threads": torch.get_num_threads(),
        "date": datetime.now(timezone.utc).date().isoformat(),
        "load_average": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    }
    if device.type == "cuda":
        found.update(cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version())
    return found


# --- operator calls -------------------------------------------------------------------------------------------------


def operator_calls(step: Callable[[], object]) -> Counter[str]:
    """The top-level operator calls of ``step()`` in the profiler: operators that no other operator called.

    Annotations such as ``Optimizer.step#SGD.step`` are not operators.
    """
    with profile(activities=[ProfilerActivity.CPU]) as profiled:
        step()
    calls: Counter[str] = Counter()
    for event in profiled.events() or ():
        caller = event.cpu_parent
        while caller is not None and not _is_operator(caller.name):
            caller = caller.cpu_parent
        if caller is None and _is_operator(event.name):
            calls[event.name] += 1
    return calls


def dispatched_calls(step: Callable[[], object]) -> int:
    """The same number by other means: what reaches the dispatcher, without calls such as ``to()`` that do nothing."""
    with DispatchCounter() as counter:
        step()
    return counter.calls


class DispatchCounter(TorchDispatchMode):
    """Counts operators on their way to a kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += func.namespace != "profiler"
        return func(*args, **(kwargs or {}))


def _is_operator(name: str) -> bool:
    return "::" in name


# --- memory ---------------------------------------------------------------------------------------------------------


class CpuMeter(TorchDispatchMode):
    """Bytes of the tensors made since it was entered and still alive, views counted as what they view."""

    def __init__(self, known: Sequence[Tensor]) -> None:
        super().__init__()
        self._known = {StorageWeakRef(tensor.untyped_storage()) for tensor in known}
        self._alive: dict[StorageWeakRef, int] = {}
        self._peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in pytree.tree_leaves(result):
            if isinstance(leaf, Tensor):
                reference = StorageWeakRef(leaf.untyped_storage())
                if reference not in self._known:
                    self._alive[reference] = leaf.untyped_storage().nbytes()
        self._peak = max(self._peak, self.current())
        return result

    def current(self) -> int:
        self._alive = {reference: size for reference, size in self._alive.items() if not reference.expired()}
        return sum(self._alive.values())

    def peak(self) -> int:
        return self._peak

    def reset_peak(self) -> None:
        self._peak = self.current()


class CudaMeter(nullcontext):
    """Bytes asked of the CUDA allocator since it was made and not given back, without the allocator's rounding."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(self)
        self._device = device
        self._before = self._read("current")

    def current(self) -> int:
        return self._read("current") - self._before

    def peak(self) -> int:
        return self._read("peak") - self._before

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self._device)

    def _read(self, which: str) -> int:
        return int(torch.cuda.memory_stats(self._device).get(f"requested_bytes.all.{which}", 0))


Meter = CpuMeter | CudaMeter


def meter(device: torch.device, known: Sequence[Tensor]) -> Meter:
    """A meter to enter; ``known`` are the tensors there already."""
    return CudaMeter(device) if device.type == "cuda" else CpuMeter(known)


# --- time -----------------------------------------------------------------------------------------------------------


Clock = Callable[[], float]
CLOCKS: dict[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


def interleaved(
    steps: Mapping[str, Callable[[], object]], repeats: int, device: torch.device, clock: Clock = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds a step, ``repeats`` times for each: A, B, C, A, B, C, … after one round that does not count.

    On CUDA one reading is the mean of several steps between two events, so that launches overlap as in training.
    """
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for step in steps.values():
        _seconds(step, device, clock)
    for _ in range(repeats):
        for name, step in steps.items():
            seconds[name].append(_seconds(step, device, clock))
    return seconds


def ratio(name: str, over: Sequence[float], under: Sequence[float], **extra: Any) -> Row:
    """The ratio of two series that were measured interleaved, taken round by round."""
    quotients = [a / b for a, b in zip(over, under, strict=True)]
    return Row(name, statistics.median(quotients), "×", len(quotients), spread(quotients), **extra)


def spread(values: Sequence[float]) -> float:
    """The interquartile range."""
    if len(values) < 2:
        return 0.0
    first, _, third = statistics.quantiles(values, n=4, method="inclusive")
    return third - first


def _seconds(step: Callable[[], object], device: torch.device, clock: Clock, on_cuda: int = 5) -> float:
    if device.type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize(device)
        start.record()
        for _ in range(on_cuda):
            step()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000 / on_cuda
    begun = clock()
    step()
    return clock() - begun


# --- writing --------------------------------------------------------------------------------------------------------


def _short(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() and value >= 3 else f"{value:.3f}"


def _without_none(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value is not None}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
