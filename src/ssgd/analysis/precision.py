"""Single precision that is single precision, or TF32 where it was asked for: 10 bits, too few for differences."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..core.versions import precision_settings


def widest(device: torch.device) -> torch.dtype:
    """To add up in."""
    return torch.float32 if device.type == "mps" else torch.float64


@contextmanager
def full_precision(tf32: bool = False) -> Iterator[None]:
    """No TF32 inside, or TF32 everywhere, whatever the user's settings; afterwards they are what they were."""
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


def _old_settings() -> tuple[str, bool] | None:
    """torch's older settings of the same, which torch.compile reads, and refuses where they contradict the new ones."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:  # they do already
        return None


def _set_old(matmul: str, cudnn: bool) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn
