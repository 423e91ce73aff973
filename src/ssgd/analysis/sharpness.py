"""Sharpness of a minimum: the worst loss in a box around it, the symmetric excess under noise, SAM's climb.

Every measure is of the whole data, leaves the model as it was, and says which statistics batch-norm used: ``mode`` is
``"eval"`` (the running ones) or ``"train"`` (each batch's own, as S-SGD's passes see them). Dropout is off. Every pass
over the batches starts from the same state of torch's random streams, which are left as they were; what draws its
numbers elsewhere must give the same batches each time, or the difference would be taken for curvature.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..core.checks import check_count, check_level, check_seed
from ..core.moving import Chosen, as_real
from ..core.noise import Distribution, Fill, as_distribution
from ..core.selection import default_selection, magnitudes, trainable
from ..core.weights import NoisyWeights
from .acceleration import widest
from .task import NO_BATCHES, Task, WeightVector, gradients, replayed

Array = NDArray[np.float64]

# --- average case: noise --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Excess:
    """Losses at w, and at w + n and w − n for each pair of noises."""

    level: float
    distribution: str
    seed: int
    mode: str
    clean: float
    plus: Array
    minus: Array
    lengths: Array  # ‖n‖ over all weights that moved

    @property
    def excess(self) -> Array:
        """(L(w+n) + L(w−n)) / 2 − L(w) for each pair: ½ nᵀHn where the loss is quadratic."""
        return (self.plus + self.minus) / 2 - self.clean

    @property
    def slopes(self) -> Array:
        """(L(w+n) − L(w−n)) / 2 for each pair: gᵀn, the first-order part, which the pair cancels."""
        return (self.plus - self.minus) / 2

    @property
    def mean(self) -> float:
        """The average case."""
        return float(self.excess.mean())

    @property
    def sd(self) -> float:
        """Between pairs; nan where there is only one."""
        return float(self.excess.std(ddof=1)) if len(self.excess) > 1 else math.nan

    @property
    def worst(self) -> float:
        """The largest excess of a pair: a lower bound on the worst case, which random directions seldom meet."""
        return float(self.excess.max())

    @property
    def curvatures(self) -> Array:
        """2 · excess / ‖n‖² for each pair: nᵀHn / nᵀn, the curvature along the noise."""
        return 2 * self.excess / self.lengths**2

    @property
    def trace(self) -> float:
        """2 · mean / level². In small noise, the Hessian's trace with each weight measured in the level's unit.

        For ``sphere``, ``sign`` and ``uniform`` that is Σ_l rms(w_l)² tr(H_ll) over the tensors l that moved, whatever
        the scale of their weights; for ``gaussian`` tr(H) itself.
        """
        return 2 * self.mean / self.level**2


def symmetric_excess(
    task: Task,
    level: float,
    *,
    distribution: str | Distribution | Fill = "sphere",
    pairs: int = 10,
    seed: int = 0,
    perturb: Iterable[Tensor] | None = None,
    mode: str = "eval",
) -> Excess:
    """Measures the average rise of the loss over w ± n, which S-SGD flattens, best seen with ``mode="train"``.

    Level, distribution and ``perturb`` are those of :class:`ssgd.SSGD`. The directions depend on seed and pair alone:
    two levels are compared along the same ones.
    """
    check_level(level)
    if level == 0:
        raise ValueError("at level 0 there is no noise to measure the excess of: give a level above 0")
    check_count("pairs", pairs)
    seed = check_seed(seed)
    plus: list[float] = []
    minus: list[float] = []
    lengths = []
    with replayed(task, mode) as task:
        chosen, weights = noisy_weights(task, as_distribution(distribution), perturb)
        at_first = chosen.now()
        clean, _ = task.measure()
        for pair in range(pairs):
            try:
                for sign, losses in ((1, plus), (-1, minus)):
                    weights.move(sign, (seed, pair, 0), 0, [level], again=sign > 0)
                    if sign > 0:
                        lengths.append(float((chosen.now() - at_first).norm()))
                    losses.append(task.measure()[0])
                    weights.restore()
            finally:
                weights.restore()
                weights.release()
    return Excess(
        level=float(level),
        distribution=weights.distribution.name,
        seed=seed,
        mode=mode,
        clean=clean,
        plus=np.array(plus),
        minus=np.array(minus),
        lengths=np.array(lengths),
    )


def noisy_weights(
    task: Task, distribution: Distribution, perturb: Iterable[Tensor] | None
) -> tuple[WeightVector, NoisyWeights]:
    """Returns the weights that S-SGD would move, or those chosen: as a vector, and as what moves them."""
    known = list(task.model.parameters())
    chosen = default_selection(known, magnitudes(known, task.model)) if perturb is None else trainable(list(perturb))
    if not {id(p) for p in chosen} <= {id(p) for p in known}:
        raise ValueError("perturb names a tensor that is not a parameter of the task's model: choose with ssgd.select")
    if not chosen:
        raise ValueError(
            "nothing to perturb: no trainable tensor of two or more dimensions was found; "
            "choose some with perturb=select(model, ...)"
        )
    position = {id(p): i for i, p in enumerate(known)}  # as an optimizer of all of them has it
    moved = NoisyWeights([Chosen(p, 0, position[id(p)]) for p in chosen], distribution)
    return WeightVector(chosen, widest(chosen[0].device)), moved


# --- worst case: a box ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sharpness:
    """The loss at w, and at every point of the box that the search for its maximum went through."""

    epsilon: float
    subspace: int | None
    seed: int
    iterations: int
    mode: str
    clean: float
    losses: Array

    @property
    def maximum(self) -> float:
        """The largest loss found; w itself is in the box. nan where the loss was not a number somewhere."""
        return float(np.max([self.clean, *self.losses]))

    @property
    def value(self) -> float:
        """φ = 100 · (max f − f) / (1 + f)."""
        return 100 * (self.maximum - self.clean) / (1 + self.clean)


def keskar(
    task: Task,
    epsilon: float = 1e-3,
    *,
    subspace: int | None = None,
    seed: int = 0,
    iterations: int = 10,
    mode: str = "eval",
) -> Sharpness:
    """ε-sharpness (Keskar et al., arXiv:1609.04836, eq. 4) over all trainable weights x.

    The maximum of f(x + Az) in the box |z_i| ≤ ε (|(A⁺x)_i| + 1) by L-BFGS-B, which seldom finds all of it in the
    paper's 10 iterations. In full space A is the identity; with ``subspace=p`` it has p random columns, each of the
    size of the weights.

    Where the paper leaves room: A's entries are standard normal; the start is drawn evenly from the box, since at an
    exact minimum no gradient leads away from z = 0; and the search runs in units of the box, on f scaled to a gradient
    of rms 100 at the start, so that its first step reaches the walls whatever the units of loss and weights.
    """
    minimize = _scipy_minimize()
    check_level(epsilon, "epsilon is the size of the box")
    check_count("iterations", iterations)
    seed = check_seed(seed)
    losses: list[float] = []
    with replayed(task, mode) as task:
        clean, _ = task.measure()
        weights = Flat(task)
        space = Space(weights, subspace, seed)
        box = epsilon * (space.coordinates(weights.clean).abs() + 1)

        def climb(z: Any) -> tuple[float, Any]:
            """The loss and its gradient at a point of the box, in units of the box."""
            step = box * torch.from_numpy(z).to(box)
            weights.move(space.point(step))
            loss, gradient = weights.gradient()
            losses.append(loss)
            return loss, (box * space.slope(gradient)).cpu().numpy()

        start = np.random.default_rng(seed).uniform(-1, 1, len(box))
        _, slope = climb(start)
        rms = float(np.sqrt(np.mean(slope**2)))

        def descend(z: Any) -> tuple[float, Any]:
            loss, gradient = climb(z)
            return -100 / rms * loss, -100 / rms * gradient

        if 0 < rms < math.inf:
            options = {"maxiter": iterations, "ftol": 0, "gtol": 0}
            minimize(descend, start, jac=True, method="L-BFGS-B", bounds=[(-1, 1)] * len(box), options=options)
    return Sharpness(
        epsilon=float(epsilon),
        subspace=subspace,
        seed=seed,
        iterations=iterations,
        mode=mode,
        clean=clean,
        losses=np.array(losses),
    )


def _scipy_minimize() -> Callable[..., Any]:
    try:
        from scipy.optimize import minimize
    except ImportError as error:
        raise ImportError("keskar() needs scipy's L-BFGS-B: pip install scipy") from error
    found: Callable[..., Any] = minimize
    return found


class Space:
    """Az for all z: every direction (A = I), or those of some random columns."""

    def __init__(self, weights: Flat, columns: int | None, seed: int) -> None:
        self.A: Tensor | None = None
        if columns is None:
            return
        check_count("subspace", columns)
        size = len(weights.clean)
        if columns > size:
            raise ValueError(f"a subspace of {columns} dimensions does not fit {size} weights: choose fewer")
        generator = torch.Generator(weights.device).manual_seed(seed)
        self.A = torch.randn(size, columns, dtype=weights.wide, device=weights.device, generator=generator)

    def point(self, z: Tensor) -> Tensor:
        """Az"""
        return z if self.A is None else (self.A @ z.to(self.A)).double()

    def slope(self, gradient: Tensor) -> Tensor:
        """Aᵀg, the gradient for z."""
        return gradient if self.A is None else (self.A.T @ gradient.to(self.A)).double()

    def coordinates(self, x: Tensor) -> Tensor:
        """A⁺x"""
        return x if self.A is None else torch.linalg.solve((self.A.T @ self.A).double(), self.slope(x))


# --- worst case, first order: SAM's climb ---------------------------------------------------------------------------


@dataclass(frozen=True)
class SamSharpness:
    """The loss at w, and a step of length ρ up the gradient of the whole data."""

    rho: float
    adaptive: bool
    mode: str
    clean: float
    climbed: float
    norm: float  # ‖g‖; ‖|w| g‖ where adaptive

    @property
    def value(self) -> float:
        """L(w + e) − L(w)."""
        return self.climbed - self.clean

    @property
    def first_order(self) -> float:
        """ρ‖g‖, what the step would gain on a plane."""
        return self.rho * self.norm


def sam_sharpness(task: Task, rho: float = 0.05, *, adaptive: bool = False, mode: str = "eval") -> SamSharpness:
    """L(w + e) − L(w) with e = ρ g / ‖g‖ over all trainable weights, g of the whole data (arXiv:2010.01412).

    ``adaptive`` is ASAM's (arXiv:2102.11600): e = ρ w² g / ‖|w| g‖.
    """
    check_level(rho, "rho is the length of the climb")
    with replayed(task, mode) as task:
        weights = Flat(task)
        clean, gradient = weights.gradient()
        unit = weights.clean.abs() if adaptive else torch.ones_like(gradient)
        slope = unit * gradient
        norm = slope.norm().item()
        weights.move(unit * slope * (rho / norm if norm > 0 else 0.0))
        climbed, _ = task.measure()
    return SamSharpness(rho=float(rho), adaptive=adaptive, mode=mode, clean=clean, climbed=climbed, norm=norm)


# --- all trainable weights as one vector ----------------------------------------------------------------------------


class Flat(WeightVector):
    """All trainable weights of a task as one vector, in double precision, around where they were at first."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.parameters = trainable(list(task.model.parameters()))
        if not self.parameters:
            raise ValueError(f"{type(task.model).__name__} has no trainable parameter: set requires_grad on some")
        super().__init__(self.parameters, torch.float64)
        self.clean = self.now()
        self.wide = torch.promote_types(self.tensors[0].dtype, torch.float32)

    def move(self, step: Tensor) -> None:
        """To w + step, w being where they were at first."""
        self.load(self.clean + step.to(self.device))

    @torch.enable_grad()
    def gradient(self) -> tuple[float, Tensor]:
        """Loss and gradient of the whole data, where the weights are now."""
        loss, count, total = 0.0, 0, torch.zeros_like(self.clean)
        for batch in self.task.batches:
            size = self.task.size(batch)
            value = self.task.loss(self.task.model, batch)
            total.add_(self.flat([as_real(g) for g in gradients(value, self.parameters)]), alpha=size)
            loss += value.detach().double().item() * size
            count += size
        if not count:
            raise ValueError(NO_BATCHES)
        return loss / count, total / count
