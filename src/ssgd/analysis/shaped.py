"""A function made faster for arguments of one shape: compiled, or replayed as a CUDA graph."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from ..core.random_state import put_back, snapshot
from .capture import captured_in

Function = Callable[..., Any]
Faster = Callable[..., Function]  # of the function and its first arguments
WARM_UP = 3  # on the stream of the capture, as torch asks for; torch.jit makes its kernels in the first two


class OneShape:
    """``function``, faster for arguments shaped like the first; others, such as a ragged last batch, go the plain way.

    Where it cannot be made faster a line says why, and all go the plain way.
    """

    def __init__(self, function: Function, plain: Function, faster: Faster, what: str) -> None:
        self.function = function
        self.plain = plain
        self.faster = faster
        self.what = what
        self.shape: Any = None
        self.made: Function | None = None

    def __call__(self, *arguments: Any) -> Any:
        leaves = tree_leaves(arguments)
        shape = [(leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else type(leaf) for leaf in leaves]
        if self.shape is None:
            self.shape = shape
            return self._first(*arguments)
        if self.made is None or shape != self.shape:
            return self.plain(*arguments)
        return self.made(*arguments)

    def _first(self, *arguments: Any) -> Any:
        try:
            made = self.faster(self.function, *arguments)
            found = made(*arguments)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
            print(f"{self.what} does not work here, all goes on without, slower ({reason})", file=sys.stderr)
            return self.plain(*arguments)
        self.made = made
        return found


def compiled(function: Function, plain: Function | None = None) -> OneShape:
    """``plain``, by default the function itself, serves the other shapes."""
    faster = lambda function, *_: torch.compile(function, dynamic=False)  # noqa: E731
    return OneShape(function, plain or function, faster, "torch.compile")


def captured(function: Function, plain: Function | None = None, moved: Sequence[Tensor] = ()) -> OneShape:
    """What it returns is overwritten by the next call. Tensors that are not arguments must stay where they are.

    ``moved`` are those that the function counts in: to capture it takes a few calls, which leave no trace there.
    """
    return OneShape(function, plain or function, partial(_capture, moved), "a CUDA graph")


def _capture(moved: Sequence[Tensor], function: Function, *arguments: Any) -> Function:
    if not all(isinstance(leaf, Tensor) and leaf.is_cuda for leaf in tree_leaves(arguments)):
        raise ValueError("not all of a batch is tensors on a GPU")
    mine, before = tree_map(torch.clone, arguments), [t.clone() for t in moved]
    drawn = snapshot({leaf.device for leaf in tree_leaves(mine)})
    stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    current = torch.cuda.current_stream()
    graph = torch.cuda.CUDAGraph()
    stream.wait_stream(current)
    try:
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP):
                function(*mine)
        current.wait_stream(stream)
        with captured_in(graph, stream):
            out = function(*mine)
    finally:
        put_back(drawn)
        for tensor, value in zip(moved, before, strict=True):
            tensor.copy_(value)

    def replay(*arguments: Any) -> Any:
        for own, given in zip(tree_leaves(mine), tree_leaves(arguments), strict=True):
            own.copy_(given)
        graph.replay()
        return out

    return replay
