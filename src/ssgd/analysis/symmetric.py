"""A symmetric matrix known by its products with vectors, and what a result computed from them says about it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.checks import check_count
from ..core.noise import as_distribution, mix
from .precision import full_precision
from .progress import counting


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
        """The products with several vectors, one a row."""
        raise NotImplementedError

    def matvec(self, v: Tensor) -> Tensor:
        """The product with a vector."""
        return self.matmat(v.unsqueeze(0)).squeeze(0)

    def draw(self, distribution: str, seed: int, *numbers: int) -> Tensor:
        """A random vector, ``"sign"`` or ``"sphere"`` (normal), the same on every device."""
        drawn = torch.empty(self.size, dtype=torch.float32)
        as_distribution(distribution).fill(drawn, torch.Generator().manual_seed(mix(seed, *numbers)))
        return drawn.to(self.device, self.dtype)


class Given(Symmetric):
    """The symmetric matrix of which ``matvec(v)`` gives the products."""

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
class Measured:
    """What every result says about its matrix and its cost.

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


class Watched:
    """A matrix whose products are counted, checked and shown while something is computed from them."""

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
        """The fields of ``Measured``."""
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
def watched(matrix: Symmetric, seed: int, progress: bool, total: int | None) -> Iterator[Watched]:
    """For the time of a computation of about ``total`` products, all of it in full precision and without autograd."""
    with full_precision(), torch.no_grad(), counting(total, "products", progress) as done:
        yield Watched(matrix, seed, done)
