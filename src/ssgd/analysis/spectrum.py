"""The density of the Hessian's eigenvalues by stochastic Lanczos quadrature (Ghorbani et al., arXiv:1901.10159)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..core.checks import check_count, check_seed
from .hessian import Hessian
from .lanczos import lanczos_together
from .symmetric import Measured, Symmetric, watched
from .task import Task

Array = NDArray[np.float64]
ROOM = 2**32  # bytes for the bases of probes side by side


@dataclass(frozen=True)
class Spectrum(Measured):
    """A row of Ritz values and their weights for each probe; a row that ended early is filled with weights of zero."""

    values: Array
    weights: Array

    def density(self, grid: Array | None = None, sigma: float | None = None) -> tuple[Array, Array, Array]:
        """The grid, the density on it, and the density's standard error between probes (nan for a single probe).

        Each Ritz value is a normal curve of width ``sigma``, by default a hundredth of the spectrum's. The density's
        integral is 1: times ``parameters`` it counts eigenvalues.
        """
        span = (self.largest - self.smallest) or abs(self.largest) or 1.0
        if sigma is None:
            sigma = span / 100
        if grid is None:
            grid = np.linspace(self.smallest - span / 20, self.largest + span / 20, 1001)
        curves = np.exp(-0.5 * ((grid - self.values[..., None]) / sigma) ** 2) / (sigma * math.sqrt(2 * math.pi))
        return grid, *_over_probes(np.einsum("ps,psg->pg", self.weights, curves))

    def moments(self, count: int = 4) -> tuple[Array, Array]:
        """tr(H^k) / parameters for k = 1 … count, and the standard errors between probes."""
        powers = self.values[..., None] ** np.arange(1, count + 1)
        return _over_probes(np.einsum("ps,psk->pk", self.weights, powers))

    @property
    def largest(self) -> float:
        """The largest Ritz value: close to the largest eigenvalue, and never above it."""
        return float(self.values[self.weights > 0].max())

    @property
    def smallest(self) -> float:
        """The smallest Ritz value: close to the smallest eigenvalue, and never below it."""
        return float(self.values[self.weights > 0].min())


def spectrum(
    source: Task | Symmetric, steps: int = 90, probes: int = 5, seed: int = 0, progress: bool = False
) -> Spectrum:
    """The eigenvalue density of a task's Hessian, or of a ``Hessian`` with choices of its own, or of any matrix.

    ``probes`` random vectors of signs, ``steps`` products with each. Memory for ``steps`` vectors of all weights is
    needed on the weights' device. As many probes as have room there in 4 GiB share their passes over the data.
    """
    check_count("steps", steps)
    check_count("probes", probes)
    seed = check_seed(seed)
    matrix = source if isinstance(source, Symmetric) else Hessian(source)
    steps = min(steps, matrix.size)
    values, weights = np.zeros((probes, steps)), np.zeros((probes, steps))
    beside = max(1, ROOM // (steps * matrix.size * matrix.dtype.itemsize))
    with watched(matrix, seed, progress, probes * steps) as watch:
        for group in np.array_split(np.arange(probes), -(-probes // beside)):
            starts = [matrix.draw("sign", seed, int(probe)) for probe in group]
            for probe, found in zip(group, lanczos_together(watch.matmat, starts, steps), strict=True):
                nodes, shares = found.ritz()
                values[probe, : len(nodes)], weights[probe, : len(nodes)] = nodes, shares
        return Spectrum(values=values, weights=weights, **watch.facts())


def _over_probes(found: Array) -> tuple[Array, Array]:
    """Mean and standard error over the first dimension."""
    if len(found) == 1:
        return found[0], np.full_like(found[0], np.nan)
    return found.mean(0), found.std(0, ddof=1) / math.sqrt(len(found))
