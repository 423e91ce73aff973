"""Loss and error of tasks with the model's tensors as they are, or as they are at several points at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from ..core.batchnorm import tracking_layers
from .functional import Called, tensor_places
from .gathering import gather
from .shaped import captured, compiled
from .task import Task

Measured = dict[str, tuple[float, float | None]]
Function = Callable[..., Any]


class Measuring:
    """Of one point at a time. ``statistics`` is the task that batch-norm's are gathered from, or None."""

    def __init__(
        self, model: nn.Module, tasks: Mapping[str, Task], statistics: Task | None, compile: bool, graph: bool
    ) -> None:
        counters = [layer.num_batches_tracked for layer in tracking_layers(model)]

        def faster(function: Function) -> Function:
            made = compiled(function) if compile else function
            return captured(made, function, [t for t in counters if t is not None]) if graph else made

        self.tasks = tasks
        self.statistics = statistics
        self.forward = faster(lambda inputs: model(inputs))
        self.sums = {name: faster(lambda batch, task=task: task.sums(model, batch)) for name, task in tasks.items()}

    def here(self) -> Measured:
        if self.statistics is not None:
            self.statistics.recompute_batchnorm(self.forward)
        return {name: task.measure(self.sums[name]) for name, task in self.tasks.items()}


class Stacked:
    """Of several points: every tensor of the model has a leading dimension, and vmap goes over it."""

    def __init__(self, model: nn.Module, tasks: Mapping[str, Task], statistics: Task | None, compile: bool) -> None:
        faster: Callable[[Function], Function] = compiled if compile else lambda function: function
        counters = {id(layer.num_batches_tracked) for layer in tracking_layers(model)}  # alike at all points
        tensors = {id(t): t for t in (*model.parameters(), *model.buffers()) if id(t) not in counters}
        self.model = model
        self.tasks = tasks
        self.statistics = statistics
        self.tensors = list(tensors.values())
        self.forward = faster(_over_points(model, self.tensors, lambda model, inputs: model(inputs)))
        self.sums = {name: faster(_over_points(model, self.tensors, task.sums)) for name, task in tasks.items()}

    def snapshot(self) -> list[Tensor]:
        """The model's tensors as they are: a point for ``at()``."""
        return [t.detach().clone() for t in self.tensors]

    def at(self, points: Sequence[list[Tensor]]) -> list[Measured]:
        values = [torch.stack(tensors) for tensors in zip(*points, strict=True)]
        if self.statistics is not None and (layers := tracking_layers(self.model)):
            place = {id(t): value for t, value in zip(self.tensors, values, strict=True)}
            moved = [place[id(t)] for layer in layers for t in (layer.running_mean, layer.running_var)]
            inputs = self.statistics.inputs_for_batchnorm()
            if not gather(self.model, inputs, lambda given: self.forward(values, given), moved):
                raise ValueError("a batch-norm layer runs more than once in a pass")
        found: list[Measured] = [{} for _ in points]
        for name, task in self.tasks.items():
            sums, count = task.total(partial(self.sums[name], values))
            for measured, own in zip(found, sums, strict=True):
                measured[name] = task.means(own, count)
        return found


def _over_points(model: nn.Module, tensors: list[Tensor], function: Callable[[nn.Module, Any], Any]) -> Function:
    """``function(model, batch)`` as a function of stacked tensors and a batch."""
    whole = Called(model, function)
    places = tensor_places(whole, tensors)

    def stacked(values: list[Tensor], batch: Any) -> Any:
        def one(own: list[Tensor]) -> Any:
            given = {name: own[index] for name, index in places.items()}
            return functional_call(whole, given, (batch,), tie_weights=False)

        return vmap(one, randomness="same")(values)

    return stacked
