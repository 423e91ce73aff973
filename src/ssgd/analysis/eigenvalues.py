"""The Hessian's eigenvalues: their density, both ends, and their sum.

The density comes from stochastic Lanczos quadrature (Ghorbani et al., arXiv:1901.10159), the ends from Lanczos with
thick restarts, the trace from XTrace (arXiv:2301.07825), Hutch++ (arXiv:2010.09649) or Hutchinson's average.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.checks import check_choice, check_count, check_seed
from .hessian import Hessian
from .symmetric import (
    CountedProducts,
    Krylov,
    MatrixResult,
    Symmetric,
    counted,
    dot,
    lanczos_together,
    norm,
    vanishing,
)
from .task import Task

Array = NDArray[np.float64]
Method = Callable[[CountedProducts, int, int], Array]
MEMORY = 2**32  # bytes for the bases of probes side by side


@dataclass(frozen=True)
class Spectrum(MatrixResult):
    """A row of Ritz values and their weights for each probe; a row that ended early is filled with weights of zero."""

    values: Array
    weights: Array

    def density(self, grid: Array | None = None, sigma: float | None = None) -> tuple[Array, Array, Array]:
        """Returns the grid, the density on it, and its standard error between probes (nan for a single probe).

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
        """Returns tr(H^k) / parameters for k = 1 … count, and the standard errors between probes."""
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
    """Estimates the eigenvalue density of a task's Hessian, of a ``Hessian`` with other options, or of any matrix.

    ``probes`` random vectors of signs, ``steps`` products with each. Memory for ``steps`` vectors of all weights is
    needed on the weights' device. As many probes as have room there in 4 GiB share their passes over the data.
    """
    check_count("steps", steps)
    check_count("probes", probes)
    seed = check_seed(seed)
    matrix = source if isinstance(source, Symmetric) else Hessian(source)
    steps = min(steps, matrix.size)
    values, weights = np.zeros((probes, steps)), np.zeros((probes, steps))
    together = max(1, MEMORY // (steps * matrix.size * matrix.dtype.itemsize))
    with counted(matrix, seed, progress, probes * steps) as counter:
        for group in np.array_split(np.arange(probes), -(-probes // together)):
            starts = [matrix.draw("sign", seed, int(probe)) for probe in group]
            for probe, found in zip(group, lanczos_together(counter.matmat, starts, steps), strict=True):
                nodes, _, shares = found.ritz()
                values[probe, : len(nodes)], weights[probe, : len(nodes)] = nodes, shares
        return Spectrum(values=values, weights=weights, **counter.facts())


def _over_probes(found: Array) -> tuple[Array, Array]:
    """Returns mean and standard error over the first dimension."""
    if len(found) == 1:
        return found[0], np.full_like(found[0], np.nan)
    return found.mean(0), found.std(0, ddof=1) / math.sqrt(len(found))


@dataclass(frozen=True)
class Eigenvalues(MatrixResult):
    """``largest`` in falling and ``smallest`` in rising order; an end that was not asked for is empty.

    ``residuals`` are ‖Hx − λx‖ for the unit vectors x found, measured with a product each, in the order largest,
    smallest: an eigenvalue lies that close to λ. ``converged`` says whether Lanczos reached its tolerance; where the
    residuals are larger all the same, the products themselves are not more precise. ``vectors`` has the x as rows, or
    none.
    """

    largest: Array
    smallest: Array
    residuals: Array
    vectors: NDArray[np.floating]
    converged: bool


def top_eigenvalues(
    source: Task | Symmetric,
    count: int = 1,
    which: str = "both",
    tolerance: float = 1e-6,
    products: int = 1000,
    block: int = 1,
    vectors: bool = False,
    seed: int = 0,
    progress: bool = False,
) -> Eigenvalues:
    """Finds ``count`` eigenvalues at each end of a task's Hessian, of a ``Hessian``, or of any matrix.

    Args:
        which: ``"both"``, ``"largest"`` or ``"smallest"``.
        tolerance: how small ‖Hx − λx‖ must get relative to |λ|; where λ is near 0, what rounding allows is enough.
        products: give up after so many, with ``converged`` false.
        block: how many vectors to begin with. Equal eigenvalues are found so many times and not more, which matters for
            a regression with several outputs, where each comes once for every output; else 1 needs the fewest products.
        vectors: keep the eigenvectors in the result.

    Memory for about 60 vectors of all weights, and three for each eigenvalue, is needed on the weights' device.
    """
    check_count("count", count)
    check_count("block", block)
    check_count("products", products)
    check_choice("which", which, ("both", "largest", "smallest"))
    if not tolerance > 0:
        raise ValueError(f"tolerance must be above 0, not {tolerance!r}")
    seed = check_seed(seed)
    matrix = source if isinstance(source, Symmetric) else Hessian(source)
    if count > matrix.size or block > matrix.size:
        raise ValueError(f"a matrix of {matrix.size} rows has no {max(count, block)} eigenvalues: ask for fewer")
    low, high = (0 if which == "largest" else count), (0 if which == "smallest" else count)
    with counted(matrix, seed, progress, None) as counter:
        drawn = (matrix.draw("sphere", seed, number) for number in itertools.count())
        start = torch.stack([next(drawn) for _ in range(block)])
        krylov = Krylov(start, min(matrix.size, 2 * (low + high + block) + 40), low, high, drawn)
        converged = False
        while not converged and (counter.products < products or not krylov.enough):
            if krylov.full:
                krylov.shrink()
            krylov.take(counter.matmat(krylov.rows()))
            values, residuals, _ = krylov.ritz()
            ends = krylov.ends
            floor = vanishing(matrix.dtype) * np.abs(values).max()
            fine = residuals[ends] <= np.maximum(tolerance * np.abs(values[ends]), floor)
            converged = krylov.enough and bool(fine.all()) and (krylov.full or not krylov.fresh)
        found = krylov.vectors()
        images = counter.matmat(found)
        values = np.array([dot(x, y) for x, y in zip(found, images, strict=True)])
        residuals = np.array([norm(y - value * x) for x, y, value in zip(found, images, values, strict=True)])
        order = np.concatenate([np.argsort(-values[:high]), high + np.argsort(values[high:])])
        return Eigenvalues(
            largest=values[order[:high]],
            smallest=values[order[high:]],
            residuals=residuals[order],
            vectors=found[order if vectors else order[:0]].cpu().numpy(),
            converged=converged,
            **counter.facts(),
        )


@dataclass(frozen=True)
class Trace(MatrixResult):
    """``estimate``, and its standard ``error`` from the spread of the ``estimates`` whose mean it is.

    With as many products as there are parameters the method is ``"exact"`` and the error 0.
    """

    estimate: float
    error: float
    estimates: Array
    method: str


def trace(
    source: Task | Symmetric, products: int = 60, method: str = "xtrace", seed: int = 0, progress: bool = False
) -> Trace:
    """Estimates the trace of a task's Hessian, of a ``Hessian``, or of any matrix, from at most ``products`` products.

    ``"hutchinson"`` averages vᵀHv over vectors v of signs. ``"hutch++"`` takes a third of the products to find where H
    is large, a third for the trace there, exactly, and a third for Hutchinson's average of what is left. ``"xtrace"``
    gives each vector both tasks in turn; where a few eigenvalues stand out it is the best of the three. Memory for
    twice ``products`` vectors of all weights is needed on the weights' device; for ``"hutchinson"`` that of a few.
    """
    check_choice("method", method, tuple(METHODS))
    check_count("products", products)
    seed = check_seed(seed)
    matrix = source if isinstance(source, Symmetric) else Hessian(source)
    with counted(matrix, seed, progress, min(products, matrix.size)) as counter:
        if products >= matrix.size:
            exact = _exactly(counter)
            return Trace(estimate=exact, error=0.0, estimates=np.array([exact]), method="exact", **counter.facts())
        least, estimate = METHODS[method]
        if products < least:
            raise ValueError(f"{method} needs at least {least} products for an estimate with an error, not {products}")
        estimates = estimate(counter, products, seed)
        mean, error = float(estimates.mean()), float(estimates.std(ddof=1) / math.sqrt(len(estimates)))
        return Trace(estimate=mean, error=error, estimates=estimates, method=method, **counter.facts())


def _hutchinson(counter: CountedProducts, products: int, seed: int) -> Array:
    vectors = (counter.matrix.draw("sign", seed, number).unsqueeze(0) for number in range(products))
    return np.array([_dots(vector, counter.matmat(vector)).item() for vector in vectors])  # one in memory at a time


def _hutch(counter: CountedProducts, products: int, seed: int) -> Array:
    third = products // 3
    draws = [counter.matrix.draw("sign", seed, number) for number in range(2 * third)]
    basis = _orthonormal(counter.matmat(torch.stack(draws[:third])))
    inside = _dots(basis, counter.matmat(basis)).sum()
    rest = torch.stack(draws[third:])
    rest -= (rest @ basis.T) @ basis
    found: Array = inside + _dots(rest, counter.matmat(rest))
    return found


def _xtrace(counter: CountedProducts, products: int, seed: int) -> Array:
    """Leaves out each vector ω once: the trace in the span Q of the others' images, and ω's estimate outside of it.

    Q without the image of ω is Q less one direction s, so that all of it comes down to small matrices.
    """
    size, half = counter.matrix.size, products // 2
    vectors = torch.stack([counter.matrix.draw("sphere", seed, number) for number in range(half)])
    images = counter.matmat(vectors)
    basis = _orthonormal(images)
    of_basis = counter.matmat(basis)

    inside = _small(basis, of_basis)  # QᵀHQ
    inside = (inside + inside.T) / 2
    triangle = _small(basis, images)  # the images in the basis: column i is the image of ω_i
    floor = np.finfo(float).eps * np.abs(triangle).max() or 1.0
    diagonal = np.diag(triangle)
    # a matrix of low rank has more vectors than images
    triangle += np.diag(np.where(np.abs(diagonal) < floor, floor, 0.0))
    left_out = np.linalg.inv(triangle).T
    left_out /= np.linalg.norm(left_out, axis=0)  # s_i: orthogonal to every image but the i-th

    along = _small(basis, vectors)  # Qᵀω
    crossed = _small(of_basis, vectors)  # QᵀHω
    removed = along - left_out * (left_out * along).sum(0)  # what of ω lies in the basis without s
    outside = _dots(vectors, images) - 2 * (removed * crossed).sum(0) + (removed * (inside @ removed)).sum(0)
    length = _dots(vectors, vectors) - (removed**2).sum(0)
    inside_trace = np.trace(inside) - (left_out * (inside @ left_out)).sum(0)
    return np.asarray(inside_trace + (size - half + 1) * outside / length)


def _exactly(counter: CountedProducts) -> float:
    unit = torch.zeros(1, counter.matrix.size, dtype=counter.matrix.dtype, device=counter.matrix.device)
    total = 0.0
    for index in range(counter.matrix.size):
        unit[0, index] = 1
        total += float(counter.matmat(unit)[0, index])
        unit[0, index] = 0
    return total


def _orthonormal(rows: Tensor) -> Tensor:
    """Returns an orthonormal basis of the rows' span; its first k rows span the first k."""
    basis: Tensor = torch.linalg.qr(rows.T).Q
    return basis.T.contiguous()


def _dots(a: Tensor, b: Tensor) -> Array:
    """Returns the products row by row."""
    return np.array([dot(x, y) for x, y in zip(a, b, strict=True)])


def _small(a: Tensor, b: Tensor) -> Array:
    """Returns the products of every row of one with every row of the other."""
    found: Array = (a @ b.T).double().cpu().numpy()
    return found


METHODS: dict[str, tuple[int, Method]] = {
    "xtrace": (4, _xtrace),
    "hutch++": (6, _hutch),
    "hutchinson": (2, _hutchinson),
}
