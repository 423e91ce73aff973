"""Capture of CUDA graphs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


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
