"""A model's tensors put to where the points of a geometry are, in a few calls and on their own device."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ..core import stale
from .geometry import Geometry, State, blend


class Moving:
    """Weights to any point; buffers as at the nearest anchor, or ``interpolated``."""

    def __init__(self, model: nn.Module, geometry: Geometry, interpolated: bool) -> None:
        self.geometry = geometry
        self.interpolated = interpolated
        targets = {
            **dict(model.named_buffers(remove_duplicate=False)),
            **dict(model.named_parameters(remove_duplicate=False)),
        }
        alike = defaultdict(list)
        for name in geometry.moving:
            alike[geometry.anchors[0][name].dtype, targets[name].device].append(name)
        self._weights = [_Vector(geometry, names, [targets[name] for name in names]) for names in alike.values()]
        weights = {*geometry.moving, *geometry.tied}
        self._buffers = {name: t for name, t in targets.items() if name in geometry.anchors[0] and name not in weights}
        self._kept = [[state[name].to(t.device) for name, t in self._buffers.items()] for state in geometry.anchors]

    @torch.no_grad()
    def __call__(self, point: Sequence[float]) -> None:
        anchor = self.geometry.anchor_at(*point)
        if self._buffers:
            values = self._kept[self.geometry.nearest(*point)]
            if self.interpolated and anchor is None:
                found = self.geometry.buffers_at(*point, mode="interpolate")
                values = [found[name].to(target.device) for name, target in self._buffers.items()]
            torch._foreach_copy_(list(self._buffers.values()), values)
        for vector in self._weights:  # last: a buffer that is tied to them is none
            vector.move(anchor, self.geometry.amounts(*point))
        stale.forget()


class _Vector:
    """Weights of one dtype and device: those of each ingredient, of which the anchors are the first, as one vector."""

    def __init__(self, geometry: Geometry, names: list[str], targets: list[Tensor]) -> None:
        self.targets = targets
        self.sizes = [target.numel() for target in targets]
        self.ingredients = [_flat(state, names, targets) for state in geometry.ingredients()]

    def move(self, anchor: int | None, amounts: Sequence[float]) -> None:
        own = self.ingredients
        values = blend(amounts, own).to(own[0].dtype) if anchor is None else own[anchor]
        parts = torch.split(values, self.sizes)
        torch._foreach_copy_(self.targets, [part.view_as(t) for part, t in zip(parts, self.targets, strict=True)])


def _flat(state: State, names: list[str], targets: list[Tensor]) -> Tensor:
    parts = [state[name] if name in state else torch.zeros_like(t) for name, t in zip(names, targets, strict=True)]
    return torch.cat([part.to(targets[0].device).reshape(-1) for part in parts])
