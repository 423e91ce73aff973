"""``p.grad`` over the passes of a batch: what was there, and a weighted mean of what the passes bring."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor
from torch.utils.weak import TensorWeakRef

from .parallel import Sharding, local

SECOND_ORDER = (
    "a gradient at a point has a graph of its own, as create_graph=True leaves it for second-order optimizers such as "
    "AdaHessian and SophiaH: the graph is of weights that move, so they are not served; take another base"
)
SPARSE = (
    "sparse gradients are not served: build the embedding with sparse=False, "
    "or give its parameters an optimizer of their own"
)
CLEARED = (
    "gradients were cleared inside the last point, whose backward() reduces the sum of all points over the ranks: "
    "clear them before the points"
)
UNREDUCED = (
    "a parameter has a gradient from an earlier point and none from the last one, whose backward() reduces it over the "
    "ranks: use every layer at every point, or points() under DistributedDataParallel(find_unused_parameters=True)"
)


class MeanGradient:
    """Leaves ``p.grad`` = what was there + Σ share · gradient, summed over the passes.

    A pass adds to what is in ``p.grad``, as every backward() does. After it the gradient is taken out, into memory that
    is ours: clearing gradients at a later point drops nothing, and a backward() that writes to the same memory each
    time, as CUDA graphs do, changes nothing. The price is a second set of gradients during the later passes.

    The first pass that counts adds to what was there before, scaled so that its gradient enters with factor one. A pass
    with share 0 has ``p.grad`` for itself and leaves nothing behind.
    """

    def __init__(self, parameters: Sequence[Tensor], others: Sequence[Tensor], shares: Sequence[float]) -> None:
        self.all = [*parameters, *others]
        self.arrivals: list[bool] = []  # whether a gradient came in each pass
        self._others = set(map(id, others))  # which may be sparse: the base need not take them
        self._shares = shares
        counting = [share for share in shares if share]
        self._first = shares.index(counting[0])
        self._as_it_is = counting == [1]  # the one pass that counts leaves the mean as it is
        self._mean: dict[Tensor, Tensor] = {}  # of the passes so far, with what was there before
        self._aside: dict[Tensor, Tensor] = {}  # during a pass with share 0
        self._seen: list[tuple[TensorWeakRef, int]] = []  # the gradients there were when last looked at
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._reduced = False

    def changed(self) -> bool:
        """Whether a gradient has come, gone or been written to since the last pass began or ended."""
        now = [g for p in self.all if (g := p.grad) is not None]
        if len(now) != len(self._seen):
            return True
        return any(
            ref() is not g or version != version_of(g) for (ref, version), g in zip(self._seen, now, strict=True)
        )

    @property
    def there(self) -> bool:
        """Whether there is any gradient."""
        return any([p.grad is not None for p in self.all])

    @property
    def came_late(self) -> bool:
        """Whether all gradients there are came after the last pass, so that they are not the points'."""
        return not any(self.arrivals) and not self._seen and self.changed()

    def begin(self, index: int, reduced: bool = False, unused: bool = False) -> None:
        """Before a pass. ``reduced``: DDP's backward() reduces the sum; ``unused``: also of layers it does not use."""
        share = self._shares[index]
        self._reduced = reduced and bool(self._mean)
        if not share:
            self._aside = {p: g.clone() if g._is_view() else g for p in self.all if (g := p.grad) is not None}
            clear(self.all)  # the clones are of DDP's views, which it writes to
        elif index == self._first:
            scale((g for p in self.all if (g := p.grad) is not None), 1 / share)
        if self._reduced:
            scale(self._mean.values(), 1 / share)
            for p, g in self._mean.items():
                if unused:
                    p.grad = g
                hook = _still_there(p, g) if unused else self._joined_on_arrival(p)
                self._hooks.append(p.register_hook(hook))  # type: ignore[no-untyped-call]
            if unused:
                self._mean = {}
        self.look()

    def end(self, index: int, moved: bool) -> bool:
        """After a pass, which was elsewhere than at w if ``moved``; return whether a gradient came."""
        share, last = self._shares[index], index == len(self._shares) - 1
        self.arrivals.append(self.changed())
        if moved and any([g.requires_grad for p in self.all if (g := p.grad) is not None]):
            raise RuntimeError(SECOND_ORDER)
        if not share:
            for p in self.all:
                p.grad = self._aside.get(p)
            self._aside = {}
        elif self._reduced:
            if self._mean:
                raise RuntimeError(UNREDUCED)
            scale((g for p in self.all if (g := p.grad) is not None), share)
        elif not self._as_it_is:
            self._take(share)
            if last:
                for p, g in self._mean.items():
                    p.grad = g
                self._mean = {}
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if not (last and any(self.arrivals)):
            self.look()
        return self.arrivals[-1]

    def drop(self) -> None:
        """Leave no gradient, of this pass or those before."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._mean = [], {}
        clear(self.all)

    def look(self) -> None:
        """Note what there is now."""
        self._seen = [(TensorWeakRef(g), version_of(g)) for p in self.all if (g := p.grad) is not None]

    @torch.no_grad()
    def _take(self, share: float) -> None:
        """``p.grad`` times ``share`` out of ``p.grad``, into the mean."""
        found = {p: g for p in self.all if (g := p.grad) is not None}
        clear(found)
        special = [p for p, g in found.items() if g.layout is not torch.strided or type(g) is not Tensor]
        for p in special:
            self._take_apart(p, found.pop(p), share)
        first = [p for p in found if p not in self._mean]
        if len(first) < len(found):
            more = [p for p in found if p in self._mean]
            torch._foreach_add_([self._mean[p] for p in more], [found[p] for p in more], alpha=share)
        if first:
            self._mean.update(zip(first, torch._foreach_mul([found[p] for p in first], share), strict=True))

    def _take_apart(self, p: Tensor, g: Tensor, share: float) -> None:
        """One that foreach calls do not serve: sparse, or sharded and so in memory of its own."""
        if g.layout is not torch.strided and id(p) not in self._others:
            raise RuntimeError(SPARSE)
        local(g).mul_(share)
        mean = self._mean.setdefault(p, g)
        if mean is not g:
            local(mean).add_(local(g))

    def _joined_on_arrival(self, p: Tensor) -> Callable[[Tensor], Tensor]:
        """The mean so far joins a gradient as it arrives, however the caller clears: DDP reduces the sum."""

        def join(gradient: Tensor) -> Tensor:
            mean = self._mean.pop(p, None)
            return gradient if mean is None else gradient + mean

        return join


def _still_there(p: Tensor, mean: Tensor) -> Callable[[Tensor], None]:
    """A hook that raises where the mean so far was cleared before the gradient arrives."""
    version = mean._version

    def check(gradient: Tensor) -> None:
        if p.grad is not mean or mean._version != version:
            raise RuntimeError(CLEARED)

    return check


def present(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradients there are, as far as they lie here."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if any(g.layout is not torch.strided for g in gradients):
        raise RuntimeError(SPARSE)
    return [local(g) for g in gradients]


def apart(parameters: Iterable[Tensor], own: Iterable[Tensor]) -> list[Tensor]:
    """Those of the parameters that are not among ``own``."""
    known = set(map(id, own))
    return [p for p in parameters if id(p) not in known]


def clear(parameters: Iterable[Tensor]) -> None:
    for p in parameters:
        p.grad = None


@torch.no_grad()
def scale(gradients: Iterable[Tensor], factor: float) -> None:
    here = [local(g) for g in gradients] if factor != 1 else []
    if dense := [g for g in here if g.layout is torch.strided]:
        torch._foreach_mul_(dense, factor)
    for g in here:
        if g.layout is not torch.strided:
            g.mul_(factor)


def all_finite(parameters: Sequence[Tensor], shardings: Iterable[Sharding]) -> Tensor:
    """Whether every gradient element is finite: a 0-dim tensor on the device, the same on all shards."""
    gradients = [g for g in present(parameters) if g.numel()]
    norms = torch._foreach_norm(gradients, float("inf")) if gradients else []
    bad = torch.zeros((), device=local(parameters[0]).device)
    if norms:
        bad += torch.stack([n.to(bad.device) for n in norms]).isfinite().logical_not().any()
    for cut in shardings:
        bad = cut.sum(bad)
    return bad == 0


def version_of(gradient: Tensor) -> int:
    """How often the tensor was written to, and its part here where it is sharded."""
    return gradient._version + (local(gradient)._version if type(gradient) is not Tensor else 0)
