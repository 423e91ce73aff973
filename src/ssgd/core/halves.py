"""A batch in two halves, whatever its structure."""

from __future__ import annotations

import copy
from collections import UserDict, deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Set
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

BY_INDEX = "call split(torch.arange(n)) for n samples, and take each half of them by its indices"


def batch_size(batch: Any) -> int:
    """The number of samples: the first dimension of the tensors, and the length of lists with one entry a sample."""
    top = isinstance(batch, tuple)
    columns = top or _may_have_entries(batch)
    lists = [found for part in (batch if columns else [batch]) for found in _lists(part)]
    lists += [batch] if columns and not top else []
    sizes = {t.shape[0] for t in _tensors(batch) if t.dim()} | {len(found) for found in lists}
    fitting = [size for size in sorted(sizes) if _fits(batch, size, top)]
    lengths = {len(found) for found in lists}
    of_dicts = any(isinstance(found[0], Mapping) for found in lists)
    if top and of_dicts and len(lists) > 1 and len(lengths) == 1:
        fitting = [size for size in fitting if size in lengths]  # images and the boxes in each: columns are no dicts
    if len(fitting) == 1:
        return fitting[0]
    if fitting:
        raise TypeError(
            f"split() cannot tell whether these are {' or '.join(map(str, fitting))} samples: a list may have one "
            "entry a sample, or a column of all samples in each. Give columns as arguments, split(*batch), or in "
            f"a tuple; for samples, {BY_INDEX}"
        )
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
    size = batch_size(batch)
    if size < 2:
        raise ValueError("split() needs at least two samples, one for each sign; drop the last batch or use points()")
    one, other = _cut(batch, size, top=isinstance(batch, tuple))
    first = (size + 1) // 2
    return (one, first / size), (other, (size - first) / size)


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
            raise TypeError(
                f"split() cannot tell whether a list of {size} tensors with {size} entries each has a tensor for each "
                f"sample: give columns as arguments of their own; for samples, {BY_INDEX}"
            )
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


def _tensors(part: Any) -> Iterator[Tensor]:
    opened = _opened(part)
    for inside in opened[0] if opened else []:
        yield from _tensors(inside)
    if isinstance(part, Tensor):
        yield part


def _lists(part: Any) -> Iterator[Any]:
    """The outermost that may have one entry a sample."""
    opened = _opened(part)
    if _may_have_entries(part):
        yield part
    elif opened:
        for inside in opened[0]:
            yield from _lists(inside)


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
    if isinstance(part, PackedSequence):
        raise TypeError(f"split() cannot halve a PackedSequence: pack inside the points, or {BY_INDEX}")
    if isinstance(part, UserDict):  # such as Hugging Face's BatchEncoding, with the tokens beside its data

        def encoding(held: list[Any]) -> Any:
            new = copy.copy(part)
            vars(new).update(held[0])
            return new

        return [dict(vars(part))], encoding
    held, structure = pytree.tree_flatten(part, is_leaf=lambda inside: inside is not part)
    if not structure.is_leaf():
        return held, lambda held: pytree.tree_unflatten(held, structure)
    if isinstance(part, Mapping):

        def mapping(held: list[Any]) -> Any:
            items = dict(zip(part, held, strict=True))
            if not isinstance(part, MutableMapping):
                return type(part)(items)  # type: ignore[call-arg]
            new = copy.copy(part)
            new.update(items)
            return new

        return list(part.values()), mapping
    return (list(part), lambda held: _like(part, held)) if isinstance(part, list | tuple) else None


def _like(part: Any, entries: list[Any]) -> Any:
    """A list or tuple with these entries, of the same class and with its attributes."""
    _check_leaf(part, 0)
    if isinstance(part, tuple):
        new: Any = tuple.__new__(type(part), entries)
        getattr(new, "__dict__", {}).update(getattr(part, "__dict__", {}))
        return new
    new = copy.copy(part)
    new.clear()
    new.extend(entries)
    return new


def _check_leaf(leaf: Any, size: int) -> None:
    """What holds samples and cannot be cut would go whole to both signs."""
    if isinstance(leaf, Tensor | nn.Module):
        return
    names = {name for kind in type(leaf).__mro__ for name in kind.__dict__.get("__slots__", ())}
    slots = {name: getattr(leaf, name, None) for name in names}
    own = list(leaf) if isinstance(leaf, Set) else []
    inside = pytree.tree_leaves([slots, dict(getattr(leaf, "__dict__", {})), own])
    if any(isinstance(value, Tensor) for value in inside) or getattr(leaf, "ndim", 0) != 0 or 0 < len(own) == size:
        raise TypeError(
            f"split() cannot halve a {type(leaf).__name__}: pass its tensors, or register it with torch.utils._pytree"
        )
