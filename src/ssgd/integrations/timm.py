"""S-SGD in timm's train.py, whose scaler takes backward and step in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from ..core.point_optimizer import PointOptimizer


class SymmetricScaler:
    """Takes the place of timm's ``NativeScaler``, and the function that computes the loss the place of the loss.

    ``scaler(forward, optimizer, clip_grad=…, need_update=…)`` runs forward and backward at every point of the batch,
    then unscales, clips and steps if the update is due. It returns the mean of the losses, which is detached. Without
    float16 there is nothing to scale: ``enabled=False``.
    """

    state_dict_key = "amp_scaler"  # of timm's checkpoints

    def __init__(self, device: str = "cuda", enabled: bool = True) -> None:
        self._scaler = torch.amp.GradScaler(device, enabled=enabled)

    def __call__(
        self,
        forward: Callable[[], Tensor],
        optimizer: PointOptimizer,
        clip_grad: float | None = None,
        clip_mode: str = "norm",
        parameters: Iterable[Tensor] | None = None,
        create_graph: bool = False,
        need_update: bool = True,
    ) -> Tensor:
        if not callable(forward):
            raise TypeError("SymmetricScaler takes the function that computes the loss, to call it at every point")
        losses = []
        for point in optimizer.points():
            with point:
                loss = forward()
                point.loss = loss.detach()
                self._scaler.scale(loss).backward(create_graph=create_graph)  # type: ignore[no-untyped-call]
            losses.append(point.loss)
        if need_update:
            if clip_grad is not None:
                from timm.utils import dispatch_clip_grad

                self._scaler.unscale_(optimizer)
                dispatch_clip_grad(parameters, clip_grad, mode=clip_mode)
            self._scaler.step(optimizer)
            self._scaler.update()
        return torch.stack(losses).mean()

    def state_dict(self) -> dict[str, Any]:
        return self._scaler.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._scaler.load_state_dict(state_dict)
