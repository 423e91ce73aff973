"""Batch-norm counts its batches in a tensor a layer, a kernel each; here all of them advance in one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase


class BatchCounters:
    """The ``num_batches_tracked`` of all layers that average with a fixed momentum, and so never read it.

    SyncBatchNorm insists on having its own.
    """

    def __init__(self, net: nn.Module) -> None:
        norms = [m for m in net.modules() if isinstance(m, _NormBase) and not isinstance(m, nn.SyncBatchNorm)]
        self._counters: list[tuple[_NormBase, Tensor]] = []
        for norm in norms:
            if norm.momentum is not None and norm.num_batches_tracked is not None:
                self._counters.append((norm, norm.num_batches_tracked))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Passes inside count nothing."""
        for norm, _ in self._counters:
            norm.num_batches_tracked = None
        try:
            yield
        finally:
            for norm, counter in self._counters:
                norm.num_batches_tracked = counter

    def add(self, passes: int) -> None:
        if self._counters:
            torch._foreach_add_([counter for _, counter in self._counters], passes)
