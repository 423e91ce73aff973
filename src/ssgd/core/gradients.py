"""``p.grad`` over the points of a step: a weighted mean, built by plain accumulation."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from .parallel import Sharding, local


class MeanGradient:
    """Keeps ``p.grad`` = what was there + Σ share · gradient, while backward() does nothing but add.

    What has come so far is rescaled before each pass so that the pass's own gradient enters with factor one:
    by 2 on entering a pair and by ½ on leaving it, which is exact as long as float16 does not overflow.
    """

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.beside: Sequence[Tensor] = ()  # what another optimizer updates: a mean too, and it may be sparse
        self._share = 1.0  # p.grad times this is the mean so far
        self._aside: dict[Tensor, Tensor] = {}

    def before(self, share: float) -> None:
        """Make room for a pass with this share. One with share 0 has ``p.grad`` for itself."""
        if share:
            self._rescale(share)
        else:
            there = {p: p.grad for p in self.all if p.grad is not None}
            self._aside = {p: g.clone() if g._is_view() else g for p, g in there.items()}  # DDP writes to its views
            clear(self.all)

    def after(self, share: float) -> None:
        """A pass with share 0 leaves nothing behind."""
        if not share:
            for p in self.all:
                p.grad = self._aside.pop(p, None)

    @property
    def all(self) -> list[Tensor]:
        return [*self.parameters, *self.beside]

    @contextmanager
    def clearing_noticed(self) -> Iterator[None]:
        """What was set aside is dropped where the block clears gradients, in whatever way, before it adds to them.

        Zeros stand in its place, and the first gradient to arrive shows whether they were removed or written to.
        """
        marks = {p: torch.zeros_like(g) for p, g in self._aside.items()}

        def look(p: Tensor, writes: int = 1) -> None:
            mark = marks.pop(p, None)
            if mark is not None and (p.grad is not mark or sum(t._version for t in {mark, local(mark)}) > writes):
                del self._aside[p]

        for p, mark in marks.items():
            p.grad = mark
        handles = [p.register_post_accumulate_grad_hook(look) for p in marks if p.requires_grad]  # type: ignore[no-untyped-call]
        try:
            yield
            for p in list(marks):  # those that no gradient came to
                look(p, writes=0)
        finally:
            for handle in handles:
                handle.remove()

    def end(self) -> None:
        """After the last pass."""
        self._rescale(1.0)

    @torch.no_grad()
    def _rescale(self, share: float) -> None:
        if share == self._share:
            return
        gradients = present(self.parameters)
        others = [p.grad for p in self.beside if p.grad is not None]
        gradients += [local(g) for g in others if g.layout is torch.strided]
        if gradients:
            torch._foreach_mul_(gradients, self._share / share)
        for sparse in (g for g in others if g.layout is not torch.strided):
            sparse.mul_(self._share / share)
        self._share = share


def present(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradients there are, as far as they lie here."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if any(g.layout is not torch.strided for g in gradients):
        raise RuntimeError(
            "sparse gradients are not served: build the embedding with sparse=False, "
            "or give its parameters an optimizer of their own"
        )
    return [local(g) for g in gradients]


def clear(parameters: Iterable[Tensor]) -> None:
    for p in parameters:
        p.grad = None


class Gradients:
    """The gradients there are, to tell later whether a backward() has added to one.

    They are known by weak references: an id may come again.
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        gradients = [g for p in parameters if (g := p.grad) is not None]
        self._known = [TensorWeakRef(g) for g in gradients]
        self._versions = _versions(gradients)

    def __bool__(self) -> bool:
        return bool(self._known)

    def changed(self, parameters: Iterable[Tensor]) -> bool:
        now = [g for p in parameters if (g := p.grad) is not None]
        others = len(now) != len(self._known) or any(ref() is not g for ref, g in zip(self._known, now, strict=True))
        return others or _versions(now) != self._versions


def _versions(gradients: Sequence[Tensor]) -> list[int]:
    """Of each, and of its part here where it is sharded."""
    return [g._version for g in gradients] + [local(g)._version for g in gradients if type(g) is not Tensor]


@contextmanager
def added_on_arrival(parameters: Sequence[Tensor], aside: list[Tensor | None]) -> Iterator[None]:
    """What was set aside joins a parameter's gradient as it arrives: DDP then reduces the sum."""

    def join(index: int) -> Callable[[Tensor], Tensor]:
        def hook(gradient: Tensor) -> Tensor:
            old, aside[index] = aside[index], None
            return gradient if old is None else gradient + old

        return hook

    hooked = [i for i, old in enumerate(aside) if old is not None]
    handles = [parameters[i].register_hook(join(i)) for i in hooked]  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def add_back(parameters: Sequence[Tensor], aside: Sequence[Tensor | None]) -> None:
    """``p.grad`` = what was set aside + what has come since."""
    kept = [(p, old) for p, old in zip(parameters, aside, strict=True) if old is not None]
    both = [(local(old), local(p.grad)) for p, old in kept if p.grad is not None]
    dense = [pair for pair in both if pair[0].layout is torch.strided]
    if dense:
        torch._foreach_add_([old for old, _ in dense], [new for _, new in dense])
    for old, new in both:
        if old.layout is not torch.strided:
            old.add_(new)
    for p, old in kept:
        p.grad = old


def all_finite(parameters: Sequence[Tensor], shardings: Iterable[Sharding]) -> Tensor:
    """Whether every gradient element is finite: a 0-dim tensor on the device, the same on all shards."""
    gradients = [g for g in present(parameters) if g.numel()]
    norms = torch._foreach_norm(gradients, float("inf")) if gradients else []
    device = local(parameters[0]).device
    bad = torch.zeros((), device=device)
    if norms:
        bad += torch.stack([n.to(device) for n in norms]).isfinite().logical_not().any()
    for cut in shardings:
        bad = cut.sum(bad)
    return bad == 0
