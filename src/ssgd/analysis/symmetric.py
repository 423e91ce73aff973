"""Symmetric matrices known by their products with vectors, and Lanczos's algorithm."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.checks import check_count
from ..core.noise import as_distribution, mix
from .acceleration import full_precision, widest
from .results import progress_bar

Array = NDArray[np.float64]


class Symmetric:
    """A matrix of ``size`` rows, for flat vectors of ``dtype`` on ``device``."""

    product = "given"
    mode = "none"
    samples = 0
    passes = 0.0  # over the data, in forward passes

    def __init__(self, size: int, dtype: torch.dtype, device: torch.device | str) -> None:
        check_count("size", size)
        self.size = size
        self.dtype = dtype
        self.device = torch.device(device)

    def matmat(self, vectors: Tensor) -> Tensor:
        """Returns the products with several vectors, one a row."""
        raise NotImplementedError

    def matvec(self, v: Tensor) -> Tensor:
        """Returns the product with a vector."""
        return self.matmat(v.unsqueeze(0)).squeeze(0)

    def draw(self, distribution: str, seed: int, *numbers: int) -> Tensor:
        """Draws a random vector, ``"sign"`` or ``"sphere"`` (normal), the same on every device."""
        drawn = torch.empty(self.size, dtype=torch.float32)
        as_distribution(distribution).fill(drawn, torch.Generator().manual_seed(mix(seed, *numbers)))
        return drawn.to(self.device, self.dtype)


class FromProducts(Symmetric):
    """The symmetric matrix whose product with a vector v is ``matvec(v)``."""

    def __init__(
        self,
        matvec: Callable[[Tensor], Tensor],
        size: int,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(size, dtype, device)
        self._matvec = matvec

    def matmat(self, vectors: Tensor) -> Tensor:
        return torch.stack([self._matvec(v) for v in vectors])


@dataclass(frozen=True, kw_only=True)
class MatrixResult:
    """The part of a result that tells its matrix and its cost.

    ``product`` is how the products were made and ``mode`` batch-norm's (see ``Hessian``); ``passes`` counts passes over
    all ``samples`` in the work of a forward pass, a backward pass being two.
    """

    parameters: int
    samples: int
    product: str
    mode: str
    dtype: str
    products: int
    passes: float
    seconds: float
    seed: int


class CountedProducts:
    """A matrix whose products are counted, checked and shown while a result is computed from them."""

    def __init__(self, matrix: Symmetric, seed: int, shown: Callable[[int], object]) -> None:
        self.matrix = matrix
        self.products = 0
        self._seed = seed
        self._shown = shown
        self._passes, self._started = matrix.passes, time.perf_counter()

    def matvec(self, v: Tensor) -> Tensor:
        return self.matmat(v.unsqueeze(0)).squeeze(0)

    def matmat(self, vectors: Tensor) -> Tensor:
        found = self.matrix.matmat(vectors)
        if not found.isfinite().all():
            raise ValueError(
                "a product with the Hessian is not finite: look for inf or nan in the weights and the data"
            )
        self.products += len(vectors)
        self._shown(len(vectors))
        return found

    def facts(self) -> dict[str, Any]:
        """Returns the fields of ``MatrixResult``."""
        return {
            "parameters": self.matrix.size,
            "samples": self.matrix.samples,
            "product": self.matrix.product,
            "mode": self.matrix.mode,
            "dtype": str(self.matrix.dtype).removeprefix("torch."),
            "products": self.products,
            "passes": self.matrix.passes - self._passes,
            "seconds": time.perf_counter() - self._started,
            "seed": self._seed,
        }


@contextmanager
def counted(matrix: Symmetric, seed: int, progress: bool, total: int | None) -> Iterator[CountedProducts]:
    """Counts the products of a computation of about ``total``, in full precision and without autograd."""
    with full_precision(), torch.no_grad(), progress_bar(total, "products", progress) as done:
        yield CountedProducts(matrix, seed, done)


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
        """Returns the nodes and weights of Gauss quadrature: Σ weight · f(node) = startᵀ f(A) start / startᵀ start.

        Exact for polynomials f up to twice the number of steps less one.
        """
        values, vectors = np.linalg.eigh(np.diag(self.alpha) + np.diag(self.beta, 1) + np.diag(self.beta, -1))
        return values, vectors[0] ** 2


@torch.no_grad()
def lanczos_together(matmat: Callable[[Tensor], Tensor], starts: Sequence[Tensor], steps: int) -> list[Tridiagonal]:
    """Runs Lanczos from several vectors, each on its own, with the products of a step made at once.

    ``steps`` products for each, or as many as it takes to an invariant subspace. Each vector is orthogonalised against
    all before it, twice, so that no eigenvalue appears more often than it should. The bases, ``steps`` vectors each,
    stay in the memory of the starts; alpha and beta are summed in float64.
    """
    check_count("steps", steps)
    runs = [_lanczos(start, steps) for start in starts]
    waiting = {number: next(run) for number, run in enumerate(runs)}
    found = {}
    while waiting:
        products = matmat(torch.stack(list(waiting.values())))
        for number, product in zip(list(waiting), products, strict=True):
            try:
                waiting[number] = runs[number].send(product)
            except StopIteration as ended:
                found[number] = ended.value
                del waiting[number]
    return [found[number] for number in range(len(runs))]


def _lanczos(start: Tensor, steps: int) -> Generator[Tensor, Tensor, Tridiagonal]:
    """Yields each vector of the basis, and takes its product."""
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
    """Removes from ``vector``, in place and twice, its parts along ``basis``'s rows; returns their coefficients."""
    taken = torch.zeros(len(basis), dtype=basis.dtype, device=basis.device)
    for _ in range(2):
        along = basis @ vector
        vector.addmv_(basis.T, along, alpha=-1)
        taken += along
    return taken


def vanishing(dtype: torch.dtype) -> float:
    """Returns the length, relative to the vector's before, at which rounding is all that is left of it."""
    return 10 * torch.finfo(dtype).eps


def dot(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum(dtype=widest(a.device)))


def norm(a: Tensor) -> float:
    return float(torch.linalg.vector_norm(a, dtype=widest(a.device)))


class KrylovBasis:
    """An orthonormal basis that grows by a block's products at a time; when full it keeps the Ritz vectors at the ends.

    ``values`` are the Ritz values in rising order, ``residuals`` theirs.
    """

    def __init__(self, products: CountedProducts, low: int, high: int, block: int, seed: int) -> None:
        matrix = products.matrix
        self.products, self.low, self.high, self.seed = products, low, high, seed
        self.room = min(matrix.size, 2 * (low + high + block) + 40)
        rows = min(matrix.size, self.room + block)
        self.basis = torch.empty(rows, matrix.size, dtype=matrix.dtype, device=matrix.device)
        self.projected = np.zeros((self.room, self.room))  # the matrix in this basis, where it is known
        self.known = 0
        self.scale = 0.0  # the longest product so far
        self.drawn = 0
        for row in range(block):
            self._append(row)
        self.waiting = block  # rows after the known ones, which have no products yet
        self.fresh = False  # whether some of those are random, because the images lay in the basis already

    @property
    def enough(self) -> bool:
        return self.known >= min(self.products.matrix.size, self.low + self.high)

    @property
    def full(self) -> bool:
        return self.known + self.waiting > self.room

    @property
    def ends(self) -> NDArray[np.intp]:
        """The largest in falling order, then the smallest in rising order."""
        last = self.known - 1
        return np.array([*range(last, max(last - self.high, -1), -1), *range(min(self.low, self.known))])

    def grow(self) -> None:
        if self.full:
            self._shrink()
        start, stop = self.known, self.known + self.waiting
        images = self.products.matmat(self.basis[start:stop])
        beyond = np.zeros((self.waiting, self.waiting))  # the parts of the images along the rows that they add
        self.scale = max(self.scale, *map(norm, images))
        self.known, self.waiting, self.fresh = stop, 0, False
        for column, image in enumerate(images):
            row = stop + self.waiting
            along = orthogonalise(image, self.basis[:row]).double().cpu().numpy()
            self.projected[:stop, start + column] = self.projected[start + column, :stop] = along[:stop]
            beyond[: self.waiting, column] = along[stop:]
            if row == self.products.matrix.size:
                continue
            length = norm(image)
            if length > vanishing(image.dtype) * self.scale:
                beyond[self.waiting, column] = length
                self.basis[row] = image / length
            else:
                self._append(row)
                self.fresh = True
            self.waiting += 1
        self.values, self._rotation = np.linalg.eigh(self.projected[:stop, :stop])
        self.residuals = np.linalg.norm(beyond @ self._rotation[start:], axis=0)

    def vectors(self) -> Tensor:
        """Returns the Ritz vectors at the ends, as rows."""
        return nn.functional.normalize(self._rotated(self.ends))

    def _shrink(self) -> None:
        """Keeps the wanted Ritz vectors, half of the others, those next to them, and the rows without products."""
        spare = (self.room - self.low - self.high) // 2
        low = self.low + spare * self.low // (self.low + self.high)
        high = self.high + spare * self.high // (self.low + self.high)
        chosen = np.array([*range(low), *range(self.known - high, self.known)])
        waiting = self.basis[self.known : self.known + self.waiting].clone()
        self.basis[: len(chosen)] = self._rotated(chosen)
        self.basis[len(chosen) : len(chosen) + len(waiting)] = waiting
        self.projected[:] = 0
        self.projected[range(len(chosen)), range(len(chosen))] = self.values[chosen]
        self.known = len(chosen)

    def _rotated(self, chosen: NDArray[np.intp]) -> Tensor:
        found: Tensor = torch.from_numpy(self._rotation[:, chosen].T).to(self.basis) @ self.basis[: self.known]
        return found

    def _append(self, row: int) -> None:
        """Sets a row of the basis to a random vector."""
        vector = self.products.matrix.draw("sphere", self.seed, self.drawn)
        self.drawn += 1
        orthogonalise(vector, self.basis[:row])
        self.basis[row] = vector / norm(vector)
