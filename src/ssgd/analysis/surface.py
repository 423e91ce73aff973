"""Loss and error over a line, a plane or random directions, point by point."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vmap

from ..core.batchnorm import tracking_layers
from ..core.checks import check_choice, check_count
from .acceleration import Function, captured, compiled, full_precision
from .geometry import Axes, Directions, Geometry, PointLoader
from .results import Header, Rows, open_journal, progress_bar, save
from .task import FunctionOfModel, Task, check_task, evaluating, gather, kept, seeded

Array = NDArray[np.float64]
Means = dict[str, tuple[float, float | None]]  # loss and error of each task


@dataclass(frozen=True, eq=False)
class Surface:
    """Loss and error (in percent) of each task at each point of a grid and at each anchor.

    Missing numbers are nan: points that are not done yet, errors of a task that counts none.
    """

    geometry: str  # "Line", "Plane" or "Directions"
    names: list[str]  # of the anchors
    tasks: list[str]
    batchnorm: str
    x: Array
    y: Array  # empty where there is one coordinate
    losses: Array  # (tasks, x) or (tasks, x, y)
    errors: Array
    anchors: Array  # (anchors, coordinates)
    anchor_losses: Array  # (tasks, anchors)
    anchor_errors: Array
    digest: str  # of the anchors' tensors
    seed: int | None = None
    normalise: str | None = None
    precision: str = "fp32"
    seconds: float | None = None  # all points together; not in the file, which is the same whoever computes it

    def values(self, of: str, what: str = "loss") -> Array:
        """Returns the ``"loss"`` or ``"error"`` of a task over the grid."""
        values: Array = self._chosen(what, self.losses, self.errors)[self._place(of)]
        return values

    def at_anchors(self, of: str, what: str = "loss") -> Array:
        """Returns the ``"loss"`` or ``"error"`` of a task at the anchors."""
        values: Array = self._chosen(what, self.anchor_losses, self.anchor_errors)[self._place(of)]
        return values

    def _place(self, of: str) -> int:
        check_choice("of", of, tuple(self.tasks))
        return self.tasks.index(of)

    def _chosen(self, what: str, losses: Array, errors: Array) -> Array:
        check_choice("what", what, ("loss", "error"))
        return losses if what == "loss" else errors


def evaluate(
    geometry: Geometry,
    tasks: Mapping[str, Task],
    grid: Axes | None = None,
    batchnorm: str = "recompute",
    out: str | Path | None = None,
    progress: bool = True,
    precision: str = "fp32",
    compile: bool = False,
    together: int = 1,
    graph: bool = False,
    data: object = None,
) -> Surface:
    """Measures every task at the anchors and at every point of a grid; the model stays as it is.

    Args:
        tasks: by name, such as ``{"train": ..., "test": ...}``, all of one model.
        grid: the values of each coordinate, by default ``geometry.grid()``.
        batchnorm: ``"recompute"`` gathers the statistics again at each point, over the task called ``"train"``, else
            the first; ``"interpolate"`` combines those of the anchors; ``"keep"`` takes those of the nearest anchor.
        out: points are written to ``out.jsonl`` as they are done, and the same call goes on where it was cut; at the
            end ``out.npz`` and ``out.json`` hold the result. Data and loss are yours to keep the same, see ``data``.
        precision: ``"fp32"`` without TF32, whatever torch's settings are; ``"tf32"``; or ``"bf16"``, by autocast.
        compile: with ``torch.compile``: a minute at first, then faster on a GPU.
        together: so many points in one pass, by vmap over their weights, which agrees up to rounding: for nets too
            small to fill a GPU.
        graph: the passes of a batch as CUDA graphs, where points go one by one: for nets whose operations are too short
            for the host to keep up with. The data must be tensors, and the loss may not wait for the device.
        data: what the data are, as text or as JSON, for ``out.jsonl``: points of others are then not taken up.

    Under ``torchrun`` the points are shared out; every process returns the whole. Each point starts from the same
    random state, so that shuffling and dropout are alike everywhere.
    """
    check_choice("batchnorm", batchnorm, ("recompute", "interpolate", "keep"))
    check_choice("precision", precision, ("fp32", "tf32", "bf16"))
    check_count("together", together)
    model = _common_model(geometry, tasks)
    axes = geometry.grid() if grid is None else grid
    known = json.loads(json.dumps(data))  # as it will be read again
    header = {**_header(geometry, tasks, axes, batchnorm), "precision": precision, "data": known}
    points = [*map(tuple, header["anchors"]), *product(*header["axes"])]
    path = None if out is None else Path(out)
    with open_journal(path, header) as journal:
        rows = journal.begin()
        groups = [range(first, min(first + together, len(points))) for first in range(0, len(points), together)]
        missing = [group for group in groups if not rows.keys() >= {*group}]
        with kept(model), evaluating(model):
            points_of = _Points(geometry, tasks, model, batchnorm, precision, compile, graph, together > 1)
            for group in _shown(missing[journal.rank :: journal.count], progress and journal.rank == 0):
                start = time.perf_counter()
                found = points_of.measure([points[index] for index in group])
                seconds = (time.perf_counter() - start) / len(group)
                for index, measured in zip(group, found, strict=True):
                    if index not in rows:
                        rows[index] = {"measured": measured, "seconds": seconds}
                        journal.write(index, rows[index])
        rows = journal.end(rows)
        surface = _surface(header, rows)
        if path is not None and journal.rank == 0:
            save(replace(surface, seconds=None), path)
    return surface


class _Points:
    """Loads and measures points, one by one or in groups. Leaves the model at the last."""

    def __init__(
        self,
        geometry: Geometry,
        tasks: Mapping[str, Task],
        model: nn.Module,
        batchnorm: str,
        precision: str,
        compile: bool,
        graph: bool,
        stacked: bool,
    ) -> None:
        statistics = tasks.get("train", next(iter(tasks.values()))) if batchnorm == "recompute" else None
        self.devices = {p.device for p in model.parameters()}
        self.precision, self.graph = precision, graph
        self.load = PointLoader(_bare(model), geometry, batchnorm == "interpolate")
        self.one = Measurement(model, tasks, statistics, compile, graph)
        self.several = StackedMeasurement(_bare(model), tasks, statistics, compile) if stacked else None

    def measure(self, points: Sequence[Sequence[float]]) -> list[Means]:
        """Returns loss and error of each task at each point."""
        if self.several is not None:
            try:
                return self._together(self.several, points)
            except torch.OutOfMemoryError:
                raise
            except Exception as error:
                print(f"points go one by one, because vmap does not serve this model: {error}", file=sys.stderr)
                self.several = None
        return [self._alone(point) for point in points]

    def _alone(self, point: Sequence[float]) -> Means:
        with self._ready():
            self.load(point)
            return self.one.means()

    def _together(self, several: StackedMeasurement, points: Sequence[Sequence[float]]) -> list[Means]:
        with self._ready():
            snapshots = []
            for point in points:
                self.load(point)
                snapshots.append(several.snapshot())
            return several.at(snapshots)

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Sets the random numbers, the same for all points, and the precision.

        A graph has to cast the weights itself: casts that autocast had cached would serve all points.
        """
        with seeded(self.devices), full_precision(tf32=self.precision != "fp32"), ExitStack() as casts:
            for kind in {device.type for device in self.devices} if self.precision == "bf16" else ():
                casts.enter_context(torch.autocast(kind, torch.bfloat16, cache_enabled=not self.graph))
            yield


class Measurement:
    """Loss and error of tasks with the model's tensors as they are.

    ``statistics`` is the task that batch-norm's are gathered from, or None.
    """

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

    def means(self) -> Means:
        if self.statistics is not None:
            self.statistics.recompute_batchnorm(self.forward)
        return {name: task.measure(self.sums[name]) for name, task in self.tasks.items()}


class StackedMeasurement:
    """Loss and error of tasks at several points at once: vmap goes over a leading dimension of every tensor."""

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
        """Returns copies of the model's tensors: a point for ``at()``."""
        return [t.detach().clone() for t in self.tensors]

    def at(self, points: Sequence[list[Tensor]]) -> list[Means]:
        values = [torch.stack(tensors) for tensors in zip(*points, strict=True)]
        if self.statistics is not None and (layers := tracking_layers(self.model)):
            place = {id(t): value for t, value in zip(self.tensors, values, strict=True)}
            moved = [place[id(t)] for layer in layers for t in (layer.running_mean, layer.running_var)]
            inputs = self.statistics.inputs_for_batchnorm()
            if not gather(self.model, inputs, lambda given: self.forward(values, given), moved):
                raise ValueError("a batch-norm layer runs more than once in a pass")
        found: list[Means] = [{} for _ in points]
        for name, task in self.tasks.items():
            sums, count = task.total(partial(self.sums[name], values))
            for measured, of_point in zip(found, sums, strict=True):
                measured[name] = task.means(of_point, count)
        return found


def _over_points(model: nn.Module, tensors: list[Tensor], function: Callable[[nn.Module, Any], Any]) -> Function:
    """Returns ``function(model, batch)`` as a function of stacked tensors and a batch."""
    whole = FunctionOfModel(model, function, tensors)
    return lambda values, batch: vmap(lambda point: whole.called_with(point, batch), randomness="same")(values)


def _common_model(geometry: Geometry, tasks: Mapping[str, Task]) -> nn.Module:
    if not isinstance(tasks, Mapping):
        raise TypeError('tasks must be Tasks by name, such as {"train": Task(model, loss, batches)}')
    for task in tasks.values():
        check_task(task)
    models = {id(task.model): task.model for task in tasks.values()}
    if len(models) != 1:
        raise ValueError(f"the tasks must share one model, which is moved from point to point, not {len(models)}")
    (model,) = models.values()
    solution = geometry.anchors[0]
    expected = {name: t.shape for name, t in _bare(model).state_dict().items() if isinstance(t, torch.Tensor)}
    for name in sorted({*solution, *expected}):
        if name not in solution or name not in expected or solution[name].shape != expected[name]:
            raise ValueError(f"the solutions are not of the tasks' model: {name!r} is not the same in both")
    return model


def _bare(model: nn.Module) -> nn.Module:
    inner: nn.Module = getattr(model, "_orig_mod", model)  # a compiled model names its tensors otherwise
    return inner


def _header(geometry: Geometry, tasks: Mapping[str, Task], axes: Axes, batchnorm: str) -> Header:
    """Returns all that an evaluation is a function of, but for data and loss."""
    if not isinstance(axes, Sized) or len(axes) != geometry.coordinates.shape[1]:
        wanted = geometry.coordinates.shape[1]
        raise ValueError(f"grid must hold the values of each of {wanted} coordinates, as geometry.grid() does")
    header = {
        "geometry": type(geometry).__name__,
        "names": list(geometry.names),
        "tasks": list(tasks),
        "batchnorm": batchnorm,
        "anchors": geometry.coordinates.tolist(),
        "axes": [np.asarray(axis, dtype=float).tolist() for axis in axes],
        "seed": geometry.seed if isinstance(geometry, Directions) else None,
        "normalise": geometry.normalise if isinstance(geometry, Directions) else None,
        "digest": geometry.digest(),
    }
    return header


def _surface(header: Header, rows: Rows) -> Surface:
    anchors, tasks = np.array(header["anchors"]), header["tasks"]
    shape = [len(axis) for axis in header["axes"]]
    measured = np.full((2, len(tasks), len(anchors) + math.prod(shape)), np.nan)
    for index, row in rows.items():
        measured[:, :, index] = np.array([row["measured"][task] for task in tasks], dtype=float).T
    losses, errors = measured[:, :, len(anchors) :].reshape(2, len(tasks), *shape)
    x, y = (*map(np.array, header["axes"]), np.array([]))[:2]
    copied = ("geometry", "names", "tasks", "batchnorm", "digest", "seed", "normalise", "precision")
    return Surface(
        **{key: header[key] for key in copied},
        x=x,
        y=y,
        losses=losses,
        errors=errors,
        anchors=anchors,
        anchor_losses=measured[0, :, : len(anchors)],
        anchor_errors=measured[1, :, : len(anchors)],
        seconds=sum(row["seconds"] for row in rows.values()),
    )


def _shown(groups: list[range], progress: bool) -> Iterator[range]:
    with progress_bar(sum(map(len, groups)), "points", progress) as done:
        for group in groups:
            yield group
            done(len(group))
