"""Loss and error over a line, a plane or random directions, point by point."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..core.batchnorm import tracking_layers
from ..core.checks import check_choice
from ..core.moving import drop_stale_copies
from .acceleration import Captured
from .geometry import Axes, Directions, Geometry
from .results import Header, Row, complete
from .task import PRECISIONS, Task, check_task, seeded, unmoved

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
        graph: the passes of a batch as CUDA graphs, for nets whose operations are too short for the host to keep up
            with. The data must be tensors, and the loss may not wait for the device.
        data: what the data are, as text or as JSON, for ``out.jsonl``: points of others are then not taken up.

    Under ``torchrun`` the points are shared out; every process returns the whole. Each point starts from the same
    random state, so that shuffling and dropout are alike everywhere.
    """
    check_choice("batchnorm", batchnorm, ("recompute", "interpolate", "keep"))
    check_choice("precision", precision, PRECISIONS)
    model = _common_model(geometry, tasks)
    axes = geometry.grid() if grid is None else grid
    header = {**_header(geometry, tasks, axes, batchnorm), "precision": precision, "data": data}
    points = [*map(tuple, header["anchors"]), *product(*header["axes"])]
    with unmoved(model, precision=precision, stream=seeded(model)) as stream:
        tasks = {name: task.replaying(stream) for name, task in tasks.items()}
        measure = _Points(geometry, tasks, model, batchnorm, graph)
        return complete(out, header, points, measure, _surface, "points", progress)


class _Points:
    """Loads one point after another into the model, and measures loss and error of each task there."""

    def __init__(
        self, geometry: Geometry, tasks: Mapping[str, Task], model: nn.Module, batchnorm: str, graph: bool
    ) -> None:
        bare = _bare(model)
        self.tasks = tasks
        self.geometry = geometry.to(next(bare.parameters()).device)
        self.mode = "interpolate" if batchnorm == "interpolate" else "keep"
        self.statistics = tasks.get("train", next(iter(tasks.values()))) if batchnorm == "recompute" else None
        self.targets = {
            **dict(bare.named_buffers(remove_duplicate=False)),
            **dict(bare.named_parameters(remove_duplicate=False)),
        }
        counters = [t for layer in tracking_layers(bare) if (t := layer.num_batches_tracked) is not None]
        faster: Callable[..., Any] = partial(Captured, counters=counters) if graph else lambda function: function
        self.forward = faster(lambda inputs: model(inputs))
        self.sums = {name: faster(partial(task.sums, model)) for name, task in tasks.items()}

    def __call__(self, point: Sequence[float]) -> Means:
        self._load(point)
        if self.statistics is not None:
            self.statistics.recompute_batchnorm(self.forward)
        return {name: task.measure(self.sums[name]) for name, task in self.tasks.items()}

    @torch.no_grad()
    def _load(self, point: Sequence[float]) -> None:
        buffers = self.geometry.buffers_at(*point, mode=self.mode)
        for state in (buffers, self.geometry.weights_at(*point)):  # in this order: a buffer may be tied to a weight
            if state:
                torch._foreach_copy_([self.targets[name] for name in state], list(state.values()))
        drop_stale_copies()


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


def _surface(header: Header, rows: Sequence[Row]) -> Surface:
    anchors, tasks = np.array(header["anchors"]), header["tasks"]
    shape = [len(axis) for axis in header["axes"]]
    found = [[row["measured"][task] for task in tasks] for row in rows]
    measured = np.array(found, dtype=float).transpose(2, 1, 0)  # what, task, point
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
    )
