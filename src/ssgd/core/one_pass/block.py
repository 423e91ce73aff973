"""One block of one_pass(): the weights' values, the classes that make layers see them, and all that is checked."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils import _pytree as pytree

from .. import random_state
from ..checks import check_choice
from ..parallel import bare, is_sharded, sharded_modules, unwrap_ddp
from ..passes import Stage
from .layers import Unserved, check_backward, refuse
from .pairs import ADDED, Call, Noisy, Pair, shapes
from .samples import Log, agrees, compared, count_samples, leave_no_trace, signature, some, take_back, trial, watch


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
    opt._refuse_inside("one_pass()")  # before a look at weights that are pairs there
    engine = _engine(opt)
    passes = opt._begin(None)
    try:
        if engine is not None:
            opt.rule.both(opt, engine.values)
        passes.gradients.look()
        with nullcontext() if engine is None else engine.opened(batch_norm, opt.bn_stats, signs, dim, strict):
            passes.stage = Stage.INSIDE
            yield
        if engine is not None:
            engine.finish()
            if engine.out:
                opt.param_groups[0]["without_noise"] = sorted(engine.out)
        passes.finish(passes.gradients.changed())
    except BaseException:
        if engine is not None:
            engine.close()  # where an interrupt fell into the first
        passes.drop()
        raise


def dry_run(opt: Any, call: Callable[..., Any], args: Any, kwargs: Any, dim: int) -> dict[str, str]:
    """See :meth:`ssgd.SSGD.dry_run`."""
    opt._refuse_inside("dry_run()")
    engine = _engine(opt)
    if engine is None:
        return {}
    with engine.opened(dim=dim):
        return engine.dry_run(call, args, kwargs)


def twice(batch: Any, dim: int) -> Any:
    """Every tensor of the batch twice along the samples, whose dimension is ``dim`` or a tensor's only one."""
    return pytree.tree_map(
        lambda a: torch.cat([a, a], min(dim, a.dim() - 1)) if isinstance(a, Tensor) and a.dim() else a, batch
    )


def _engine(opt: Any) -> OnePass | None:
    """What one_pass() keeps, made anew when the weights with noise or their places have changed; None at level 0."""
    weights = [p for bucket in opt.rule.weights(opt).buckets for p in bucket.parameters]
    if not weights:
        return None
    if opt.model is None:
        raise ValueError("one_pass() needs the model: pass model=...")
    key = [id(opt.model), *((id(p), p.dtype, p.device, p.shape, p.stride()) for p in weights)]
    known: tuple[Any, OnePass, list[OnePass]] = opt.__dict__.get("_one_pass", (None, None, []))
    if known[0] != key:
        ids, places = set(map(id, weights)), {w.data_ptr() for w in weights}
        if any(id(p) not in ids and p.data_ptr() in places for p in opt.selected):
            refuse("two parameters share memory: tie weights by one parameter in two places, or use split()")
        known = opt.__dict__["_one_pass"] = key, OnePass(opt.model, weights, opt.rule.perturb is not None), known[2]
    if random_state.capturing() and known[1] not in known[2]:
        known[2].append(known[1])  # a CUDA graph holds addresses, not references
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

    def __init__(self, model: nn.Module, weights: list[Tensor], chosen: bool) -> None:
        self.model, self.inner, self.weights, self.chosen = model, model, weights, chosen
        while (inside := bare(self.inner)) is not self.inner:
            self.inner = inside
        self.block: Block | None = None
        self.samples: int | None = None
        self.order: Tensor | None = None  # the samples, those at w + n first, where signs= says which
        self._plus = 0  # how many those are
        self.sign: int | None = None  # set while a dry run computes one half by itself
        self.log: Log | None = None  # set during a dry run
        self.out: dict[str, str] = {}  # weights left without noise, and why
        self.kinds: dict[str, str] = {}  # how the dry runs saw each weight served
        self._plan: list[Any] = []
        self._sites: dict[Any, Any] = {}  # the dimensions of the samples, by function, weights and ranks
        self.known: dict[Any, Any] = {}  # the weights' names, by the kind of a call that a layer serves
        self._seen: set[Any] = set()  # signatures of the model's arguments in dry runs
        self._undo: list[Callable[[], object]] = []
        names = _check(self.inner, model, weights)
        self.pairs = [Pair(self, (name,), _room(w), w) for name, w in zip(names, weights, strict=True)]
        self._plain = [w.detach() for w in weights]  # what a dry run reads, where classes do not matter
        self.values = [{pair.w: pair.two[i] for pair in self.pairs} for i in (0, 1)]  # w + n and w − n
        noisy = {id(pair.w): pair for pair in self.pairs}
        self._norms: list[tuple[nn.Module, Pair]] = []  # batch-norm layers, whose weight is a pair, noisy or not
        for name, layer in self.inner.named_modules():
            if isinstance(layer, _BatchNorm):
                pair = noisy[id(layer.weight)] if id(layer.weight) in noisy else Pair(self, (name,), (None, None))
                pair.layer = layer
                self._norms.append((layer, pair))

    # --- opening and closing ----------------------------------------------------------------------------------------

    @contextmanager
    def opened(
        self, batch_norm: str = "halves", bn_stats: str = "both", signs: Any = None, dim: int = 0, strict: bool = False
    ) -> Iterator[None]:
        """Inside, layers see the pairs; whatever happens, all is as it was afterwards."""
        self.close()
        self.batch_norm, self.bn_stats, self.dim, self.strict = batch_norm, bn_stats, dim, strict
        self.signs = None if signs is None else _signs(signs)
        self.block = Block()
        self._counts: set[int] = set()  # of the samples of this block's forwards
        self._batches: dict[Tensor, int] = {}  # what is to be added to batch-norm layers' counters
        try:
            for module in {id(m): m for m in (self.model, self.inner)}.values():
                self._undo.append(partial(self._unhook, module))
                module.register_forward_pre_hook(self._arrive, prepend=True, with_kwargs=True)
                if hasattr(module, "_orig_mod"):
                    module.register_forward_hook(self._depart)
            for pair in [*self.pairs, *(pair for _, pair in self._norms)]:
                pair.block, pair.used = self.block, False
            for layer, pair in self._norms:  # then F.batch_norm is given a pair
                if pair.w is None:
                    pair.two = (layer.weight, layer.weight)
                self._undo.append(partial(layer.__dict__.pop, "weight", None))
                layer.__dict__["weight"] = pair
            self._before = self._marks()
            for pair in self.pairs:
                if pair.origin[0] not in self.out:
                    self._undo.append(partial(_as_before, pair.w))
                    pair.w.__dict__["_pair"] = pair
                    pair.w.__class__ = Noisy
            yield
        finally:
            self.close()

    def close(self) -> None:
        """All classes and hooks as they were, also where an interrupt falls into it."""
        take_back(self._undo)
        if self.block is not None:
            self.block.is_open = False
        self.block = self.samples = self.order = None

    def _unhook(self, module: Any) -> None:
        for hooks in (module._forward_pre_hooks, module._forward_hooks):
            for key in [key for key, hook in hooks.items() if getattr(hook, "__self__", None) is self]:
                del hooks[key]
                module._forward_pre_hooks_with_kwargs.pop(key, None)

    def finish(self) -> None:
        """After a block without an error: gradients came only to weights whose layers were served."""
        marks = zip(self.pairs, self._before, self._marks(), strict=True)
        unserved = [p.origin[0] for p, a, b in marks if a != b and b[1] is not None and not p.used]
        past = [name for name in unserved if name not in self.out]
        # DDP writes what other ranks found, also where this one used nothing
        if past and unwrap_ddp(self.model) is None:
            why = (
                "a gradient came past the layers: run the forward inside the block too; where a TorchScript module, a "
                "C++ extension or make_graphed_callables() computes with the weight, use split()"
            )
            refuse(why, past)
        if self._batches:
            torch._foreach_add_(list(self._batches), list(self._batches.values()))

    def _marks(self) -> list[Any]:
        return [(id(w.grad), None if w.grad is None else w.grad._version) for w in self.weights]

    def count(self, layer: Any, more: int) -> None:
        """A batch-norm layer counts one batch; so many more are to be counted when the block is over."""
        counter = layer.num_batches_tracked if layer.training and more else None
        if counter is not None and torch.compiler.is_compiling():
            counter.add_(more)
        elif counter is not None:
            self._batches[counter] = self._batches.get(counter, 0) + more

    # --- the samples ------------------------------------------------------------------------------------------------

    def _arrive(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Before the model's forward: how many samples there are, and a dry run where it is needed."""
        kind = signature((args, kwargs), self.dim)
        if self.log is not None:
            self._seen.add(kind)
            return
        if not module.training:
            refuse("the model is in eval mode inside the block: evaluate outside it, or call train() first")
        self.samples = count_samples((args, kwargs), self.dim)
        if self.samples < 2:
            refuse("a batch of one sample has no two halves: drop it, or use points()")
        if torch.compiler.is_compiling():
            if not self._sites:
                refuse("compiled before a dry run: pass the compiled module as model=, or call opt.dry_run() first")
            return
        self._counts.add(self.samples)
        if kind not in self._seen:
            if random_state.capturing():
                refuse("a CUDA graph cannot hold the dry run: take a step, or call opt.dry_run(), before the capture")
            self.dry_run(self.inner, args, kwargs)
        if self.signs is not None:
            if len(self.signs) != self.samples:
                refuse(f"signs= has {len(self.signs)} entries for {self.samples} samples")
            self._plus = int((self.signs > 0).sum())
            self.order = (self.signs < 0).to(torch.uint8).argsort(stable=True)

    def _depart(self, module: nn.Module, args: Any, output: Any) -> None:
        """After a compiled model's forward: its backward() asks nobody whether the block is still open."""

        for a in pytree.tree_leaves(output) if self.log is None else ():
            if isinstance(a, Tensor) and a.requires_grad:
                a.register_hook(lambda _, block=self.block: check_backward(block, once=False))  # type: ignore

    def token(self) -> Block | None:
        """What a backward() knows its block by; None where a compiler traces it."""
        return None if torch.compiler.is_compiling() else self.block

    def share(self) -> float:
        """Of the samples, how many see w + n."""
        if self.samples is None:
            refuse("a penalty of noisy weights without any samples: call the model first")
        return self._first(self.samples) / self.samples

    def _first(self, samples: int) -> int:
        return (samples + 1) // 2 if self.order is None else self._plus

    def cut(self, x: Any, dim: int, names: Sequence[str]) -> int:
        """Where dimension ``dim`` of x is cut in two."""
        length = x.shape[dim]
        if self.samples is None:
            refuse("this comes before the model is called, so that the number of samples is not known", names)
        if length % self.samples or not length:
            refuse(f"an input of shape {tuple(x.shape)} for {self.samples} samples", names)
        if len(self._counts) > 1 and not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1:
            refuse("checkpointing after forwards of different numbers of samples: give each a block of its own", names)
        return int(length // self.samples) * self._first(self.samples)

    def sort(self, x: Tensor, dim: int, back: bool = False) -> Tensor:
        """The entries at w + n first; ``back``: again in their own order."""
        if self.order is None:
            return x
        order = (self.order.argsort() if back else self.order).to(x.device)
        several = x.shape[dim] // len(order)  # for each sample
        return x.index_select(dim, (order[:, None] * several + torch.arange(several, device=x.device)).flatten())

    def layout(self, f: Any, call: Call) -> tuple[list[Any], list[Any]]:
        """The dimension of the samples in each tensor given and returned, as the dry run has seen it."""
        found = call.found
        if all(type(a) is Pair or isinstance(a, nn.Parameter) or (f in ADDED and a.dim() == 0) for a in found):
            return [None] * len(found), []
        ranks = tuple([-1 - len(a.shape) if type(a) is Pair else len(a.shape) for a in found])
        site = call.title, call.names, ranks
        if self.log is not None:
            return self._look(f, found, site)
        seen: tuple[list[Any], list[Any]] | None = self._sites.get(site)
        if seen is None:
            what = "with samples and without them" if site in self._sites else "not seen"
            call.refuse(
                f"of {shapes(found)} was {what} in the dry run, so that it is not known whether these are samples: "
                "use split(), or show it by opt.dry_run(lambda x, y: loss_fn(model(x), y), x, y)"
            )
        return seen

    def _look(self, f: Any, found: Any, site: Any) -> tuple[list[Any], list[Any]]:
        """In the dry run over the whole: the same, from what the runs over its halves have shown."""
        n = len(self.log.calls) if self.log is not None else 0
        if n >= len(self._plan) or self._plan[n][0] != f:
            refuse(f"{site[0]}: what is computed depends on the number of samples, or on their values")
        _, dims, returned, three, two, *_ = self._plan[n]
        seen = zip(found, dims, three, two, strict=False)
        given = [d if type(a) is Pair or d == "?" or agrees(a, d, p, q) else "?" for a, d, p, q in seen]
        if self._sites.setdefault(site, (given, returned)) != (given, returned):
            self._sites[site] = None
        return given, returned

    # --- the dry run ------------------------------------------------------------------------------------------------

    def dry_run(self, call: Callable[..., Any], args: Any, kwargs: Any) -> dict[str, str]:
        """By halves of 3 and 2 samples, then in one pass over the 5: what grows and is put together is the samples'.

        Returns for each weight "fast", "pair", "refused: …" or "not used".
        """
        total = count_samples((args, kwargs), self.dim)
        self.known.clear()
        first, left, seen = not self._seen, dict(self.out), set(self._seen)
        watch(self._undo, self.inner, lambda: self.log is not None)
        begun = len(self._undo)
        for name in ("samples", "order", "sign", "log", "_plan"):
            self._undo.append(partial(setattr, self, name, getattr(self, name)))
        for pair in self.pairs:
            self._undo += [partial(setattr, pair, "two", pair.two), partial(setattr, pair, "used", False)]
        try:
            self._run_dry(call, partial(some, (args, kwargs), total, self.dim))
        except BaseException as problem:
            self._seen = seen
            if isinstance(problem, Unserved) or not isinstance(problem, Exception):
                raise
            why = f"{type(problem).__name__}: {problem}".partition("\n")[0][:200]
            raise Unserved(f"the dry run with 3 and 2 samples failed, so use split(): {why}") from problem
        finally:
            take_back(self._undo, begun)
        for (title, names, _), site in self._sites.items():
            if site is None and not set(names) & set(self.out):
                self._leave_out(Unserved(f"{title} both with samples and without them: use split()", names))
        self._agree(first, left)
        verdicts = {pair.origin[0]: self.kinds.get(pair.origin[0], "not used") for pair in self.pairs}
        return verdicts | {name: f"refused: {why}" for name, why in self.out.items()}

    def _run_dry(self, call: Callable[..., Any], part: Callable[[int, int], Any]) -> None:
        devices = {w.device for w in self.weights}
        leave_no_trace(self._undo, self.inner, devices)
        generators = {device: torch.Generator(device).manual_seed(0) for device in devices}
        for pair, w in zip(self.pairs, self._plain, strict=True):
            pair.two = trial(w, generators)

        def run(sign: int | None, start: int, stop: int) -> list[Any]:
            args, kwargs = part(start, stop)
            self.sign, self.samples, self.order = sign, stop - start, None
            self.log = log = Log(self._plan if sign is None else ())
            self._undo.append(log.leave)
            log.__enter__()  # type: ignore[no-untyped-call]
            try:
                call(*args, **kwargs)
            finally:
                log.leave()
                self.log = None
            return log.calls

        while True:
            self._plan = compared(run(0, 0, 3), run(1, 3, 5))
            try:
                run(None, 0, 5)
                return
            except Unserved as problem:
                self._leave_out(problem)

    def _leave_out(self, problem: Unserved) -> None:
        """Weights that are not served go without noise, where that is allowed."""
        new = [name for name in problem.names if name not in self.out]
        if not new or self.chosen or self.strict:
            raise problem
        self.out.update(dict.fromkeys(new, str(problem)))
        for pair in self.pairs:
            if pair.origin[0] in new:
                pair.w.__class__ = nn.Parameter

    def _agree(self, first: bool, left: Mapping[str, str]) -> None:
        """All ranks leave out the same; a warning names what is new."""
        ddp = unwrap_ddp(self.model)
        new = {name: why for name, why in self.out.items() if name not in left}
        if ddp is not None and first:
            box: list[Any] = [None] * dist.get_world_size(ddp.process_group)
            dist.all_gather_object(box, new, group=ddp.process_group)
            new = {name: why for theirs in box for name, why in theirs.items()}
            for name in new.keys() - self.out.keys():
                self._leave_out(Unserved(new[name], [name]))
        elif ddp is not None and new:
            refuse("refused after the first step, when other ranks may not refuse it: use split()", new)
        if new:
            reasons = "; ".join(dict.fromkeys(new.values()))
            warnings.warn(f"{', '.join(new)}: without noise in one pass, which split() gives. {reasons}", stacklevel=2)


def _signs(signs: Any) -> Tensor:
    """A sign a sample, checked."""
    if random_state.capturing():
        refuse("signs= is read by the host, which a CUDA graph cannot hold: order the samples, +1 first")
    found = torch.as_tensor(signs).cpu()
    if found.dim() != 1 or not bool((found.abs() == 1).all()) or not bool((found > 0).any() & (found < 0).any()):
        raise ValueError("signs= is a vector with +1 or −1 for each sample, and needs some of both")
    return found


def _as_before(weight: Any) -> None:
    weight.__class__ = nn.Parameter
    weight.__dict__.pop("_pair", None)


def _room(w: Tensor) -> Tensor:
    """A tensor (2, …) for w + n and w − n, with the weight's own strides."""
    span = 1 + sum((n - 1) * stride for n, stride in zip(w.shape, w.stride(), strict=True)) if w.numel() else 0
    return torch.empty_strided((2, *w.shape), (span, *w.stride()), dtype=w.dtype, device=w.device).zero_()


def _check(inner: nn.Module, model: nn.Module, weights: Sequence[Tensor]) -> list[str]:
    """The weights' names, or what cannot be served."""
    remedy = "is not served: use points() or split(), which serve it"
    if any(map(is_sharded, weights)) or sharded_modules(model):
        refuse(f"a sharded weight (FSDP2, tensor parallel, DTensor) {remedy}")
    scripted: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.DataParallel):
            refuse("nn.DataParallel is not served: use DistributedDataParallel, points() or split()")
        if isinstance(module, nn.SyncBatchNorm):
            refuse(f"{name}: a SyncBatchNorm {remedy}")
        if isinstance(module, torch.jit.ScriptModule):
            scripted.update(map(id, module.parameters(recurse=False)))
    names = {id(p): name for name, p in reversed(list(inner.named_parameters()))}
    for w in weights:
        if id(w) not in names:
            refuse(f"a weight of shape {tuple(w.shape)} that is no parameter of model= {remedy}")
        if type(w) is not nn.Parameter or id(w) in scripted:
            kind = "TorchScript module" if id(w) in scripted else type(w).__name__
            refuse(f"a weight of a {kind} {remedy}", [names[id(w)]])
    return [names[id(w)] for w in weights]
