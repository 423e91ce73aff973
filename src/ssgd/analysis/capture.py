"""How a CUDA graph is captured here."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def captured_in(graph: torch.cuda.CUDAGraph, stream: Any, pool: Any = None) -> Iterator[None]:
    """What runs inside, on ``stream``, becomes ``graph``. Other threads may use the device meanwhile.

    No garbage is collected: an old graph among it would be let go, which CUDA forbids here and spoils the new one for.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.graph(graph, pool, stream=stream, capture_error_mode="thread_local"):
            yield
    finally:
        if collects:
            gc.enable()
