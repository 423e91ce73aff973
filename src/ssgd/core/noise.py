"""The noise n: the distributions its direction is drawn from, and the numbers it is a function of."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .checks import check_choice

Fill = Callable[[Tensor, torch.Generator], object]


@dataclass(frozen=True)
class Distribution:
    """How a layer's noise is drawn.

    ``fill(z, generator)`` fills the flat tensor ``z`` in place, each element independently. ``unit`` says how the noise
    of a tensor is made of it, and so what the level means:

    - ``"norm"``: scaled to a norm of exactly ``level * ||w||``, whatever was filled in. The level is ``||n|| / ||w||``.
    - ``"rms"``: ``level * rms(w) * z``. The level is the expected ``||n|| / ||w||`` if the mean of z² is 1; it is not
      made so.
    - ``"one"``: ``level * z``, whatever the weights. The level is an element's own size.
    """

    name: str
    fill: Fill
    unit: str = "norm"

    def __post_init__(self) -> None:
        check_choice("unit", self.unit, ("norm", "rms", "one"))


def _normal(z: Tensor, generator: torch.Generator) -> None:
    z.normal_(generator=generator)


def _sign(z: Tensor, generator: torch.Generator) -> None:
    z.bernoulli_(0.5, generator=generator).mul_(2).sub_(1)


def _uniform(z: Tensor, generator: torch.Generator) -> None:
    """The mean of z² is 1, so the level is the expected ratio of norms."""
    z.uniform_(-math.sqrt(3), math.sqrt(3), generator=generator)


DISTRIBUTIONS = {
    distribution.name: distribution
    for distribution in (
        Distribution("sphere", _normal),
        Distribution("sign", _sign, unit="rms"),  # every |z| is 1, so the norm is exact all the same
        Distribution("uniform", _uniform, unit="rms"),
        Distribution("gaussian", _normal, unit="one"),
    )
}


def paper_level(a: float) -> float:
    """The level ‖n‖ / ‖w‖ of the paper's noise level ``a``: its uniform noise peaks at ``a`` times the layer's rms."""
    return a / math.sqrt(3)


def as_distribution(distribution: str | Distribution | Fill) -> Distribution:
    """The distribution of that name, or the user's own."""
    if isinstance(distribution, Distribution):
        return distribution
    if callable(distribution):
        return Distribution(getattr(distribution, "__name__", type(distribution).__name__), distribution)
    if distribution in DISTRIBUTIONS:
        return DISTRIBUTIONS[distribution]
    raise ValueError(
        f"no distribution called {distribution!r}: use one of {', '.join(DISTRIBUTIONS)}, a Distribution, or "
        "a function fill(z, generator)"
    )


def mix(*numbers: int) -> int:
    """One well-mixed 63-bit number from several (splitmix64), so that neighbouring steps share nothing."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        state ^= state >> 31
    return state >> 1
