"""Where the samples are: seen in a dry run, which leaves no trace."""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torchs
from torch.overrides import TorchFunctionMode
from torch.overrides import _get_current_function_mode as current_mode
from torch.utils import _pytree as pytree

from .. import random_state
from ..moving import drop_stale_copies
from .layers import refuse
from .pairs import HARMLESS, RANDOM, Pair, dispatch, shapes, tensors


def count_samples(arguments: Any, dim: int) -> int:
    """The common size of all tensors in that dimension."""
    leaves = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, Tensor) and leaf.dim() > dim]
    sizes = sorted({leaf.shape[dim] for leaf in leaves})
    if len(sizes) != 1:
        refuse(
            f"the model was given tensors of sizes {sizes} in dimension {dim}: pass only what has one entry a sample, "
            "or say by one_pass(dim=...) which dimension has the samples",
        )
    return int(sizes[0])


def signature(arguments: Any, dim: int) -> tuple[Any, ...]:
    """What a dry run holds for: the structure, ranks and switches of the arguments, whatever their sizes."""

    def kind(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return leaf.dim(), leaf.is_floating_point()
        return leaf if isinstance(leaf, bool | str | None) else type(leaf)

    leaves, structure = pytree.tree_flatten(arguments)
    return dim, repr(structure), *map(kind, leaves)


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

    def leave(self) -> None:
        """As __exit__(), also where it was not entered or was left."""
        if current_mode() is self:  # type: ignore[no-untyped-call]
            self.__exit__(None, None, None)

    def __torch_function__(self, f: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = partial(dispatch, f, args, kwargs or {})
        if not args or type(args[0]) is not Pair:
            call = partial(f, *args, **kwargs or {})
        if f in HARMLESS:
            return call()
        found = tensors(args, kwargs or {})
        given = [a if type(a) is Pair or isinstance(a, nn.Parameter) else a.detach().clone() for a in found]
        y = call()
        if f in RANDOM and len(self.calls) < len(self.plan):
            *_, (d,), _, _, p, q = self.plan[len(self.calls)]
            if isinstance(d, int):
                y.copy_(torch.cat([p, q], d))
        self.calls.append((f, given, shapes(tensors(y)), y.detach().clone() if f in RANDOM else None))
        return y


def compared(three: list[Any], two: list[Any]) -> list[Any]:
    """The calls of the runs over 3 and 2 samples, with the dimension of the samples in all that went in and out."""
    if [call[0] for call in three] != [call[0] for call in two]:
        refuse("what is computed depends on the number of samples, or on their values: use split()")
    plan = []
    for (f, given, out, drawn), (_, given_2, out_2, drawn_2) in zip(three, two, strict=True):
        dims = [grown(a, b) for a, b in zip(shapes(given), shapes(given_2), strict=False)]
        returned = [grown(a, b) for a, b in zip(out, out_2, strict=False)]
        plan.append((f, dims, returned, given, given_2, drawn, drawn_2))
    return plan


def grown(a: tuple[int, ...], b: tuple[int, ...]) -> int | str | None:
    """Of one tensor's shapes at 3 and at 2 samples: the dimension that grows with them, or "?" where it is not one."""
    grow = [d for d in range(len(a)) if a[d] != b[d]] if len(a) == len(b) else [0, 0]
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
    size = b[b.isfinite()].abs().square().double().mean().nan_to_num().sqrt().item()
    close = torch.isclose(a, b, 5e-2 if rough else 1e-2, (5e-2 if rough else 1e-3) * size + 1e-12, equal_nan=True)
    return bool(close.double().mean() > 0.98)


def trial(w: Tensor, generators: dict[torch.device, torch.Generator]) -> Tensor:
    """Values for a dry run, apart also where the weight is zero."""
    noise = torch.empty_like(w).normal_(generator=generators[w.device])
    noise *= 0.3 * w.abs().square().mean().sqrt().nan_to_num() + 0.05
    return torch.stack([w + noise, w - noise])


def leave_no_trace(undo: list[Callable[[], object]], model: nn.Module, devices: set[torch.device]) -> None:
    """Eval mode, no gradients and no compiler; ``undo`` gets what brings all back.

    That holds for modes, buffers, autocast's cache and random states, not for what a forward() writes to Python
    objects of its own.
    """
    if gc.isenabled():  # a loop collected now, dropped inside a point, would be logged as it puts its weights back
        undo.append(gc.enable)
        gc.disable()
    undo += [drop_stale_copies, partial(random_state.put_back, random_state.snapshot(devices))]
    undo.append(partial(random.setstate, random.getstate()))
    if numpy := sys.modules.get("numpy"):
        undo.append(partial(numpy.random.set_state, numpy.random.get_state()))
    undo += [partial(_set_back, buffer, buffer.clone()) for buffer in model.buffers()]
    undo += [partial(setattr, part, "training", part.training) for part in model.modules()]
    undo.append(partial(torch.set_grad_enabled, torch.is_grad_enabled()))
    torch.set_grad_enabled(False)
    if "torch._dynamo" in sys.modules:
        stance = torch.compiler.set_stance("force_eager")
        undo.append(partial(stance.__exit__, None, None, None))
    for part in model.modules():
        part.training = False


def take_back(undo: list[Callable[[], object]], down_to: int = 0) -> None:
    """Call all, the last first, each until it has come to its end: an interrupt in one is raised after the last."""
    try:
        while len(undo) > down_to:
            undo[-1]()
            undo.pop()
    finally:
        while len(undo) > down_to:
            undo[-1]()
            undo.pop()


@torch.no_grad()
def _set_back(buffer: Tensor, value: Tensor) -> None:
    if not torch.equal(buffer, value):
        buffer.copy_(value)


def watch(undo: list[Callable[[], object]], model: nn.Module, is_dry: Callable[[], bool]) -> None:
    """Leave forward hooks out of the dry run, and refuse those that then change what a layer is given or gives.

    But for torch's own, such as weight_norm's and pruning's.
    """

    def watched(hook: Any, name: str) -> Callable[..., None]:
        def look(*args: Any, **kwargs: Any) -> None:
            if not is_dry() and hook(*args, **kwargs) is not None:
                refuse(f"a forward hook of {name} changes what passes it: use split()")

        return look

    places = [("a module", torchs._global_forward_hooks), ("a module", torchs._global_forward_pre_hooks)]
    for name, part in model.named_modules():
        places += [(name or "the model", hooks) for hooks in (part._forward_hooks, part._forward_pre_hooks) if hooks]
    for name, hooks in places:
        for key, hook in hooks.items():
            kind = hook if hasattr(hook, "__name__") else type(hook)
            if not str(getattr(kind, "__module__", "")).startswith(("torch.", str(__package__))):
                undo.append(partial(_hang_back, hooks, key, hook))
                hooks[key] = watched(hook, name)


def _hang_back(hooks: Any, key: int, hook: Any) -> None:
    if key in hooks:
        hooks[key] = hook
