"""A batch in two halves, whatever its structure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree


def batch_size(batch: Any) -> int:
    """The common first dimension of all tensors in ``batch``."""
    leaves = pytree.tree_leaves(_known(batch))
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0]
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
    batch = _known(batch)
    for leaf in pytree.tree_leaves(batch):
        _check_leaf(leaf)
    size = batch_size(batch)
    lists = [part for part in pytree.tree_leaves(batch, is_leaf=_is_list) if _is_list(part)]
    if kinds := [type(part[0]).__name__ for part in lists if len(part) == size]:
        raise TypeError(
            f"split() cannot tell whether a list of {size} entries of type {kinds[0]} has one for each sample: leave "
            "it out, and take the first or the last of them by point.index"
        )
    if size < 2:
        raise ValueError("split() needs at least two samples, one for each sign; drop the last batch or use points()")
    first = (size + 1) // 2
    leaves, structure = pytree.tree_flatten(batch)
    pairs = [
        torch.split(leaf, [first, size - first]) if isinstance(leaf, Tensor) and leaf.dim() > 0 else (leaf, leaf)
        for leaf in leaves
    ]
    one, other = (pytree.tree_unflatten([pair[i] for pair in pairs], structure) for i in (0, 1))
    return (one, first / size), (other, (size - first) / size)


def _check_leaf(leaf: Any) -> None:
    """What holds samples and cannot be cut would go whole to both signs."""
    if isinstance(leaf, Tensor | nn.Module):
        return
    names = {name for kind in type(leaf).__mro__ for name in kind.__dict__.get("__slots__", ())}
    slots = {name: getattr(leaf, name, None) for name in names}
    inside = pytree.tree_leaves([slots, dict(getattr(leaf, "__dict__", {}))])
    if any(isinstance(value, Tensor) for value in inside) or getattr(leaf, "ndim", 0) != 0:
        raise TypeError(
            f"split() cannot halve a {type(leaf).__name__}: pass its tensors, or register it with torch.utils._pytree"
        )


def _is_list(part: Any) -> bool:
    """Of entries that are no tensors: strings, lengths, images not turned into tensors. (32, 32) is a size."""
    if not isinstance(part, list | tuple) or not part:
        return False
    others = (Tensor, list, tuple, dict, type(None)) + ((int, float) if isinstance(part, tuple) else ())
    return not any(isinstance(entry, others) for entry in part)


def _known(batch: Any) -> Any:
    """Mappings that pytree takes for leaves, such as Hugging Face's BatchEncoding, as dicts."""
    return pytree.tree_map(lambda leaf: _known(dict(leaf)) if isinstance(leaf, Mapping) else leaf, batch)
