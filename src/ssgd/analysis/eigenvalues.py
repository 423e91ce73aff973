"""The Hessian's eigenvalues at both ends, by Lanczos with thick restarts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..core.checks import check_choice, check_count, check_seed
from .hessian import Hessian
from .lanczos import dot, norm, orthogonalise, vanishing
from .symmetric import Measured, Symmetric, Watched, watched
from .task import Task

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Eigenvalues(Measured):
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
    """``count`` eigenvalues at each end of a task's Hessian, of a ``Hessian``, or of any matrix.

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
    with watched(matrix, seed, progress, None) as watch:
        krylov = _Krylov(watch, low, high, block, seed)
        converged = False
        while not converged and (watch.products < products or not krylov.enough):
            krylov.grow()
            ends = krylov.ends
            values, residuals = krylov.values, krylov.residuals
            floor = vanishing(matrix.dtype) * np.abs(values).max()
            fine = residuals[ends] <= np.maximum(tolerance * np.abs(values[ends]), floor)
            converged = krylov.enough and bool(fine.all()) and (krylov.full or not krylov.fresh)
        found = krylov.vectors()
        images = watch.matmat(found)
        values = np.array([dot(x, y) for x, y in zip(found, images, strict=True)])
        residuals = np.array([norm(y - value * x) for x, y, value in zip(found, images, values, strict=True)])
        order = np.concatenate([np.argsort(-values[:high]), high + np.argsort(values[high:])])
        return Eigenvalues(
            largest=values[order[:high]],
            smallest=values[order[high:]],
            residuals=residuals[order],
            vectors=found[order if vectors else order[:0]].cpu().numpy(),
            converged=converged,
            **watch.facts(),
        )


class _Krylov:
    """An orthonormal basis that grows by a block's products at a time; when full it keeps the Ritz vectors at the ends.

    ``values`` are the Ritz values in rising order, ``residuals`` theirs.
    """

    def __init__(self, watch: Watched, low: int, high: int, block: int, seed: int) -> None:
        matrix = watch.matrix
        self.watch, self.low, self.high, self.seed = watch, low, high, seed
        self.room = min(matrix.size, 2 * (low + high + block) + 40)
        rows = min(matrix.size, self.room + block)
        self.basis = torch.empty(rows, matrix.size, dtype=matrix.dtype, device=matrix.device)
        self.projected = np.zeros((self.room, self.room))  # the matrix in this basis, where it is known
        self.known = 0
        self.scale = 0.0  # the longest product so far
        self.drawn = 0
        for row in range(block):
            self._append(row)
        self.waiting = block  # rows after the known ones, which their products made and which have none yet
        self.fresh = False  # whether some of those are random, because what the products made lay in the basis already

    @property
    def enough(self) -> bool:
        return self.known >= min(self.watch.matrix.size, self.low + self.high)

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
        products = self.watch.matmat(self.basis[start:stop])
        beyond = np.zeros((self.waiting, self.waiting))  # what the products have along the rows that they make
        self.scale = max(self.scale, *map(norm, products))
        self.known, self.waiting, self.fresh = stop, 0, False
        for column, product in enumerate(products):
            row = stop + self.waiting
            along = orthogonalise(product, self.basis[:row]).double().cpu().numpy()
            self.projected[:stop, start + column] = self.projected[start + column, :stop] = along[:stop]
            beyond[: self.waiting, column] = along[stop:]
            if row == self.watch.matrix.size:
                continue
            length = norm(product)
            if length > vanishing(product.dtype) * self.scale:
                beyond[self.waiting, column] = length
                self.basis[row] = product / length
            else:
                self._append(row)
                self.fresh = True
            self.waiting += 1
        self.values, self._rotation = np.linalg.eigh(self.projected[:stop, :stop])
        self.residuals = np.linalg.norm(beyond @ self._rotation[start:], axis=0)

    def vectors(self) -> Tensor:
        """The Ritz vectors at the ends, as rows."""
        return nn.functional.normalize(self._rotated(self.ends))

    def _shrink(self) -> None:
        """Keeps the wanted Ritz vectors and half of the others, those next to them, and the rows that wait."""
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
        """A random vector as a row of the basis."""
        vector = self.watch.matrix.draw("sphere", self.seed, self.drawn)
        self.drawn += 1
        orthogonalise(vector, self.basis[:row])
        self.basis[row] = vector / norm(vector)
