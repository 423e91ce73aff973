"""A batch in two halves, whatever its structure."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree


def batch_size(batch: Any) -> int:
    """The common first dimension of all tensors in ``batch``."""
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, Tensor) and leaf.dim() > 0]
    if not tensors:
        raise ValueError("split() needs a batch with at least one tensor whose first dimension counts the samples")
    sizes = sorted({t.shape[0] for t in tensors})
    if len(sizes) > 1:
        raise ValueError(
            f"split() got tensors with different first dimensions, {sizes}; "
            "pass only what has one entry a sample, the rest stays as it is"
        )
    return sizes[0]


def halves(batch: Any) -> tuple[tuple[Any, float], tuple[Any, float]]:
    """``batch`` as ((first ⌈B/2⌉ samples, their share), (the other ⌊B/2⌋, their share)); views, nothing is copied."""
    size = batch_size(batch)
    if size < 2:
        raise ValueError("split() needs at least two samples, one for each sign; drop the last batch or use points()")
    first = (size + 1) // 2

    def part(start: int, length: int) -> Any:
        def cut(leaf: Any) -> Any:
            return leaf.narrow(0, start, length) if isinstance(leaf, Tensor) and leaf.dim() > 0 else leaf

        return pytree.tree_map(cut, batch)

    return (part(0, first), first / size), (part(first, size - first), (size - first) / size)
