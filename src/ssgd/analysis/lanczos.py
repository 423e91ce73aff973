"""Lanczos: a symmetric matrix, seen from one vector, as a small tridiagonal one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.checks import check_count
from .precision import widest

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Tridiagonal:
    """QAQᵀ for orthonormal rows Q that begin with the start vector: ``alpha`` on its diagonal, ``beta`` beside it.

    ``rest`` is the length of what A makes of the last row outside Q: 0 where Q spans an invariant subspace.
    """

    alpha: Array
    beta: Array
    rest: float
    basis: Tensor

    def ritz(self) -> tuple[Array, Array]:
        """The nodes and weights of Gauss quadrature: Σ weight · f(node) = startᵀ f(A) start / startᵀ start.

        Exact for polynomials f up to twice the number of steps less one.
        """
        values, vectors = np.linalg.eigh(np.diag(self.alpha) + np.diag(self.beta, 1) + np.diag(self.beta, -1))
        return values, vectors[0] ** 2


@torch.no_grad()
def lanczos_together(matmat: Callable[[Tensor], Tensor], starts: Sequence[Tensor], steps: int) -> list[Tridiagonal]:
    """Lanczos from several vectors, each on its own, but with the products of a step made at once.

    ``steps`` products for each, or as many as it takes to an invariant subspace. Each vector is orthogonalised against
    all before it, twice, so that no eigenvalue appears more often than it should. The bases, ``steps`` vectors each,
    stay in the memory of the starts; alpha and beta are summed in float64.
    """
    check_count("steps", steps)
    walks = [_walk(start, steps) for start in starts]
    waiting = {number: next(walk) for number, walk in enumerate(walks)}
    found = {}
    while waiting:
        products = matmat(torch.stack(list(waiting.values())))
        for number, product in zip(list(waiting), products, strict=True):
            try:
                waiting[number] = walks[number].send(product)
            except StopIteration as ended:
                found[number] = ended.value
                del waiting[number]
    return [found[number] for number in range(len(walks))]


def _walk(start: Tensor, steps: int) -> Generator[Tensor, Tensor, Tridiagonal]:
    """Gives each vector of the basis, takes its product."""
    steps = min(steps, len(start))
    length = norm(start)
    if not length:
        raise ValueError("the start vector is zero: Lanczos needs a direction")
    basis = torch.empty(steps, len(start), dtype=start.dtype, device=start.device)
    basis[0] = start / length
    alpha, beta, scale = [], [0.0], 0.0
    for step in range(steps):
        vector = (yield basis[step]).clone()
        alpha.append(dot(basis[step], vector))
        orthogonalise(vector, basis[: step + 1])
        beta.append(norm(vector))
        scale = max(scale, abs(alpha[-1]) + beta[-1] + beta[-2])
        if step + 1 == steps or beta[-1] <= vanishing(start.dtype) * scale:
            break
        basis[step + 1] = vector / beta[-1]
    return Tridiagonal(np.array(alpha), np.array(beta[1:-1]), beta[-1], basis[: len(alpha)])


def orthogonalise(vector: Tensor, basis: Tensor) -> Tensor:
    """Takes from ``vector``, in place and twice, what lies along the rows of ``basis``: the coefficients of that."""
    taken = torch.zeros(len(basis), dtype=basis.dtype, device=basis.device)
    for _ in range(2):
        along = basis @ vector
        vector.addmv_(basis.T, along, alpha=-1)
        taken += along
    return taken


def vanishing(dtype: torch.dtype) -> float:
    """What is left of a vector when nothing is, relative to what it was."""
    return 10 * torch.finfo(dtype).eps


def dot(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum(dtype=widest(a.device)))


def norm(a: Tensor) -> float:
    return float(torch.linalg.vector_norm(a, dtype=widest(a.device)))
