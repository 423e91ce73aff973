"""The Hessian's trace from random vectors: XTrace (arXiv:2301.07825), Hutch++ (arXiv:2010.09649), Hutchinson."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.checks import check_choice, check_count, check_seed
from .hessian import Hessian
from .lanczos import dot
from .symmetric import Measured, Symmetric, Watched, watched
from .task import Task

Array = NDArray[np.float64]
Method = Callable[[Watched, int, int], Array]


@dataclass(frozen=True)
class Trace(Measured):
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
    """The trace of a task's Hessian, of a ``Hessian``, or of any matrix, from ``products`` products or a few less.

    ``"hutchinson"`` averages vᵀHv over vectors v of signs. ``"hutch++"`` takes a third of the products to find where H
    is large, a third for the trace there, exactly, and a third for Hutchinson's average of what is left. ``"xtrace"``
    gives each vector both tasks in turn; where a few eigenvalues stand out it is the best of the three. Memory for
    twice ``products`` vectors of all weights is needed on the weights' device; for ``"hutchinson"`` that of a few.
    """
    check_choice("method", method, tuple(METHODS))
    check_count("products", products)
    seed = check_seed(seed)
    matrix = source if isinstance(source, Symmetric) else Hessian(source)
    with watched(matrix, seed, progress, min(products, matrix.size)) as watch:
        if products >= matrix.size:
            exact = _exactly(watch)
            return Trace(estimate=exact, error=0.0, estimates=np.array([exact]), method="exact", **watch.facts())
        least, estimate = METHODS[method]
        if products < least:
            raise ValueError(f"{method} needs at least {least} products for an estimate with an error, not {products}")
        estimates = estimate(watch, products, seed)
        mean, error = float(estimates.mean()), float(estimates.std(ddof=1) / math.sqrt(len(estimates)))
        return Trace(estimate=mean, error=error, estimates=estimates, method=method, **watch.facts())


def _hutchinson(watch: Watched, products: int, seed: int) -> Array:
    found = []
    for number in range(products):
        vector = watch.matrix.draw("sign", seed, number)
        found.append(dot(vector, watch.matvec(vector)))
    return np.array(found)


def _hutch(watch: Watched, products: int, seed: int) -> Array:
    third = products // 3
    draws = [watch.matrix.draw("sign", seed, number) for number in range(2 * third)]
    basis = _orthonormal(watch.matmat(torch.stack(draws[:third])))
    inside = _dots(basis, watch.matmat(basis)).sum()
    rest = torch.stack(draws[third:])
    rest -= (rest @ basis.T) @ basis
    found: Array = inside + _dots(rest, watch.matmat(rest))
    return found


def _xtrace(watch: Watched, products: int, seed: int) -> Array:
    """Each vector ω once left out of the basis Q, which the images of the others span: tr there, and ω's share outside.

    Q without the image of ω is Q less one direction s, so that all of it comes down to small matrices.
    """
    size, half = watch.matrix.size, products // 2
    vectors = torch.stack([watch.matrix.draw("sphere", seed, number) for number in range(half)])
    images = watch.matmat(vectors)
    basis = _orthonormal(images)
    of_basis = watch.matmat(basis)

    inside = _small(basis, of_basis)  # QᵀHQ
    inside = (inside + inside.T) / 2
    triangle = _small(basis, images)  # the images in the basis: column i is the image of ω_i
    floor = np.finfo(float).eps * np.abs(triangle).max() or 1.0
    diagonal = np.diag(triangle)
    triangle += np.diag(
        np.where(np.abs(diagonal) < floor, floor, 0.0)
    )  # a matrix of low rank has more vectors than images
    left_out = np.linalg.inv(triangle).T
    left_out /= np.linalg.norm(left_out, axis=0)  # s_i: orthogonal to every image but the i-th

    along = _small(basis, vectors)  # Qᵀω
    crossed = _small(of_basis, vectors)  # QᵀHω
    removed = along - left_out * (left_out * along).sum(0)  # what of ω lies in the basis without s
    outside = _dots(vectors, images) - 2 * (removed * crossed).sum(0) + (removed * (inside @ removed)).sum(0)
    length = _dots(vectors, vectors) - (removed**2).sum(0)
    there = np.trace(inside) - (left_out * (inside @ left_out)).sum(0)
    return np.asarray(there + (size - half + 1) * outside / length)


def _exactly(watch: Watched) -> float:
    unit = torch.zeros(watch.matrix.size, dtype=watch.matrix.dtype, device=watch.matrix.device)
    total = 0.0
    for index in range(watch.matrix.size):
        unit[index] = 1
        total += float(watch.matvec(unit)[index])
        unit[index] = 0
    return total


def _orthonormal(rows: Tensor) -> Tensor:
    """Rows that span the same, the first k those of the first k."""
    basis: Tensor = torch.linalg.qr(rows.T).Q
    return basis.T.contiguous()


def _dots(a: Tensor, b: Tensor) -> Array:
    """Row by row."""
    return np.array([dot(x, y) for x, y in zip(a, b, strict=True)])


def _small(a: Tensor, b: Tensor) -> Array:
    """Every row of one by every row of the other."""
    found: Array = (a @ b.T).double().cpu().numpy()
    return found


METHODS: dict[str, tuple[int, Method]] = {
    "xtrace": (4, _xtrace),
    "hutch++": (6, _hutch),
    "hutchinson": (2, _hutchinson),
}
