"""A batch in two halves, whatever its structure."""

from __future__ import annotations

import copy
import warnings
from collections import UserDict, deque
from collections.abc import Callable, Mapping, MutableMapping, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

BY_INDEX = "call split(torch.arange(n)) for n samples, and take each half of them by its indices"
TWOFOLD = (
    "split() cannot tell whether a list here has one entry a sample, or a column of all samples in each: give columns "
    f"as arguments, split(*batch), or in a tuple; for samples, {BY_INDEX}"
)


def batch_size(batch: Any) -> int:
    """The number of samples: the first dimension of the tensors, and the length of lists with one entry a sample."""
    top = isinstance(batch, tuple)
    columns = top or _may_have_entries(batch)
    lists = [found for part in (batch if columns else [batch]) for found in _lists(part)]
    lists += [batch] if columns and not top else []
    sizes = _first_dimensions(batch) | {len(found) for found in lists}
    fitting = [size for size in sorted(sizes) if _fits(batch, size, top)]
    lengths = {len(found) for found in lists}
    if top and len({isinstance(found[0], Mapping) for found in lists}) == 2 and len(lengths) == 1:
        fitting = [size for size in fitting if size in lengths] or fitting  # images, and a dict of boxes for each
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise TypeError(TWOFOLD)
    for leaf in pytree.tree_leaves(batch):
        _check_leaf(leaf, 0)
    if not sizes:
        raise ValueError("split() needs a batch with at least one tensor whose first dimension counts the samples")
    raise ValueError(
        f"split() got tensors with different first dimensions, {sorted(sizes)}; "
        "pass only what has one entry a sample, the rest stays as it is"
    )


def halves(batch: Any) -> tuple[tuple[Any, float], tuple[Any, float]]:
    """``batch`` as ((first ⌈B/2⌉ samples, their share), (the other ⌊B/2⌋, their share)); no tensor is copied.

    Tensors are cut along their first dimension. A list or tuple of B entries is cut between them, but for a tuple at
    the top, which holds arguments, and for tuples of numbers, which are sizes. Containers keep their type.
    """
    plain = type(batch) is tuple and {type(part) for part in batch} == {Tensor}
    sizes = {part.shape[:1] for part in batch} if plain else set()
    size = batch[0].shape[0] if len(sizes) == 1 and batch[0].dim() else batch_size(batch)
    if size < 2:
        raise ValueError("split() needs at least two samples, one for each sign; drop the last batch or use points()")
    one, other = _cut(batch, size, top=isinstance(batch, tuple))
    first = (size + 1) // 2
    return (one, first / size), (other, (size - first) / size)


def warn_of_reduction(loss: object, half: object, reduction: str) -> None:
    """Where autograd's graph tells that the loss of a half is a sum, or a mean, and the other was asked for."""
    node: Any = getattr(loss, "grad_fn", None)
    found = {1: "mean", 2: "sum"}.get(getattr(node, "_saved_reduction", 0))
    if type(node).__name__ == "SumBackward0":
        lengths = {leaf.shape[0] for leaf in pytree.tree_leaves(half) if isinstance(leaf, Tensor) and leaf.dim()}
        found = "sum" if lengths & {*node._saved_self_sym_sizes[:1]} else None
    if found not in (None, reduction):
        warnings.warn(
            f"split() was given reduction={reduction!r}, and the loss of a half is a {found} over its samples: call "
            f"split(..., reduction={found!r}), or the gradient is not that of the whole batch",
            stacklevel=3,
        )


def _cut(part: Any, size: int, top: bool = False) -> tuple[Any, Any]:
    first = (size + 1) // 2
    if isinstance(part, Tensor):
        if part.is_nested or part.layout is not torch.strided:
            kind = "nested" if part.is_nested else str(part.layout).removeprefix("torch.")
            raise TypeError(f"split() cannot halve a {kind} tensor: {BY_INDEX}, or use points()")
        one, other = torch.split(part, [first, size - first]) if part.dim() else (part, part)
        return one, other
    if not top and _may_have_entries(part) and len(part) == size:
        if isinstance(part[0], Tensor) and part[0].dim() and _fits([*part], size, top=True):
            raise TypeError(TWOFOLD)
        return _like(part, [*part][:first]), _like(part, [*part][first:])
    opened = _opened(part)
    if opened is None:
        _check_leaf(part, size)
        return part, part
    held, closed = opened
    pairs = [_cut(inside, size) for inside in held]
    return closed([pair[0] for pair in pairs]), closed([pair[1] for pair in pairs])


def _fits(part: Any, size: int, top: bool = False) -> bool:
    """Whether the batch may have so many samples."""
    if isinstance(part, Tensor):
        return not part.dim() or part.shape[0] == size
    if not top and _may_have_entries(part) and len(part) == size:
        return True
    opened = _opened(part)
    return opened is None or all([_fits(inside, size) for inside in opened[0]])


def _first_dimensions(part: Any) -> set[int]:
    if isinstance(part, Tensor):
        return set(part.shape[:1])
    opened = _opened(part)
    return {size for inside in opened[0] for size in _first_dimensions(inside)} if opened else set()


def _lists(part: Any) -> list[Any]:
    """The outermost that may have one entry a sample."""
    if _may_have_entries(part):
        return [part]
    opened = _opened(part)
    return [found for inside in opened[0] for found in _lists(inside)] if opened else []


def _may_have_entries(part: Any) -> bool:
    """Whether its entries may be samples: (32, 32) is a size, and tensors of several kinds are columns."""
    if not isinstance(part, list | tuple | deque) or len(part) < 2 or hasattr(part, "_fields"):
        return False
    if isinstance(part, tuple) and any(isinstance(entry, int | float) for entry in part):
        return False
    kinds = {(entry.dtype, entry.dim()) if isinstance(entry, Tensor) else None for entry in part}
    return len(kinds) == 1


def _opened(part: Any) -> tuple[list[Any], Callable[[list[Any]], Any]] | None:
    """What a container holds, and how to make one of its kind of other things; None where it is none."""
    if isinstance(part, UserDict):  # such as Hugging Face's BatchEncoding, with the tokens beside its data
        return [dict(vars(part))], lambda held: _changed(part, lambda new: vars(new).update(held[0]))
    held, structure = pytree.tree_flatten(part, is_leaf=lambda inside: inside is not part)
    if not structure.is_leaf():
        return held, lambda held: pytree.tree_unflatten(held, structure)
    if isinstance(part, MutableMapping):
        keys = list(part)
        return list(part.values()), lambda held: _changed(part, lambda new: new.update(zip(keys, held, strict=True)))
    return (list(part), lambda held: _like(part, held)) if isinstance(part, list | tuple) else None


def _like(part: Any, entries: list[Any]) -> Any:
    """A list or tuple with these entries, of the same class and with its attributes."""
    _check_leaf(part, 0)
    if isinstance(part, tuple):
        new = tuple.__new__(type(part), entries)
        getattr(new, "__dict__", {}).update(getattr(part, "__dict__", {}))
        return new
    return _changed(part, lambda new: (new.clear(), new.extend(entries)))


def _changed(part: Any, change: Callable[[Any], object]) -> Any:
    new = copy.copy(part)
    change(new)
    return new


def _check_leaf(leaf: Any, size: int) -> None:
    """What holds samples and cannot be cut would go whole to both signs."""
    if isinstance(leaf, Tensor | nn.Module):
        return
    names = {name for kind in type(leaf).__mro__ for name in kind.__dict__.get("__slots__", ())}
    slots = {name: getattr(leaf, name, None) for name in names}
    own = list(leaf.values() if isinstance(leaf, Mapping) else leaf) if isinstance(leaf, Mapping | Set) else []
    inside = pytree.tree_leaves([slots, dict(getattr(leaf, "__dict__", {})), own])
    if any(isinstance(value, Tensor) for value in inside) or getattr(leaf, "ndim", 0) != 0 or 0 < len(own) == size:
        raise TypeError(
            f"split() cannot halve a {type(leaf).__name__}: pass its tensors, or register it with torch.utils._pytree"
        )
