"""Where the samples are: seen in a dry run, which leaves no trace."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules_of_torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .. import random_state, stale
from .layers import Unserved
from .pairs import HARMLESS, RANDOM, Pair, dispatch, shapes, tensors

MOST = 5  # samples in a dry run: 3 at w + n and 2 at w − n


def count_samples(arguments: Any, dim: int) -> int:
    """The common size of all tensors in that dimension."""
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor) and leaf.dim() > dim]
    sizes = sorted({leaf.shape[dim] for leaf in leaves})
    if not sizes:
        raise Unserved((), "the model was given no tensor of samples: pass one, or use points()")
    if len(sizes) > 1:
        raise Unserved(
            (),
            f"the model was given tensors with different sizes in dimension {dim}, {sizes}: pass only what has one "
            "entry a sample, or say by one_pass(dim=...) which dimension has the samples",
        )
    return int(sizes[0])


def signature(arguments: Any, dim: int) -> tuple[Any, ...]:
    """What a dry run holds for: the structure, ranks and switches of the arguments, whatever their sizes."""
    leaves, structure = pytree.tree_flatten(arguments)
    kinds = [
        (leaf.dim(), leaf.is_floating_point())
        if isinstance(leaf, Tensor)
        else leaf
        if isinstance(leaf, bool | str | None)
        else type(leaf)
        for leaf in leaves
    ]
    return dim, repr(structure), *kinds


def some(arguments: Any, total: int, dim: int, start: int, stop: int) -> Any:
    """The samples from start to stop, again from the first where there are fewer."""

    def part(a: Any) -> Any:
        if isinstance(a, Tensor) and a.dim() > dim and a.shape[dim] == total:
            return a.index_select(dim, torch.arange(start, stop, device=a.device) % total)
        return a

    return pytree.tree_map(part, arguments)


class Log(TorchFunctionMode):
    """Every call: what was given, as it was then, and the shapes returned.

    The whole's random numbers are those of its halves, which ``plan`` has.
    """

    def __init__(self, plan: Any = ()) -> None:
        super().__init__()
        self.calls: list[Any] = []
        self.plan = plan
        self.muted = False  # inside what is recorded as one call

    def __torch_function__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call: Callable[..., Any] = dispatch if args and type(args[0]) is Pair else plain
        if f in HARMLESS or self.muted:
            return call(f, args, kwargs or {})
        given = [kept(a) for a in tensors(args, kwargs or {})]
        y = call(f, args, kwargs or {})
        if f in RANDOM and len(self.calls) < len(self.plan):
            *_, (d,), _, _, p, q = self.plan[len(self.calls)]
            if isinstance(d, int):
                y.copy_(torch.cat([p, q], d))
        self.calls.append((f, given, shapes(tensors(y)), y.detach().clone() if f in RANDOM else None))
        return y

    def record(self, what: Any, x: Tensor) -> None:
        """A call of something that is no function of torch's, and returns its input's shape."""
        self.calls.append((what, [kept(x)], [tuple(x.shape)], None))


def plain(f: Any, args: Any, kwargs: Any) -> Any:
    return f(*args, **kwargs)


def kept(a: Any) -> Any:
    return a if type(a) is Pair or isinstance(a, nn.Parameter) else a.detach().clone()


def compared(three: list[Any], two: list[Any]) -> list[Any]:
    """The calls of the runs over 3 and 2 samples, with the dimension of the samples in all that went in and out."""
    if [call[0] for call in three] != [call[0] for call in two]:
        raise Unserved((), "what is computed depends on the number of samples, or on their values: use split()")
    plan = []
    for (f, given, out, random_3), (_, given_2, out_2, random_2) in zip(three, two, strict=True):
        dims = [grown(a, b) for a, b in zip(shapes(given), shapes(given_2), strict=False)]
        returned = [grown(a, b) for a, b in zip(out, out_2, strict=False)]
        plan.append((f, dims, returned, given, given_2, random_3, random_2))
    return plan


def grown(a: tuple[int, ...], b: tuple[int, ...]) -> int | str | None:
    """Of one tensor's shapes at 3 and at 2 samples: the dimension that grows with them, or "?" where it is not one."""
    if len(a) != len(b):
        return "?"
    grow = [d for d in range(len(a)) if a[d] != b[d]]
    if not grow:
        return None
    return grow[0] if len(grow) == 1 and a[grow[0]] * 2 == b[grow[0]] * 3 else "?"


def agrees(a: Tensor, dim: int | str | None, three: Tensor, two: Tensor) -> bool:
    """Whether what the whole was given is its halves put together, or the same in both."""
    if isinstance(dim, str):
        return False
    if dim is None:
        return alike(a, three) and alike(three, two)
    return alike(a, torch.cat([three, two], dim))


def alike(a: Tensor, b: Tensor) -> bool:
    """Equal but for rounding, which low precision makes large."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if not (a.is_floating_point() or a.is_complex()) or not a.numel():
        return torch.equal(a, b)
    rough = torch.finfo(a.dtype).eps > 1e-4
    size = b[b.isfinite()].abs().square().double().mean().sqrt().item()
    bound = (5e-2 if rough else 1e-3) * size if size == size else 0.0
    close = torch.isclose(a, b, 5e-2 if rough else 1e-2, bound + 1e-12, equal_nan=True)
    return bool(close.double().mean() > 0.98)


@contextmanager
def untouched(model: nn.Module | None, devices: set[torch.device]) -> Iterator[None]:
    """Eval mode, no gradients, no compiler and no hooks but torch's own; afterwards all is as it was.

    That holds for modes, buffers, hooks, autocast's cache and random states, not for what a forward() writes to
    Python objects of its own.
    """
    parts = [] if model is None else list(model.modules())
    modes = [part.training for part in parts]
    buffers = [] if model is None else [(b, b.clone()) for b in model.buffers()]
    hooks: list[Any] = [modules_of_torch._global_forward_hooks, modules_of_torch._global_forward_pre_hooks]
    hooks += [found for part in parts for found in (part._forward_hooks, part._forward_pre_hooks) if found]
    were = [dict(found) for found in hooks]
    numpy = sys.modules.get("numpy")
    states = random_state.snapshot(devices), random.getstate(), None if numpy is None else numpy.random.get_state()
    with ExitStack() as stack:
        try:
            for part in parts:
                part.training = False
            for found in hooks:
                for key in [key for key, hook in found.items() if not is_torchs(hook)]:
                    del found[key]
            stack.enter_context(torch.no_grad())
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            yield
        finally:
            for part, mode in zip(parts, modes, strict=True):
                part.training = mode
            for found, before in zip(hooks, were, strict=True):
                found.clear()
                found.update(before)
            with torch.no_grad():
                for buffer, value in buffers:
                    if not torch.equal(buffer, value):
                        buffer.copy_(value)
            random_state.put_back(states[0])
            random.setstate(states[1])
            if numpy is not None:
                numpy.random.set_state(states[2])
            stale.forget()


def is_torchs(hook: Any) -> bool:
    """Whether a hook computes what the layer needs, as weight_norm and pruning do, or is ours; not the user's."""
    kind = type(hook) if not hasattr(hook, "__module__") or not hasattr(hook, "__name__") else hook
    return str(getattr(kind, "__module__", "")).startswith(("torch.", __package__))


def watched(model: nn.Module) -> Callable[[], object]:
    """Has every hook of the user's refused that changes what a layer is given or gives: the dry run left it out.

    Returns the function that ends it.
    """
    changed: list[Any] = []
    for name, part in model.named_modules():
        for hooks in (part._forward_hooks, part._forward_pre_hooks):
            for key, hook in hooks.items():
                if not is_torchs(hook):
                    changed.append((hooks, key, hook))
                    hooks[key] = _watch(hook, name)

    def end() -> None:
        for hooks, key, hook in changed:
            if key in hooks:
                hooks[key] = hook

    return end


def _watch(hook: Any, name: str) -> Callable[..., None]:
    def look(*args: Any, **kwargs: Any) -> None:
        if hook(*args, **kwargs) is not None:
            raise Unserved((), f"a forward hook of {name or 'the model'} changes what passes it: use split()")

    return look
