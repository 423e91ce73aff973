"""The noise n: the distributions its direction is drawn from, and how long it is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Draw = Callable[[jax.Array, tuple[int, ...], Any], jax.Array]


class Distribution(NamedTuple):
    """``draw(key, shape, dtype)``, then scaled: to the norm ``level * ||w||``, or else by ``level * rms(w)``."""

    draw: Draw
    to_norm: bool = True


def _uniform(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
    return jax.random.uniform(key, shape, dtype, -math.sqrt(3), math.sqrt(3))  # the mean of z² is 1


DISTRIBUTIONS = {
    "sphere": Distribution(jax.random.normal),
    "sign": Distribution(jax.random.rademacher, to_norm=False),  # every |z| is 1, so the norm is exact all the same
    "uniform": Distribution(_uniform, to_norm=False),
}


def as_distribution(distribution: str | Draw) -> Distribution:
    """The distribution of that name, or the user's own."""
    if callable(distribution):
        return Distribution(distribution)
    if distribution in DISTRIBUTIONS:
        return DISTRIBUTIONS[distribution]
    raise ValueError(
        f"no distribution called {distribution!r}: use one of {', '.join(DISTRIBUTIONS)}, or a function "
        "draw(key, shape, dtype)"
    )


def noise(w: jax.Array, key: jax.Array, level: Any, distribution: Distribution) -> jax.Array:
    """n for one leaf, in single precision or better; a complex leaf is its real and imaginary parts."""
    parts = _parts(w)
    z = jnp.asarray(distribution.draw(key, parts.shape, parts.dtype)).astype(parts.dtype)
    if z.shape != parts.shape:
        raise ValueError(
            f"distribution drew noise of the shape {z.shape} where {parts.shape} was asked for: "
            "draw(key, shape, dtype) has to return an array of that shape"
        )
    length = _norm(z) if distribution.to_norm else math.sqrt(max(z.size, 1))
    n = jnp.asarray(level, parts.dtype) * _norm(parts) * _ratio(1.0, length) * z
    return jax.lax.complex(n[0], n[1]) if jnp.iscomplexobj(w) else n


def ratio(moved: jax.Array, w: jax.Array) -> jax.Array:
    """``||moved − w|| / ||w||``, 0 where w is 0."""
    return _ratio(_norm(_parts(moved) - _parts(w)), _norm(_parts(w)))


def _parts(w: jax.Array) -> jax.Array:
    real = jnp.stack([w.real, w.imag]) if jnp.iscomplexobj(w) else jnp.asarray(w)
    return real.astype(jnp.float64 if real.dtype == jnp.float64 else jnp.float32)


def _norm(x: jax.Array) -> jax.Array:
    """With a derivative of 0 at 0, where that of the root is infinite."""
    squares = jnp.sum(x * x)
    return jnp.where(squares == 0, 0, jnp.sqrt(jnp.where(squares == 0, 1, squares)))


def _ratio(numerator: Any, denominator: Any) -> jax.Array:
    return jnp.where(denominator > 0, numerator / jnp.where(denominator > 0, denominator, 1), 0)
