"""Single precision that is single precision: TF32 rounds to 10 bits, too few for differences and orthogonality."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def full_precision() -> Iterator[None]:
    """No TF32 inside, whatever the user's settings; afterwards they are what they were."""
    cudnn: Any = torch.backends.cudnn
    backends: tuple[Any, ...] = (torch.backends.cuda.matmul, cudnn.conv, cudnn.rnn)
    before = [backend.fp32_precision for backend in backends]
    try:
        for backend in backends:
            backend.fp32_precision = "ieee"
        yield
    finally:
        for backend, precision in zip(backends, before, strict=True):
            backend.fp32_precision = precision
