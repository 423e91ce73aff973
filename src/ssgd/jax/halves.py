"""A batch in two halves, whatever its structure."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def halves(batch: Any) -> tuple[tuple[Any, float], tuple[Any, float]]:
    """``batch`` as ((first ⌈B/2⌉ samples, their share), (the other ⌊B/2⌋, their share)); scalars stay whole."""
    size = _batch_size(batch)
    first = (size + 1) // 2
    one = jax.tree.map(lambda leaf: leaf[:first] if jnp.ndim(leaf) else leaf, batch)
    other = jax.tree.map(lambda leaf: leaf[first:] if jnp.ndim(leaf) else leaf, batch)
    return (one, first / size), (other, (size - first) / size)


def _batch_size(batch: Any) -> int:
    sizes: list[int] = sorted({jnp.shape(leaf)[0] for leaf in jax.tree.leaves(batch) if jnp.ndim(leaf)})
    if not sizes:
        raise ValueError("split needs at least one positional array whose first dimension counts the samples")
    if len(sizes) > 1:
        raise ValueError(
            f"split got positional arrays with different first dimensions, {sizes}; "
            "pass by keyword what does not have one entry a sample, and it stays whole"
        )
    if sizes[0] < 2:
        raise ValueError('split needs at least two samples, one for each sign; drop the last batch or use mode="both"')
    return sizes[0]
