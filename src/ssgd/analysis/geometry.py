"""Lines, planes and random directions through solutions: weights as a function of one or two coordinates."""

from __future__ import annotations

import copy
import hashlib
import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.checks import check_choice, check_count, check_seed
from ..core.noise import mix
from ..core.selection import magnitudes

State = Mapping[str, Tensor]
Parameters = nn.Module | Collection[str]
Array = NDArray[np.float64]
Axes = tuple[Array, ...]

COLLINEAR = 1e-5  # of its distance: what rounding leaves of a third float32 solution on the line of the others


@dataclass(frozen=True, eq=False, repr=False)
class Geometry(ABC):
    """A map from coordinates to weights, made of solutions.

    A solution is a whole ``state_dict``. ``parameters``, the model or names, says which of its tensors are weights; the
    others are buffers. The solutions are copied, and combined on the device of the first.
    """

    anchors: tuple[State, ...] = field(init=False)
    moving: tuple[str, ...] = field(init=False)
    tied: Mapping[str, str] = field(init=False)  # other names of what moves, and the name among ``moving``
    coordinates: Array = field(init=False)  # of the anchors, a row each
    alike: Sequence[tuple[list[str], list[Tensor]]] = field(init=False)  # names, and all of each ingredient as a vector
    names: Sequence[str] = field(kw_only=True)  # of the anchors, for pictures

    @abstractmethod
    def grid(self, points: int = 21) -> Axes:
        """Returns the values of each coordinate; the grid is their product."""

    @abstractmethod
    def shares(self, *coordinates: float) -> tuple[float, ...]:
        """Returns the share of each anchor at a point; the shares add up to one."""

    def amounts(self, *coordinates: float) -> tuple[float, ...]:
        """Returns the amount of each ingredient at a point: the anchors, and the directions from one if there are."""
        return self.shares(*coordinates)

    def weights_at(self, *coordinates: float) -> dict[str, Tensor]:
        """Returns a point's parameters by all their names; at an anchor its own, bit for bit."""
        anchor, amounts = self.anchor_at(*coordinates), self.amounts(*coordinates)
        weights = {}
        for names, vectors in self.alike:
            values = blend(amounts, vectors).to(vectors[0].dtype) if anchor is None else vectors[anchor].clone()
            shapes = [self.anchors[0][name].shape for name in names]
            parts = torch.split(values, [shape.numel() for shape in shapes])
            weights.update({name: part.view(shape) for name, part, shape in zip(names, parts, shapes, strict=True)})
        return weights | {name: weights[first] for name, first in self.tied.items()}

    def buffers_at(self, *coordinates: float, mode: str) -> dict[str, Tensor]:
        """Returns a point's buffers.

        Mode ``"keep"`` takes those of the nearest anchor, ``"interpolate"`` combines them as the weights are, but for
        counters.
        """
        check_choice("mode", mode, ("interpolate", "keep"))
        nearest = self.anchors[self.nearest(*coordinates)]
        weights = {*self.moving, *self.tied}
        buffers = {name: tensor.clone() for name, tensor in nearest.items() if name not in weights}
        if mode == "interpolate" and self.anchor_at(*coordinates) is None:
            for name, tensor in buffers.items():
                if tensor.is_floating_point():
                    tensors = [state[name] for state in self.anchors]
                    buffers[name] = blend(self.shares(*coordinates), tensors).to(tensor.dtype)
                if name.endswith("running_var"):
                    buffers[name].clamp_(min=0)  # beyond the anchors a share is negative, and a variance may not be
        return buffers

    def to(self, device: torch.device) -> Geometry:
        """Returns the same geometry, whose points are computed on another device."""
        moved = copy.copy(self)
        anchors = tuple({name: t.to(device) for name, t in state.items()} for state in self.anchors)
        object.__setattr__(moved, "anchors", anchors)
        object.__setattr__(moved, "alike", [(names, [v.to(device) for v in vs]) for names, vs in self.alike])
        return moved

    def anchor_at(self, *coordinates: float) -> int | None:
        """Returns the number of the anchor that lies exactly there."""
        if len(coordinates) != self.coordinates.shape[1]:
            raise ValueError(
                f"a {type(self).__name__} has {self.coordinates.shape[1]} coordinates, not {len(coordinates)}"
            )
        at = (self.coordinates == coordinates).all(axis=1)
        return int(at.argmax()) if at.any() else None

    def nearest(self, *coordinates: float) -> int:
        """Returns the number of the nearest anchor."""
        return int(np.linalg.norm(self.coordinates - coordinates, axis=1).argmin())

    def digest(self) -> str:
        """Returns a hash of the anchors' tensors."""
        found = hashlib.sha256(repr((type(self).__name__, self.moving)).encode())
        for state in self.anchors:
            for name, tensor in sorted(state.items()):
                found.update(repr((name, tensor.dtype, tuple(tensor.shape))).encode())
                found.update(tensor.cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()

    def _take(self, states: Sequence[State], parameters: Parameters, **values: Any) -> None:
        anchors, named = _copied(states), _names(parameters)
        if len(self.names) != len(anchors):
            raise ValueError(f"names={self.names!r} must be {len(anchors)}, one a solution")
        missing = sorted({*named.values()} - anchors[0].keys())
        if missing or not named:
            what = f"{missing[0]!r} is none of them" if missing else "none was named"
            raise ValueError(f"parameters must be the model, or names of tensors in the solutions: {what}")
        moving = tuple(name for name in anchors[0] if named.get(name) == name)  # in one order, whoever gave the names
        for name in moving:
            if anchors[0][name].is_complex():
                raise ValueError(f"{name!r} is complex, which is not served: leave it out of the parameters' names")
        tied = {name: first for name, first in named.items() if name != first and name in anchors[0]}
        for name, value in {"anchors": anchors, "moving": moving, "tied": tied, **values}.items():
            object.__setattr__(self, name, value)
        self._mix(anchors)

    def _mix(self, ingredients: Sequence[State]) -> None:
        """Lays out as vectors what the points are combined from; a name missing in an ingredient is zero there."""
        first, alike = ingredients[0], defaultdict[torch.dtype, list[str]](list)
        for name in self.moving:
            alike[first[name].dtype].append(name)

        def flat(state: State, names: list[str]) -> Tensor:
            return torch.cat([state.get(name, torch.zeros_like(first[name])).reshape(-1) for name in names])

        vectors = [(names, [flat(state, names) for state in ingredients]) for names in alike.values()]
        object.__setattr__(self, "alike", vectors)

    def _distance(self, shares: Sequence[float]) -> float:
        """Returns the length of a combination of the anchors whose shares add up to zero, in double precision."""
        return math.sqrt(self._dot(shares, shares))

    def _dot(self, shares: Sequence[float], others: Sequence[float]) -> float:
        total = 0.0
        for name in self.moving:
            tensors = [state[name] for state in self.anchors]
            products = blend(shares, tensors) * blend(others, tensors)
            total += float(products.cpu().numpy().sum())  # torch's sum depends on the threads, and a file is to go on
        if not math.isfinite(total):
            raise ValueError("a solution holds weights that are not finite: there is no way through it")
        return total


@dataclass(frozen=True, eq=False, repr=False)
class Line(Geometry):
    """The straight line through two solutions, ``a`` at 0 and ``b`` at 1."""

    a: InitVar[State]
    b: InitVar[State]
    parameters: InitVar[Parameters]
    names: Sequence[str] = field(default=("a", "b"), kw_only=True)

    def __post_init__(self, a: State, b: State, parameters: Parameters) -> None:
        self._take((a, b), parameters, coordinates=np.array([[0.0], [1.0]]))
        if not self._distance((-1, 1)):
            raise ValueError("a and b are the same weights: a line needs two different solutions")

    def grid(self, points: int = 61, margin: float = 0.5) -> Axes:
        """Returns points from ``margin`` before a to ``margin`` beyond b."""
        return (_spaced(-margin, 1 + margin, points),)

    def shares(self, *coordinates: float) -> tuple[float, ...]:
        (t,) = coordinates
        return 1 - t, t


@dataclass(frozen=True, eq=False, repr=False)
class Plane(Geometry):
    """The plane through three solutions (Garipov et al., arXiv:1802.10026).

    Coordinates count distance in weights: the first runs from ``a`` to ``b``, the second at a right angle, towards
    ``c``.
    """

    a: InitVar[State]
    b: InitVar[State]
    c: InitVar[State]
    parameters: InitVar[Parameters]
    names: Sequence[str] = field(default=("a", "b", "c"), kw_only=True)

    def __post_init__(self, a: State, b: State, c: State, parameters: Parameters) -> None:
        self._take((a, b, c), parameters)
        to_b, to_c = self._distance((-1, 1, 0)), self._distance((-1, 0, 1))
        if not to_b or not to_c:
            raise ValueError(f"a and {'c' if to_b else 'b'} are the same weights: a plane needs three solutions")
        along = self._dot((-1, 1, 0), (-1, 0, 1)) / to_b
        part = along / to_b
        across = self._distance((part - 1, -part, 1))
        if across <= COLLINEAR * to_c:
            raise ValueError("the three solutions lie on one line: there is no plane through them; use Line")
        object.__setattr__(self, "coordinates", np.array([[0.0, 0.0], [to_b, 0.0], [along, across]]))

    def grid(self, points: int = 21, margin: float = 0.2) -> Axes:
        """Returns points that span all three solutions and, on each side, ``margin`` of their extent."""
        low, high = self.coordinates.min(axis=0), self.coordinates.max(axis=0)
        edge = margin * (high - low)
        return tuple(_spaced(low[i] - edge[i], high[i] + edge[i], points) for i in (0, 1))

    def shares(self, *coordinates: float) -> tuple[float, ...]:
        x, y = coordinates
        _, (to_b, _), (along, across) = self.coordinates.tolist()
        of_c = y / across
        of_b = (x - of_c * along) / to_b
        return 1 - of_b - of_c, of_b, of_c


@dataclass(frozen=True, eq=False, repr=False)
class Directions(Geometry):
    """One or two random directions around a solution (Li et al., arXiv:1712.09913), a function of the seed alone.

    A direction is Gaussian and has in each filter (``"filter"``: a row of the tensor) or tensor (``"layer"``) the norm
    of the weights there. Biases and normalisation stay: only tensors of two or more dimensions move.
    """

    centre: InitVar[State]
    parameters: InitVar[Parameters]
    count: int = 2
    seed: int = 0
    normalise: str = "filter"
    names: Sequence[str] = field(default=("centre",), kw_only=True)
    directions: tuple[State, ...] = field(init=False)

    def __post_init__(self, centre: State, parameters: Parameters) -> None:
        object.__setattr__(self, "seed", check_seed(self.seed))
        check_choice("normalise", self.normalise, ("filter", "layer", "none"))
        if self.count not in (1, 2):
            raise ValueError(f"count must be 1 or 2 directions, not {self.count!r}")
        self._take((centre,), parameters, coordinates=np.zeros((1, self.count)))
        tensors = [self.anchors[0][name] for name in self.moving]
        still = magnitudes(tensors)
        weights = {n: t for n, t in zip(self.moving, tensors, strict=True) if t.dim() >= 2 and id(t) not in still}
        if not weights:
            raise ValueError("no parameter has two or more dimensions, and biases stay: there is no direction to go")
        drawn = tuple(_direction(weights, mix(self.seed, i), self.normalise) for i in range(self.count))
        object.__setattr__(self, "directions", drawn)
        self._mix((*self.anchors, *drawn))

    def grid(self, points: int = 51, reach: float = 1.0) -> Axes:
        """Returns points from ``-reach`` to ``reach`` along each direction."""
        return (_spaced(-reach, reach, points),) * self.count

    def shares(self, *coordinates: float) -> tuple[float, ...]:
        return (1.0,)

    def amounts(self, *coordinates: float) -> tuple[float, ...]:
        return 1.0, *coordinates


def _copied(states: Sequence[State]) -> tuple[State, ...]:
    """Checks that the states agree in names and shapes, and copies them: a ``state_dict`` follows its model."""
    first = states[0]
    for state in states:
        if not isinstance(state, Mapping):
            raise ValueError(f"a solution must be a state_dict of tensors, not a {type(state).__name__}")
        for name, value in state.items():
            if not isinstance(value, Tensor):
                kind = type(value).__name__
                raise ValueError(f"a solution must be a state_dict of tensors, but {name!r} is of type {kind}")
        if state.keys() != first.keys():
            name = sorted(state.keys() ^ first.keys())[0]
            raise ValueError(f"the solutions are of different models: only some of them have {name!r}")
        for name in first:
            if state[name].shape != first[name].shape:
                shapes = f"{tuple(first[name].shape)} and {tuple(state[name].shape)}"
                raise ValueError(f"the solutions are of different models: {name!r} has the shapes {shapes}")
    return tuple(
        {name: tensor.detach().to(first[name].device, copy=True) for name, tensor in state.items()} for state in states
    )


def _names(parameters: Parameters) -> dict[str, str]:
    """Maps each name of a parameter to the first of its names, so that tied ones count once."""
    if isinstance(parameters, nn.Module):
        first: dict[int, str] = {}
        every = parameters.named_parameters(remove_duplicate=False)
        return {name: first.setdefault(id(p), name) for name, p in every}
    return {name: name for name in ([parameters] if isinstance(parameters, str) else parameters)}


def _spaced(low: float, high: float, points: int) -> Array:
    check_count("points", points)
    if not (math.isfinite(low) and math.isfinite(high)):
        raise ValueError(f"a grid cannot go from {low} to {high}: give a finite margin or reach")
    return np.linspace(low, high, points)


def blend(shares: Sequence[float], tensors: Sequence[Tensor]) -> Tensor:
    """Returns the sum of the tensors times their shares, in double precision."""
    total = torch.zeros_like(tensors[0], dtype=torch.float64)
    for share, tensor in zip(shares, tensors, strict=True):
        total.add_(tensor, alpha=share)
    return total


def _direction(weights: State, seed: int, normalise: str) -> State:
    generator = torch.Generator().manual_seed(seed)  # the CPU's, so that every device goes the same way
    direction = {}
    for name, weight in weights.items():
        drawn = torch.randn(weight.shape, generator=generator, dtype=torch.float64).to(weight.device)
        if normalise != "none":
            parts = (len(weight), -1) if normalise == "filter" else (1, -1)
            length, aim = (t.reshape(parts).norm(dim=1, keepdim=True) for t in (drawn, weight.double()))
            drawn = (drawn.reshape(parts) * (aim / length)).reshape(weight.shape)
        direction[name] = drawn
    return direction
