"""Symmetric matrices known by their products with vectors, and Lanczos's algorithm."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
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


@torch.no_grad()
def lanczos_together(matmat: Callable[[Tensor], Tensor], starts: Sequence[Tensor], steps: int) -> list[Krylov]:
    """Runs Lanczos from several vectors, each on its own, with the products of a step made at once.

    ``steps`` products for each, or as many as it takes to an invariant subspace. The bases, ``steps`` vectors each,
    stay in the memory of the starts.
    """
    check_count("steps", steps)
    runs = [Krylov(start.unsqueeze(0), min(steps, len(start))) for start in starts]
    while going := [run for run in runs if run.waiting and not run.full]:
        products = matmat(torch.cat([run.rows() for run in going]))
        for run, product in zip(going, products, strict=True):
            run.take(product.unsqueeze(0))
    return runs


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


class Krylov:
    """An orthonormal basis that grows by a block's products at a time, and the matrix in it, in double precision.

    Each row is orthogonalised against all before it, twice, so that no eigenvalue appears more often than it should.
    Where the images lie in the basis already, so that it spans an invariant subspace, it ends, or takes a vector of
    ``new``. For the eigenvalues at the ends, ``shrink()`` makes room: it keeps ``low`` and ``high`` Ritz vectors.
    """

    def __init__(
        self, start: Tensor, room: int, low: int = 0, high: int = 0, new: Iterator[Tensor] | None = None
    ) -> None:
        block, self.size = start.shape
        self.room, self.low, self.high, self.new = room, low, high, new
        self.basis = start.new_empty(min(self.size, room + block), self.size)
        self.projected = np.zeros((room, room))  # the matrix in this basis, where it is known
        self.known = 0
        self.waiting = 0  # rows after the known ones, which have no products yet
        self.scale = 0.0  # the longest product so far
        self.fresh = False  # whether some of the waiting rows are new, and no images
        self._beyond = np.zeros((0, 0))  # the parts of the last images along the rows that they added
        for vector in start:
            self._append(vector)

    @property
    def enough(self) -> bool:
        return self.known >= min(self.size, self.low + self.high)

    @property
    def full(self) -> bool:
        return self.known + self.waiting > self.room

    @property
    def ends(self) -> NDArray[np.intp]:
        """The largest in falling order, then the smallest in rising order."""
        last = self.known - 1
        return np.array([*range(last, max(last - self.high, -1), -1), *range(min(self.low, self.known))])

    def rows(self) -> Tensor:
        """Returns the rows that wait for their products."""
        return self.basis[self.known : self.known + self.waiting].clone()

    def take(self, images: Tensor) -> None:
        """Takes the products with ``rows()``, and grows by what of them lies outside the basis."""
        start, stop = self.known, self.known + self.waiting
        self._beyond = np.zeros((self.waiting, self.waiting))
        self.scale = max(self.scale, *map(norm, images))
        self.known, self.waiting, self.fresh = stop, 0, False
        for column, image in enumerate(images):
            row = stop + self.waiting
            along = orthogonalise(image, self.basis[:row]).double().cpu().numpy()
            self.projected[:stop, start + column] = self.projected[start + column, :stop] = along[:stop]
            self._beyond[: self.waiting, column] = along[stop:]
            if row == len(self.basis):
                continue
            length = norm(image)
            if length > vanishing(image.dtype) * self.scale:
                self._beyond[self.waiting, column] = length
                self.basis[row] = image / length
                self.waiting += 1
            elif self.new is not None:
                self._append(next(self.new))
                self.fresh = True

    def ritz(self) -> tuple[Array, Array, Array]:
        """Returns the Ritz values in rising order, their residuals, and their weights from the first row.

        Values and weights are Gauss quadrature: Σ weight · f(value) = startᵀ f(A) start / startᵀ start for polynomials
        f up to twice the number of steps less one.
        """
        self._values, self._rotation = np.linalg.eigh(self.projected[: self.known, : self.known])
        residuals = np.linalg.norm(self._beyond @ self._rotation[self.known - len(self._beyond) :], axis=0)
        return self._values, residuals, self._rotation[0] ** 2

    def vectors(self) -> Tensor:
        """Returns the Ritz vectors at the ends, as rows."""
        return nn.functional.normalize(self._rotated(self.ends))

    def shrink(self) -> None:
        """Keeps the wanted Ritz vectors, half of the others, those next to them, and the rows without products."""
        spare = (self.room - self.low - self.high) // 2
        low = self.low + spare * self.low // (self.low + self.high)
        high = self.high + spare * self.high // (self.low + self.high)
        chosen = np.array([*range(low), *range(self.known - high, self.known)])
        waiting = self.rows()
        self.basis[: len(chosen)] = self._rotated(chosen)
        self.basis[len(chosen) : len(chosen) + len(waiting)] = waiting
        self.projected[:] = 0
        self.projected[range(len(chosen)), range(len(chosen))] = self._values[chosen]
        self.known = len(chosen)

    def _rotated(self, chosen: NDArray[np.intp]) -> Tensor:
        found: Tensor = torch.from_numpy(self._rotation[:, chosen].T).to(self.basis) @ self.basis[: self.known]
        return found

    def _append(self, vector: Tensor) -> None:
        """Adds a row that is no image."""
        row, vector = self.known + self.waiting, vector.clone()
        orthogonalise(vector, self.basis[:row])
        length = norm(vector)
        if not length:
            raise ValueError("the start vector is zero: Lanczos needs a direction")
        self.basis[row] = vector / length
        self.waiting += 1
