"""Where gradients are taken: w + n and w − n, for every pair of a step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .noise import Distribution, noise

Params = Any
Predicate = Callable[[str, jax.Array], bool]


@dataclass(frozen=True)
class Points:
    """The points of a step, as a function of its key and number: drawn when asked for, never stored."""

    distribution: Distribution
    pairs: int
    perturb: Predicate | None
    axis: str | tuple[str, ...] | None  # of the devices that draw for themselves

    def __call__(self, params: Params, key: jax.Array, step: jax.Array, level: Any) -> tuple[Params, ...]:
        """w + n and w − n of the first pair, then those of the next."""
        if self.axis is not None:
            key = jax.random.fold_in(key, jax.lax.axis_index(self.axis))
        selected = self.selected(params)
        leaves, structure = jax.tree.flatten(params)
        key = jax.random.fold_in(key, step)
        points = []
        for pair in range(self.pairs):
            plus, minus = list(leaves), list(leaves)
            of_pair = jax.random.fold_in(key, pair)
            for i, w in enumerate(leaves):
                if selected[i]:
                    n = noise(w, jax.random.fold_in(of_pair, i), level, self.distribution)
                    dtype, wide = jnp.result_type(w), jnp.asarray(w).astype(n.dtype)
                    plus[i], minus[i] = (wide + n).astype(dtype), (wide - n).astype(dtype)
            points += [jax.tree.unflatten(structure, plus), jax.tree.unflatten(structure, minus)]
        return tuple(points)

    def selected(self, params: Params) -> Sequence[bool]:
        """Which leaves get noise, in the order of the tree."""
        found, _ = jax.tree_util.tree_flatten_with_path(params)
        chosen = [_may_move(leaf) and bool((self.perturb or _is_weight)(_name(path), leaf)) for path, leaf in found]
        if not any(chosen):
            raise ValueError(
                "nothing to perturb: no leaf of params "
                f"{'of two or more dimensions' if self.perturb is None else 'that perturb accepts'} was found; "
                f"choose some with perturb=lambda path, leaf: ..., among {', '.join(_name(path) for path, _ in found)}"
            )
        return chosen


def _may_move(leaf: Any) -> bool:
    """Not a counter, a mask or a random key."""
    return bool(jnp.issubdtype(jnp.result_type(leaf), jnp.inexact))


def _is_weight(path: str, leaf: jax.Array) -> bool:
    return bool(jnp.ndim(leaf) >= 2)


def _name(path: Sequence[Any]) -> str:
    """``dense/kernel``, from what JAX calls a path: dictionary keys, attributes and indices."""
    return "/".join(str(getattr(p, "key", getattr(p, "name", getattr(p, "idx", p)))) for p in path)
