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
        self._trained = set(map(id, parameters)) if others else None  # None: all of them
        self._shares = shares
        self._counting = [i for i, share in enumerate(shares) if share]
        self._mean: dict[Tensor, Tensor] = {}  # of the passes so far, with what was there before
        self._aside: dict[Tensor, Tensor] = {}  # during a pass with share 0
        self._before: list[tuple[TensorWeakRef, int]] = []  # what there was when last looked at
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._reduced = False
        self.arrivals: list[bool] = []  # whether a gradient came in each pass

    def changed(self) -> bool:
        """Whether a gradient has come, gone or been written to since the last pass began or ended."""
        now = [g for p in self.all if (g := p.grad) is not None]
        if len(now) != len(self._before):
            return True
        return any(
            ref() is not g or version != version_of(g) for (ref, version), g in zip(self._before, now, strict=True)
        )

    @property
    def there(self) -> bool:
        """Whether there is any gradient."""
        return any([p.grad is not None for p in self.all])

    @property
    def came_late(self) -> bool:
        """Whether all gradients there are came after the last pass, so that they are not the points'."""
        return not any(self.arrivals) and not self._before and self.changed()

    def begin(self, index: int, reduced: bool = False, unused: bool = False) -> None:
        """Before a pass. ``reduced``: DDP's backward() reduces the sum; ``unused``: also of layers it does not use."""
        share = self._shares[index]
        self._reduced = reduced and bool(self._mean)
        if not share:
            self._aside = {p: g.clone() if g._is_view() else g for p in self.all if (g := p.grad) is not None}
            clear(self.all)  # the clones are of DDP's views, which it writes to
            self._before = []
        elif self._reduced:
            self._scale(self._mean, 1 / share)
            if unused:
                for p, g in self._mean.items():
                    p.grad = g
                self._hooks = [p.register_hook(_still_there(p, g)) for p, g in self._mean.items()]  # type: ignore[no-untyped-call]
                self._mean = {}
                self.look()
            else:
                self._hooks = [p.register_hook(self._joined_on_arrival(p)) for p in self._mean]  # type: ignore[no-untyped-call]
        elif index == self._counting[0]:
            if share != 1:
                self._scale({p: g for p in self.all if (g := p.grad) is not None}, 1 / share)
            self.look()

    def end(self, index: int, moved: bool) -> None:
        """After a pass, which was elsewhere than at w if ``moved``."""
        share = self._shares[index]
        self.arrivals.append(self.changed())
        taken = bool(share) and not self._reduced and (len(self._counting) > 1 or share != 1)
        if taken:
            self._take(share, moved)
            self._before = []
        elif not share:
            for p in self.all:
                p.grad = self._aside.get(p)
            self._aside = {}
        elif self._reduced:
            if self._mean:
                raise RuntimeError(UNREDUCED)
            self._scale({p: g for p in self.all if (g := p.grad) is not None}, share)
        if taken and index == self._counting[-1]:
            for p, g in self._mean.items():
                p.grad = g
            self._mean = {}
        elif not taken and moved and any([g.requires_grad for p in self.all if (g := p.grad) is not None]):
            raise RuntimeError(SECOND_ORDER)
        if self._hooks:
            self.close()
        if not taken or not any(self.arrivals):
            self.look()

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def look(self) -> None:
        """Note what there is now."""
        self._before = [(TensorWeakRef(g), version_of(g)) for p in self.all if (g := p.grad) is not None]

    @torch.no_grad()
    def _take(self, share: float, moved: bool) -> None:
        """``p.grad`` times ``share`` out of ``p.grad``, into the mean."""
        first: tuple[list[Tensor], list[Tensor]] = ([], [])
        more: tuple[list[Tensor], list[Tensor]] = ([], [])
        for p in self.all:
            g = p.grad
            if g is None:
                continue
            if moved and g.requires_grad:
                raise RuntimeError(SECOND_ORDER)
            p.grad = None
            if g.layout is not torch.strided or type(g) is not Tensor:
                self._take_apart(p, g, share)
            elif p in self._mean:
                more[0].append(self._mean[p])
                more[1].append(g)
            else:
                first[0].append(p)
                first[1].append(g)
        if first[0]:
            self._mean.update(zip(first[0], torch._foreach_mul(first[1], share), strict=True))
        if more[0]:
            torch._foreach_add_(*more, alpha=share)

    def _take_apart(self, p: Tensor, g: Tensor, share: float) -> None:
        """One that foreach calls do not serve: sparse, or sharded and so in memory of its own."""
        self._check_dense(p, g)
        local(g).mul_(share)
        mean = self._mean.setdefault(p, g)
        if mean is not g:
            local(mean).add_(local(g))

    @torch.no_grad()
    def _scale(self, gradients: dict[Tensor, Tensor], factor: float) -> None:
        if factor == 1:
            return
        for p, g in gradients.items():
            self._check_dense(p, g)
        dense = [local(g) for g in gradients.values() if g.layout is torch.strided]
        if dense:
            torch._foreach_mul_(dense, factor)
        for g in gradients.values():
            if g.layout is not torch.strided:
                g.mul_(factor)

    def _check_dense(self, p: Tensor, g: Tensor) -> None:
        if g.layout is not torch.strided and (self._trained is None or id(p) in self._trained):
            raise RuntimeError(SPARSE)

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


def clear(parameters: Iterable[Tensor]) -> None:
    for p in parameters:
        p.grad = None


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
