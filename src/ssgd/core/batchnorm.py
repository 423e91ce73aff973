"""Batch-norm's running statistics when one step makes several passes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase

from .checks import check_choice
from .parallel import bare

POLICIES = ("both", "once", "first", "none")


def check_policy(policy: str, model: nn.Module | None) -> None:
    check_choice("bn_stats", policy, POLICIES)
    if policy != "both" and model is None:
        raise ValueError(f"bn_stats={policy!r} needs the model: pass model=...")


def tracking_layers(model: nn.Module) -> list[_BatchNorm]:
    """Return the layers that keep statistics."""
    layers = (module for module in model.modules() if isinstance(module, _BatchNorm))
    return [layer for layer in layers if layer.running_mean is not None and layer.num_batches_tracked is not None]


class RunningStatistics:
    """Applies one policy to the passes of one step.

    ``both``: every pass moves them, as torch does it. ``once``: the passes together move them as one pass with the
    mean of their statistics would. ``first``: only the first pass counts. ``none``: they stay.
    """

    def __init__(self, model: nn.Module | None, policy: str) -> None:
        self.policy = policy
        self._buffers: list[Tensor] = []
        if model is not None and policy != "both":
            self._buffers = [b for m in model.modules() if isinstance(m, _NormBase) for b in m.buffers(recurse=False)]
        self._before: list[Tensor] = []
        self._result: list[Tensor] = []  # what the passes so far amount to

    @torch.no_grad()
    def begin(self) -> None:
        """Before the first pass."""
        self._before = [b.clone() for b in self._buffers]

    @torch.no_grad()
    def after(self, index: int, count: int) -> None:
        """After pass ``index`` of ``count``."""
        if not self._buffers:
            return
        if index == 0:
            self._result = [b.clone() for b in (self._before if self.policy == "none" else self._buffers)]
        elif self.policy == "once":
            share = 1 / (index + 1)
            for result, b in zip(self._result, self._buffers, strict=True):
                if b.is_floating_point():
                    result.lerp_(b, share)
        if index + 1 < count:
            return self.undo()
        torch._foreach_copy_(self._buffers, self._result)
        self._before, self._result = [], []

    @torch.no_grad()
    def undo(self) -> None:
        """Back to what they were."""
        if self._before:
            torch._foreach_copy_(self._buffers, self._before)


def recompute_bn(
    model: nn.Module,
    loader: Iterable[Any],
    device: torch.device | int | None = None,
    forward: Callable[[nn.Module, Any], Any] | None = None,
) -> None:
    """Gather batch-norm's running statistics again, of the clean weights, over one pass of ``loader``.

    A batch is the model's input, or a tuple that begins with it, moved to ``device`` if one is given; for any other,
    ``forward(model, batch)`` runs it. Mode (train or eval) and momentum are left as they were, and after an error the
    statistics too.
    """
    model = bare(model)
    layers = tracking_layers(model)
    if not layers:
        return
    statistics = RunningStatistics(model, "none")
    statistics.begin()
    modes = {module: module.training for module in model.modules()}
    momenta = [layer.momentum for layer in layers]
    try:
        model.train()
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # the mean over all batches
        batch = None
        with torch.no_grad():
            for batch in loader:
                _plain_forward(model, batch, device) if forward is None else forward(model, batch)
        if batch is None:
            raise ValueError("recompute_bn() got a loader without batches; batch-norm's statistics were left alone")
    except BaseException:
        statistics.undo()
        raise
    finally:
        for module, mode in modes.items():
            module.training = mode
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


def _plain_forward(model: nn.Module, batch: Any, device: torch.device | int | None) -> None:
    first = batch[0] if isinstance(batch, list | tuple) else batch
    try:
        model(first if device is None else first.to(device))
    except (TypeError, AttributeError) as problem:
        raise TypeError(
            "recompute_bn() calls the model with a batch, or the first entry of one, which failed: give "
            f"forward=lambda model, batch: model(...). {problem}"
        ) from problem
