"""A method of your own: `PYTHONPATH=examples ssgd compare digits --vary method=both:0.2,own_method:laplace:0.2`."""

from functools import partial

import torch

from ssgd import SSGD
from ssgd.methods import Method, Setting


def fill(z: torch.Tensor, generator: torch.Generator) -> None:
    """Draws Laplace's distribution in place, whose tails are heavier than a Gaussian's."""
    z.uniform_(-0.5, 0.5, generator=generator)
    z.copy_(-z.sign() * (1 - 2 * z.abs()).clamp_min_(1e-6).log_())


def laplace() -> Method:
    """Returns what `make` builds around a base, what a step costs in passes, and what can be set."""
    level = Setting("noise", default=0.29, low=0.0, high=1.0, help="The noise level.")
    return Method("laplace", "Takes both signs of Laplace noise.", partial(SSGD, distribution=fill), 2, (level,))
