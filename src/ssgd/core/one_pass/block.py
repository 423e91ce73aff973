"""One block of one_pass(): the weights' values, the classes that make layers see them, and all that is checked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from ..checks import check_choice
from ..parallel import is_sharded, sharded_modules, unwrap_ddp
from ..passes import Stage
from .layers import Unserved
from .pairs import ADDED, Noisy, Pair, refuse, shapes
from .samples import MOST, Log, agrees, compared, count_samples, signature, some, untouched, watched

@contextmanager
def block(opt: Any, batch_norm: str, signs: Any, dim: int, strict: bool) -> Iterator[None]:
    """See :meth:`ssgd.SSGD.one_pass`. After an error the batch is dropped, as with points()."""
    check_choice("batch_norm", batch_norm, ("halves", "batch"))
    if opt.pairs > 1:
        raise ValueError("one_pass() has two halves for one pair of signs: use pairs=1, or points()")
    if opt.mode == "mirror":
        raise ValueError('one_pass() takes both signs on every rank: use mode="both", or points()')
    if opt.rng == "same":
        raise ValueError('one_pass() draws one dropout mask for the batch: use rng="independent", or split()')
    engine = _engine(opt)
    passes = opt._begin(None)
    try:
        if engine is not None:
            opt.rule.both(opt, engine.values)
            engine.batch_norm, engine.policy, engine.dim, engine.strict = batch_norm, opt.bn_stats, dim, strict
            engine.open(signs)
        passes.stage = Stage.INSIDE
        try:
            yield
        finally:
            if engine is not None:
                engine.close()
        if engine is not None:
            engine.check_gradients()
    except BaseException:
        passes.drop()
        raise
    finally:
        if engine is not None and engine.out:
            opt.param_groups[0]["without_noise"] = sorted(engine.out)
    passes.finish()


def dry_run(opt: Any, call: Callable[..., Any], args: Any, kwargs: Any, dim: int) -> dict[str, str]:
    """See :meth:`ssgd.SSGD.dry_run`."""
    opt._refuse_inside("dry_run()")
    engine = _engine(opt)
    if engine is None:
        return {}
    engine.dim, engine.strict = dim, False
    engine.open()
    try:
        return engine.dry_run(call, args, kwargs)
    finally:
        engine.close()


def twice(batch: Any) -> Any:
    """Every tensor of the batch twice, one after the other."""
    return pytree.tree_map(lambda a: torch.cat([a, a]) if isinstance(a, Tensor) and a.dim() else a, batch)


def _engine(opt: Any) -> OnePass | None:
    """What one_pass() keeps, made anew when the weights with noise or their places have changed; None at level 0."""
    weights = [p for bucket in opt.rule.weights(opt).buckets for p in bucket.parameters]
    if not weights:
        return None
    if opt.model is None:
        raise ValueError("one_pass() needs the model: pass model=...")
    key = [id(opt.model), *((id(p), p.dtype, p.device, p.shape, p.stride()) for p in weights)]
    known: tuple[Any, OnePass] | None = opt.__dict__.get("_one_pass")
    if known is None or known[0] != key:
        _check_twins(weights, opt.selected)
        known = key, OnePass(opt.model, weights, chosen=opt.rule.perturb is not None)
        opt.__dict__["_one_pass"] = known
    return known[1]


class Block:
    """The token of one block: what was computed in it knows by it whether it is over."""

    is_open = True


class OnePass:
    """What one_pass() keeps from step to step: room for w + n and w − n, and what the dry runs have seen.

    Args:
        model: the module trained, as it is called.
        weights: those that get noise.
        chosen: whether the user chose them, so that none may be left out.
    """

    def __init__(self, model: nn.Module, weights: Sequence[Tensor], chosen: bool) -> None:
        self.model = model
        self.inner = innermost(model)
        self.weights = list(weights)
        self.chosen = chosen
        self.block: Block | None = None
        self.batch_norm = "halves"
        self.policy = "both"
        self.dim = 0
        self.strict = False
        self.samples: int | None = None
        self.plus: int | None = None  # how many of the samples see w + n; None: the first half
        self.order: Tensor | None = None  # the samples, those at w + n first, where signs= says which
        self.sign: int | None = None  # set while one half is computed by itself
        self.log: Log | None = None  # set during a dry run
        self.out: dict[str, str] = {}  # weights left without noise, and why
        self.kinds: dict[str, str] = {}  # how the dry runs saw each weight served
        self.known: set[Any] = set()  # layers' calls that were served fast
        self._plan: list[Any] = []
        self._sites: dict[Any, Any] = {}
        self._seen: set[Any] = set()  # signatures of the model's arguments in dry runs
        self._arrived: set[Any] = set()  # those of the dry run under way
        self._counts: set[int] = set()  # of the samples of this block's forwards
        self._undo: list[Callable[[], object]] = []
        self._before: list[Any] = []
        self._signs: Any = None
        names = _check(self.inner, model, self.weights)
        cut = _room(self.weights)
        self.pairs = [Pair(self, (name,), two, w) for name, two, w in zip(names, cut, self.weights, strict=True)]
        self.values = [{pair.w: pair.two[i] for pair in self.pairs} for i in (0, 1)]  # w + n and w − n
        self.norms = [(name, m) for name, m in self.inner.named_modules() if isinstance(m, _BatchNorm)]

    # --- opening and closing ----------------------------------------------------------------------------------------

    def open(self, signs: Any = None) -> None:
        """From here on layers see the pairs; after an error nothing has changed."""
        self.close()
        self.block = Block()
        self._signs = None if signs is None else _signs(signs)
        self._counts = set()
        try:
            for module in {id(m): m for m in (self.model, self.inner)}.values():
                handle = module.register_forward_pre_hook(self._arrive, prepend=True, with_kwargs=True)
                self._undo.append(handle.remove)
            for name, module in self.norms:
                self._undo.append(_swap(module, by_halves(type(module)), _one_pass=(self, name)))
            self._before = self._marks()
            for pair in self.pairs:
                pair.used = False
                if pair.origin[0] not in self.out:
                    self._undo.append(_swap(pair.w, Noisy, _pair=pair))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """All classes and hooks as they were; what was interrupted is done by calling it again."""
        while self._undo:
            self._undo[-1]()
            self._undo.pop()
        if self.block is not None:
            self.block.is_open = False
        self.block = self.samples = self.plus = self.order = self._signs = None

    def check_gradients(self) -> None:
        """A gradient came only to weights whose layers were served."""
        if unwrap_ddp(self.model) is not None:  # it writes what other ranks found, also where this one used nothing
            return
        marks = zip(self.pairs, self._before, self._marks(), strict=True)
        if past := [p.origin[0] for p, a, b in marks if a != b and not p.used and p.origin[0] not in self.out]:
            raise Unserved(
                past, "a gradient came past the layers, as from a TorchScript module or a C++ extension: use split()"
            )

    def _marks(self) -> list[Any]:
        return [(id(w.grad), None if w.grad is None else w.grad._version) for w in self.weights]

    # --- the samples ------------------------------------------------------------------------------------------------

    def share(self) -> float:
        """Of the samples, how many see w + n."""
        if self.samples is None:
            refuse((), "a penalty of noisy weights without any samples: call the model first")
        return self._first(self.samples) / self.samples

    def _first(self, samples: int) -> int:
        return (samples + 1) // 2 if self.plus is None else self.plus

    def cut(self, names: Sequence[str], x: Any, dim: int) -> int:
        """Where dimension ``dim`` of x is cut in two."""
        length = x.shape[dim]
        if self.samples is None:
            refuse(names, "this comes before the model is called, so that the number of samples is not known")
        if length % self.samples or not length:
            refuse(names, f"an input of shape {tuple(x.shape)} for {self.samples} samples")
        if len(self._counts) > 1 and not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            refuse(names, "checkpointing after forwards of different numbers of samples: give each a block of its own")
        return int(length // self.samples) * self._first(self.samples)

    def sort(self, x: Tensor, dim: int) -> Tensor:
        """Those at w + n first."""
        return x if self.order is None else x.index_select(dim, self._rows(x, dim, self.order))

    def unsort(self, x: Tensor, dim: int) -> Tensor:
        return x if self.order is None else x.index_select(dim, self._rows(x, dim, self.order.argsort()))

    def _rows(self, x: Tensor, dim: int, order: Tensor) -> Tensor:
        """The order of x's entries, several a sample where there are."""
        several = x.shape[dim] // len(order)
        order = order.to(x.device)
        return (order[:, None] * several + torch.arange(several, device=x.device)).flatten()

    def _arrive(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before the model's forward: how many samples there are, and a dry run where it is needed."""
        if self.log is not None:
            self._arrived.add(signature((args, kwargs), self.dim))
            return
        if not module.training:
            refuse((), "the model is in eval mode inside the block: evaluate outside it, or call train() first")
        total = count_samples((args, kwargs), self.dim)
        if total < 2:
            refuse((), "a batch of one sample has no two halves: drop it, or use points()")
        self.samples = total
        if torch.compiler.is_compiling():
            if not self._sites:
                refuse((), "compiled before a dry run: pass the compiled module as model=, or call opt.dry_run() first")
            return
        self._counts.add(total)
        key = signature((args, kwargs), self.dim)
        if key not in self._seen:
            self.dry_run(self.inner, args, kwargs)
            self._undo.append(watched(self.inner))
        if self._signs is not None:
            if len(self._signs) != total:
                refuse((), f"signs= has {len(self._signs)} entries for {total} samples")
            self.plus = int((self._signs > 0).sum())
            self.order = (self._signs < 0).to(torch.uint8).argsort(stable=True)

    def layout(self, f: Any, title: str, names: tuple[str, ...], found: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The dimension of the samples in each tensor given and returned, as the dry run has seen it."""
        if all(type(a) is Pair or isinstance(a, nn.Parameter) or f in ADDED and a.dim() == 0 for a in found):
            return [None] * len(found), []
        site = title, names, tuple([-1 - len(a.shape) if type(a) is Pair else len(a.shape) for a in found])
        if self.log is not None:
            return self._look(f, title, names, found, site)
        if self._sites.get(site) is None:
            what = "with samples and without them" if site in self._sites else "not seen"
            refuse(
                names,
                f"{title} of {shapes(found)} was {what} in the dry run, so that it is not known whether these are "
                "samples: use split(), or show it by opt.dry_run(lambda x, y: loss_fn(model(x), y), x, y)",
            )
        given, returned = self._sites[site]
        return given, returned

    def _look(self, f: Any, title: str, names: Any, found: Any, site: Any) -> tuple[list[Any], list[Any]]:
        """In the dry run over the whole: the same, from what the runs over its halves have shown."""
        assert self.log is not None
        n = len(self.log.calls)
        if n >= len(self._plan) or self._plan[n][0] != f:
            raise Unserved((), f"{title}: what is computed depends on the number of samples, or on their values")
        _, dims, returned, three, two, *_ = self._plan[n]
        given = [
            d if type(a) is Pair or d == "?" or agrees(a, d, p, q) else "?"
            for a, d, p, q in zip(found, dims, three, two, strict=False)
        ]
        if self._sites.setdefault(site, (given, returned)) != (given, returned):
            self._sites[site] = None
        return given, returned

    # --- the dry run ------------------------------------------------------------------------------------------------

    def dry_run(self, call: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, str]:
        """By halves of 3 and 2 samples, then in one pass over the 5: what grows and is put together is the samples'.

        Returns for each weight "fast", "pair", "refused: …" or "not used".
        """
        total = count_samples((args, kwargs), self.dim)
        before = self.samples, self.plus, self.order
        real = [pair.two for pair in self.pairs]
        first = not self._seen
        left = dict(self.out)
        self._arrived = set()
        self.known.clear()

        def run(sign: int | None, start: int, stop: int) -> list[Any]:
            some_args, some_kwargs = some((args, kwargs), total, self.dim, start, stop)
            self.sign, self.samples, self.plus, self.order = sign, stop - start, None, None
            self.log = Log(self._plan if sign is None else ())
            try:
                with self.log:
                    call(*some_args, **some_kwargs)
                return self.log.calls
            finally:
                self.sign = self.log = None

        devices = {w.device for w in self.weights}
        try:
            with untouched(self.inner, devices):
                generators = {device: torch.Generator(device).manual_seed(0) for device in devices}
                for pair in self.pairs:
                    with torch._C.DisableTorchFunctionSubclass():
                        pair.two = _trial(pair.w, generators)
                while True:
                    self._plan = compared(run(0, 0, 3), run(1, 3, MOST))
                    try:
                        run(None, 0, MOST)
                        break
                    except Unserved as problem:
                        self._leave_out(problem)
        except Unserved:
            raise
        except Exception as problem:
            raise Unserved(
                (), f"the dry run with 3 and 2 samples failed, so use split(): {type(problem).__name__}: {problem}"
            ) from problem
        finally:
            for pair, two in zip(self.pairs, real, strict=True):
                pair.two = two
            self.samples, self.plus, self.order = before
            self._plan = []
        for (title, names, _), site in self._sites.items():
            if site is None and not set(names) & set(self.out):
                self._leave_out(Unserved(names, f"{title} both with samples and without them: use split()"))
        self._agree(first, left)
        self._seen |= self._arrived
        names = [pair.origin[0] for pair in self.pairs]
        return {n: f"refused: {self.out[n]}" if n in self.out else self.kinds.get(n, "not used") for n in names}

    def _leave_out(self, problem: Unserved) -> None:
        """Weights that are not served go without noise, where that is allowed."""
        new = [name for name in problem.names if name not in self.out]
        if not new or self.chosen or self.strict:
            raise problem
        self.out.update(dict.fromkeys(new, str(problem)))
        for pair in self.pairs:
            if pair.origin[0] in self.out and type(pair.w) is Noisy:
                pair.w.__class__ = nn.Parameter

    def _agree(self, first: bool, left: dict[str, str]) -> None:
        """All ranks leave out the same; a warning names what is new."""
        ddp = unwrap_ddp(self.model)
        new = {name: why for name, why in self.out.items() if name not in left}
        if ddp is not None and first:
            box: list[Any] = [None] * dist.get_world_size(ddp.process_group)
            dist.all_gather_object(box, new, group=ddp.process_group)
            for theirs in box:
                for name, why in theirs.items():
                    if name not in self.out:
                        self._leave_out(Unserved([name], why))
                        new[name] = why
        elif ddp is not None and new:
            raise Unserved(new, "refused after the first step, when other ranks may not refuse it: use split()")
        if new:
            reasons = "; ".join(dict.fromkeys(new.values()))
            warnings.warn(f"{', '.join(new)}: without noise in one pass, which split() gives. {reasons}", stacklevel=2)

    # --- batch-norm -------------------------------------------------------------------------------------------------

    def normalise(self, name: str, module: Any, forward: Callable[..., Tensor], x: Tensor, rest: Any) -> Tensor:
        """A batch-norm layer, over each half by itself or over the whole batch."""
        args, kwargs = rest
        if self.log is None:
            statistics = module.training or module.running_mean is None
            noisy = any(type(p) is Noisy for p in module.parameters(recurse=False))
            if self.sign is not None or not statistics and not noisy:
                return forward(x, *args, **kwargs)
            if statistics and self.batch_norm == "batch":
                return self._each(module, forward, [x], rest)[0]
            given, _ = self.layout(module, "batch_norm", (name,), [x])
            if given[0] != 0:
                refuse((name,), f"batch-norm of {tuple(x.shape)} has not the samples in its first dimension")
            return self._halves(name, module, forward, x, rest)
        joint = self.sign is None
        for p in module.parameters(recurse=False):
            if type(p) is Noisy:
                self.kinds[p._pair.origin[0]] = "pair"
        self.log.muted = True
        try:
            if joint:
                self.layout(module, "batch_norm", (name,), [x])
            self.log.record(module, x)
            if joint and x.shape[0] % MOST == 0:
                return self._halves(name, module, forward, x, rest)
            return forward(x, *args, **kwargs)
        finally:
            self.log.muted = False

    def _halves(self, name: str, module: Any, forward: Any, x: Tensor, rest: Any) -> Tensor:
        cut = self.cut((name,), x, 0)
        parts = self.sort(x, 0).split([cut, x.shape[0] - cut])
        return self.unsort(torch.cat(self._each(module, forward, parts, rest)), 0)

    def _each(self, module: Any, forward: Any, parts: Sequence[Tensor], rest: Any) -> list[Tensor]:
        """The layer's output for each part, and its running statistics moved by them as the policy says."""
        args, kwargs = rest
        found, results = [], []
        real = dict(module._buffers) if self.policy != "both" and module.training else {}
        try:
            for sign, part in enumerate(parts):
                self.sign = sign if len(parts) > 1 else None
                module._buffers.update({k: b if b is None else b.clone() for k, b in real.items()})
                found.append(forward(part, *args, **kwargs))
                results.append(dict(module._buffers))
        finally:
            self.sign = None
            module._buffers.update(real)  # which a backward() to come must not find changed, so passes have copies
        for key, b in real.items() if self.policy != "none" else ():
            if b is not None:
                mean = self.policy == "once" and b.is_floating_point()
                b.detach().copy_(sum(r[key] for r in results) / len(results) if mean else results[0][key])
        return found


@cache
def by_halves(kind: type[_BatchNorm]) -> type[_BatchNorm]:
    """The class that a batch-norm layer has while a block is open."""

    class Halved(kind):  # type: ignore[misc, valid-type]
        def forward(self, input: Tensor, *args: Any, **kwargs: Any) -> Any:
            owner, name = self._one_pass
            return owner.normalise(name, self, super().forward, input, (args, kwargs))

    Halved.__name__ = Halved.__qualname__ = kind.__name__
    return Halved


def _signs(signs: Any) -> Tensor:
    """A sign a sample, checked."""
    found = torch.as_tensor(signs)
    if found.dim() != 1 or not bool((found.abs() == 1).all()) or not bool((found > 0).any() & (found < 0).any()):
        raise ValueError("signs= is a vector with +1 or −1 for each sample, and needs some of both")
    return found


def innermost(model: nn.Module) -> nn.Module:
    """The user's own module, without DDP and torch.compile around it."""
    while True:
        ddp = unwrap_ddp(model)
        inner = getattr(model, "_orig_mod", model) if ddp is None else ddp.module
        if inner is model:
            return model
        model = inner


def _swap(thing: Any, kind: type, **attributes: Any) -> Callable[[], object]:
    """Gives it another class and some attributes; the function returned takes them back, also if called twice."""
    before = type(thing)

    def back() -> None:
        thing.__class__ = before
        for key in attributes:
            thing.__dict__.pop(key, None)

    thing.__dict__.update(attributes)
    thing.__class__ = kind
    return back


def _room(weights: list[Tensor]) -> list[Tensor]:
    """For each weight a tensor (2, …), of one buffer for each type and device, with the weight's own strides."""
    groups: dict[Any, list[int]] = {}
    for i, w in enumerate(weights):
        groups.setdefault((w.dtype, w.device), []).append(i)
    cut: dict[int, Tensor] = {}
    for (dtype, device), members in groups.items():
        sizes = [weights[i].numel() for i in members]
        whole = torch.zeros(2, sum(sizes), dtype=dtype, device=device)
        for i, part in zip(members, whole.split(sizes, 1), strict=True):
            w = weights[i]
            cut[i] = part.as_strided((2, *w.shape), (whole.shape[1], *w.stride()), part.storage_offset())
    return [cut[i] for i in range(len(weights))]


def _check_twins(weights: Sequence[Tensor], selected: Sequence[Tensor]) -> None:
    """Two parameters with one memory would see different weights."""
    known, places = set(map(id, weights)), {w.data_ptr() for w in weights}
    if any(id(p) not in known and p.data_ptr() in places for p in selected):
        raise Unserved((), "two parameters share memory: tie weights by one parameter in two places, or use split()")


@torch.no_grad()
def _trial(w: Any, generators: dict[torch.device, torch.Generator]) -> Tensor:
    """Values for a dry run, apart also where the weight is zero."""
    noise = torch.empty_like(w, requires_grad=False).as_subclass(Tensor).normal_(generator=generators[w.device])
    noise *= 0.3 * w.detach().abs().square().mean().sqrt().nan_to_num() + 0.05
    return torch.stack([w + noise, w - noise]).as_subclass(Tensor)


def _check(inner: nn.Module, model: nn.Module, weights: Sequence[Tensor]) -> list[str]:
    """The weights' names, or what cannot be served."""
    remedy = "use points() or split(), which serve it"
    if any(map(is_sharded, weights)) or sharded_modules(model):
        raise Unserved((), f"sharded weights (FSDP2, tensor parallel, DTensor) are not served: {remedy}")
    for name, module in model.named_modules():
        if isinstance(module, nn.DataParallel):
            raise Unserved((), "nn.DataParallel is not served: use DistributedDataParallel, points() or split()")
        if isinstance(module, nn.SyncBatchNorm):
            raise Unserved((), f"{name} is a SyncBatchNorm, which is not served: {remedy}")
    names = {id(p): name for name, p in reversed(list(inner.named_parameters()))}
    scripted = {
        id(p) for m in inner.modules() if isinstance(m, torch.jit.ScriptModule) for p in m.parameters(recurse=False)
    }
    for w in weights:
        if id(w) not in names:
            raise Unserved((), f"a weight of shape {tuple(w.shape)} gets noise but is no parameter of model=: {remedy}")
        if type(w) is not nn.Parameter:
            raise Unserved([names[id(w)]], f"a weight of class {type(w).__name__} is not served: {remedy}")
        if id(w) in scripted:
            raise Unserved([names[id(w)]], f"a TorchScript module's weight is not served: {remedy}")
    return [names[id(w)] for w in weights]
