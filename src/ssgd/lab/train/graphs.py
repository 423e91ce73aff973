"""A whole step as one CUDA graph: static inputs in, nothing for the host to do between."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ...analysis.acceleration import captured_in
from .steps import Step

WARM_UP = 3  # torch asks for some steps on the stream before capture; compilation happens in the first


class GraphStep:
    """``step`` captured once, replayed for every batch of the same shape. Weights and optimizer stay as they were."""

    def __init__(self, step: Step, net: nn.Module, batch: tuple[Tensor, ...], pool: Any = None) -> None:
        self.step = step
        self.batch = [tensor.clone() for tensor in batch]
        self.graph = torch.cuda.CUDAGraph()
        with unchanged(net, step.opt, step.sums):
            for _ in range(WARM_UP):
                step(*self.batch)
            torch.cuda.current_stream().synchronize()
            step.opt.register_graph(self.graph)
            with captured_in(self.graph, torch.cuda.current_stream(), pool):
                step(*self.batch)

    def __call__(self, *batch: Tensor) -> None:
        for mine, given in zip(self.batch, batch, strict=True):
            mine.copy_(given)
        self.step.opt.before_replay()
        self.graph.replay()


class GraphSteps:
    """A GraphStep for each shape that batches come in, in memory that they share: only one is at work at a time."""

    def __init__(self, step: Step, net: nn.Module) -> None:
        self.step, self.net = step, net
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[tuple[torch.Size, ...], GraphStep] = {}

    def capture(self, batch: tuple[Tensor, ...]) -> bool:
        """To be called before a step: captures what is missing, which draws random numbers, and says whether it did."""
        shapes = _shapes(batch)
        if shapes in self._graphs:
            return False
        self._graphs[shapes] = GraphStep(self.step, self.net, batch, self._pool)
        return True

    def __call__(self, *batch: Tensor) -> None:
        self._graphs[_shapes(batch)](*batch)


class GraphOf:
    """What ``work()`` computes from tensors that stay where they are, captured once: every call computes it anew."""

    def __init__(self, work: Callable[[], Tensor]) -> None:
        work()
        torch.cuda.current_stream().synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with captured_in(self.graph, torch.cuda.current_stream()):
            self.out = work()

    def __call__(self) -> Tensor:
        self.graph.replay()
        return self.out


def _shapes(batch: tuple[Tensor, ...]) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in batch)


@contextmanager
def unchanged(net: nn.Module, opt: Optimizer, sums: Tensor) -> Iterator[None]:
    """Steps inside leave no trace: weights, statistics, optimizer state and counters return to what they were.

    The tensors stay the same ones, as a graph needs it. State that did not exist before is zero after, which is how
    torch's optimizers begin.
    """
    tensors = [*net.parameters(), *net.buffers(), sums]
    values = [t.detach().clone() for t in tensors]
    state = {p: {k: v.clone() for k, v in s.items() if isinstance(v, Tensor)} for p, s in opt.state.items()}
    groups = [{k: v for k, v in group.items() if k != "params"} for group in opt.param_groups]
    try:
        yield
    finally:
        opt.zero_grad()  # first: it ends a step that was cut short, which counts it
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
            for parameter, entries in opt.state.items():
                for key, entry in entries.items():
                    if isinstance(entry, Tensor):
                        old = state.get(parameter, {}).get(key)
                        entry.zero_() if old is None else entry.copy_(old)
        for group, before in zip(opt.param_groups, groups, strict=True):
            group.update(before)
