"""Precision and speed of a computation: TF32 off or on, CUDA graphs."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ..core.random_state import put_back, snapshot

Function = Callable[..., Any]
WARM_UP = 3  # on the stream of the capture, as torch asks for; torch.jit makes its kernels in the first two


def widest(device: torch.device) -> torch.dtype:
    """Returns the widest dtype that the device can add up in."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def full_precision(tf32: bool = False) -> Iterator[None]:
    """Turns TF32 off inside, or on everywhere, whatever the user's settings; restores them afterwards.

    TF32 has 10 bits, too few for the differences that the analysis takes.
    """
    backends = precision_settings()
    before = [backend.fp32_precision for backend in backends]
    old = _old_settings()
    try:
        if old is not None:
            _set_old("high" if tf32 else "highest", tf32)
        for backend in backends:
            backend.fp32_precision = "tf32" if tf32 else "ieee"
        yield
    finally:
        if old is not None:
            _set_old(*old)
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision


def precision_settings() -> tuple[Any, ...]:
    """Returns the places that have a precision of their own, ``fp32_precision``: none before torch 2.9."""
    cudnn: Any = torch.backends.cudnn
    return (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn) if hasattr(cudnn, "conv") else ()


def _old_settings() -> tuple[str, bool] | None:
    """Returns torch's older settings, which torch.compile reads; None where they contradict the new ones."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


def _set_old(matmul: str, cudnn: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn


class Captured:
    """A function as a CUDA graph for arguments shaped like the first call's; others, such as a last batch, go without.

    A call overwrites the result of the call before. Tensors that are not arguments must stay where they are.
    ``counters`` are tensors that the function adds to: the calls that warm up the capture leave no trace in them. Where
    the capture fails, a line says why, and every call goes without.
    """

    def __init__(self, function: Function, counters: Sequence[Tensor] = ()) -> None:
        self.function = function
        self.counters = counters
        self.shape: Any = None
        self.replay: Function | None = None

    def __call__(self, *arguments: Any) -> Any:
        leaves = tree_leaves(arguments)
        shape = [(leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else type(leaf) for leaf in leaves]
        if self.shape is None:
            self.shape = shape
            try:
                self.replay = self._capture(arguments)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
                print(f"a CUDA graph does not work here, all goes on without, slower ({reason})", file=sys.stderr)
        return self.function(*arguments) if self.replay is None or shape != self.shape else self.replay(*arguments)

    def _capture(self, arguments: Any) -> Function:
        if not all(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in tree_leaves(arguments)):
            raise ValueError("not all of a batch is tensors on a GPU")
        static, before = tree_map(torch.clone, arguments), [t.clone() for t in self.counters]
        drawn = snapshot({leaf.device for leaf in tree_leaves(static)})
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        current = torch.cuda.current_stream()
        graph = torch.cuda.CUDAGraph()
        stream.wait_stream(current)
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    self.function(*static)
            current.wait_stream(stream)
            with captured_in(graph, stream):
                out = self.function(*static)
        finally:
            put_back(drawn)
            for tensor, value in zip(self.counters, before, strict=True):
                tensor.copy_(value)

        def replay(*arguments: Any) -> Any:
            for mine, given in zip(tree_leaves(static), tree_leaves(arguments), strict=True):
                mine.copy_(given)
            graph.replay()
            return out

        return replay


@contextmanager
def captured_in(graph: torch.cuda.CUDAGraph, stream: Any, pool: Any = None) -> Iterator[None]:
    """Captures everything that runs inside, on ``stream``, in ``graph``. Other threads may use the device meanwhile.

    No garbage is collected: CUDA forbids freeing an old graph during a capture, which would spoil the new one.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool, stream=stream, capture_error_mode="thread_local"):
            yield
    finally:
        if collects:
            gc.enable()
