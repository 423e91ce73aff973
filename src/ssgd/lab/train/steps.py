"""One step of any method, the passes over a batch and the update; and the same step faster, on one GPU."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer

from ...core.batchnorm import RunningStatistics
from ...core.gradients import present
from ...core.halves import halves
from ...core.noise_points import NoisyOptimizer
from ...core.point_optimizer import PointOptimizer
from ...core.random_state import capturing
from ...methods.registry import Method
from ...optimizer import SSGD
from ..compilation import compiled_for
from .kinds import Autocast, Objective


@dataclass(eq=False)
class Step:
    """Forward and backward at every point of the method, then the base's update.

    ``sums`` gathers what the objective counts over all passes, on the device: nobody waits for a number. A model with
    ``carry()`` keeps a state between steps; every pass begins at that of the step before. ``clip`` bounds the norm of
    the mean gradient.

    With ``devices`` the batch is divided as if so many shared it: each part has its own batch-norm statistics and its
    own noise, gradients are averaged, and the running statistics are the first part's, as under DDP with a rank each.

    ``eager`` is the objective before it was compiled, which a dry run of one_pass() cannot look into.
    """

    method: Method
    opt: PointOptimizer
    model: nn.Module
    objective: Objective
    autocast: Autocast
    sums: Tensor
    clip: float | None = None
    devices: int = 1
    eager: Objective | None = None

    def __post_init__(self) -> None:
        self.to_dry_run = self.eager if self.method.one_pass is not None else None
        self.of_first = RunningStatistics(self.model if self.devices > 1 else None, "none")
        self.counters = BatchCounters(self.model)
        self.carry: Any = getattr(getattr(self.model, "module", self.model), "carry", None)

    def __call__(self, *batch: Tensor) -> None:
        first, *others = self._parts(batch)
        if self.to_dry_run is not None:
            self._dry_run(self.to_dry_run, first)
        with self.counters.held():
            passes = self._passes(first)
            self.of_first.begin()
            for part in others:
                self._passes(part)
            self.of_first.undo()
        if others:
            torch._foreach_mul_(present(self._parameters()), 1 / self.devices)
        self.counters.add({"once": 1, "first": 1, "none": 0}.get(getattr(self.opt, "bn_stats", "both"), passes))
        if self.carry is not None:
            self.carry()
        self._update()

    def _dry_run(self, eager: Objective, batch: tuple[Tensor, ...]) -> None:
        """Lets one_pass() see the objective once, as it is called later."""
        assert isinstance(self.opt, SSGD)
        with self.autocast():
            self.opt.dry_run(lambda *part: eager(self.model, *part), *batch)
        self.to_dry_run = None

    def _parts(self, batch: tuple[Tensor, ...]) -> Iterable[tuple[Tensor, ...]]:
        return [batch] if self.devices == 1 else zip(*(tensor.chunk(self.devices) for tensor in batch), strict=True)

    def _passes(self, batch: tuple[Tensor, ...]) -> int:
        """Forward and backward at every point; returns how many batches batch-norm has normalised."""
        passes = 0
        for point, part in self.method.batches(self.opt, *batch):
            with point:
                with self.autocast():
                    loss, counted = self.objective(self.model, *part)
                loss.backward()  # type: ignore[no-untyped-call]
            self.sums += counted
            passes += 2 if self.method.one_pass == "halves" else 1
        return passes

    def _update(self) -> None:
        if self.clip is not None:
            clip_grad_norm_(self._parameters(), self.clip, foreach=True)
        self.opt.step()
        self.opt.zero_grad()

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.opt.param_groups for p in group["params"]]


class BatchCounters:
    """Batch-norm counts its batches in a tensor a layer, a kernel each; this advances all of them in one kernel.

    It holds the ``num_batches_tracked`` of all layers that average with a fixed momentum, and so never read it.
    SyncBatchNorm insists on having its own.
    """

    def __init__(self, net: nn.Module) -> None:
        norms = [m for m in net.modules() if isinstance(m, _NormBase) and not isinstance(m, nn.SyncBatchNorm)]
        self._counters: list[tuple[_NormBase, Tensor]] = []
        for norm in norms:
            if norm.momentum is not None and norm.num_batches_tracked is not None:
                self._counters.append((norm, norm.num_batches_tracked))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Passes inside count nothing."""
        for norm, _ in self._counters:
            norm.num_batches_tracked = None
        try:
            yield
        finally:
            for norm, counter in self._counters:
                norm.num_batches_tracked = counter

    def add(self, passes: int) -> None:
        if self._counters:
            torch._foreach_add_([counter for _, counter in self._counters], passes)


Weights = dict[str, Tensor]
WARM_UP = 3  # torch asks for some steps on the stream before capture; compilation happens in the first


def can_pair(opt: PointOptimizer, model: nn.Module) -> bool:
    """Whether the passes may run at the same time and leave what they leave one after the other."""
    norms = [module for module in model.modules() if isinstance(module, _NormBase)]
    remembering = [module for module in model.modules() if hasattr(module, "carry")]
    known = {id(b) for module in [*norms, *remembering] for b in module.buffers(recurse=False)}
    return (
        isinstance(opt, SSGD)
        and opt.mode == "both"
        and opt.pairs == 1
        and opt.bn_stats == "both"
        and opt.rng == "independent"
        and all(norm.momentum is not None for norm in norms)
        and all(id(b) in known for b in model.buffers())
        and all(group["noise"] > 0 for group in opt.param_groups)
        and not _share_memory(list(model.parameters()))
    )


def _share_memory(parameters: Sequence[Tensor]) -> bool:
    """Whether two of them share memory: only one of the two would be perturbed."""
    addresses = [p.data_ptr() for p in parameters if p.numel()]
    return len({*addresses}) < len(addresses)


@dataclass(eq=False)
class PairStep(Step):
    """A Step whose − pass runs on the stream ``side``, forked and joined; in a CUDA graph they become two branches.

    Both weight sets are held, w + n and w − n, and two sets of gradients. SAM cannot do this: where its second pass
    goes is known only after the first.

    Weights are bitwise those of the passes one after the other. Running statistics take the + pass's batch, then the
    − pass's, as there, up to rounding.
    """

    side: torch.cuda.Stream | None = None
    compiled: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self.objective_at = compiled_for(self.sums.device, objective_at) if self.compiled else objective_at
        norms = [(name, m) for name, m in self.model.named_modules() if isinstance(m, _NormBase)]
        found = {f"{name}.{b}".lstrip("."): (m, t) for name, m in norms for b, t in m.named_buffers(recurse=False)}
        self.statistics = {name: t for name, (_, t) in found.items() if t.is_floating_point()}
        self.keeps = [1 - float(found[name][0].momentum or 0) for name in self.statistics]
        self.moved = [{name: torch.empty_like(t) for name, t in self.statistics.items()} for _ in range(2)]

    def __call__(self, *batch: Tensor) -> None:
        parts: Sequence[tuple[Any, float]] = halves(batch) if self.method.halves else [(batch, 0.5)] * 2
        assert isinstance(self.opt, SSGD)
        sets = [self._leaves(moved) for moved in self.opt.both_points()]
        with self.counters.held(), flat_weights_kept(self.model), self._forked() as minus:
            found = [self._pass(sets[0], self.moved[0], parts[0][0])]
            with minus:
                found.append(self._pass(sets[1], self.moved[1], parts[1][0]))
        with torch.no_grad():
            self._leave_gradients([grads for grads, _ in found], [share for _, share in parts])
            self._apply_statistics()
            for _, sums in found:
                self.sums += sums
        if self.side is not None and not capturing():
            self.side.wait_stream(torch.cuda.current_stream())  # a run that shares it gets its memory once it is read
        self.counters.add(2)
        if self.carry is not None:
            self.carry()
        self._update()

    def _leaves(self, moved: dict[Tensor, Tensor]) -> Weights:
        """Every parameter as a leaf: at the point, or at w for those without noise."""
        return {
            name: moved.get(p, p).detach().requires_grad_(p.requires_grad) for name, p in self.model.named_parameters()
        }

    def _pass(
        self, weights: Weights, statistics: Weights, part: tuple[Tensor, ...]
    ) -> tuple[list[Tensor | None], Tensor]:
        if statistics:
            torch._foreach_copy_(list(statistics.values()), list(self.statistics.values()))
        with self.autocast():
            loss, counted = self.objective_at(self.objective, self.model, {**weights, **statistics}, *part)
        leaves = [w for w in weights.values() if w.requires_grad]
        return list(torch.autograd.grad(loss, leaves, allow_unused=True)), counted

    def _leave_gradients(self, grads: Sequence[Sequence[Tensor | None]], shares: list[float]) -> None:
        """Leaves in p.grad what two passes leave there: each gradient times its share, added up in their order."""
        found = zip((p for p in self.model.parameters() if p.requires_grad), *grads, strict=True)
        used = [(p, pair) for p, *pair in found if any(g is not None for g in pair)]
        trained = [p for p, _ in used]
        total, second = ([laid_out_as(p, pair[i]) for p, pair in used] for i in (0, 1))
        torch._foreach_mul_(total, shares[0])
        torch._foreach_add_(total, second, alpha=shares[1])
        for p, gradient in zip(trained, total, strict=True):
            p.grad = gradient

    def _apply_statistics(self) -> None:
        """r₊ = (1 − m) r + m s₊ and r₋ likewise; one pass after the other would give (1 − m) r₊ + m s₋."""
        if self.statistics:
            r, plus, minus = (list(found.values()) for found in (self.statistics, *self.moved))
            torch._foreach_sub_(plus, r)
            torch._foreach_mul_(plus, self.keeps)
            torch._foreach_add_(plus, minus)
            torch._foreach_copy_(r, plus)

    @contextmanager
    def _forked(self) -> Iterator[AbstractContextManager[Any]]:
        """Yields a context for a pass on the other stream. It is joined also where a pass fails: captures must end."""
        if self.side is None:
            yield nullcontext()
            return
        self.side.wait_stream(torch.cuda.current_stream())  # now: later it would wait for the + pass
        try:
            yield torch.cuda.stream(self.side)
        finally:
            torch.cuda.current_stream().wait_stream(self.side)


@contextmanager
def flat_weights_kept(model: nn.Module) -> Iterator[None]:
    """Lets recurrent layers be called with other weights than their own inside.

    On CUDA such a layer brings weights that it finds changed into one piece of memory. The weights of a pass are views,
    which cannot go there; and the layer's own would be moved after the pass, away from where a captured graph reads
    them. So nothing is brought together inside, and the layer knows its own weights again afterwards.
    """
    layers = [module for module in model.modules() if isinstance(module, nn.RNNBase)]
    kept = [(list(layer._flat_weights), layer._flat_weight_refs) for layer in layers]
    try:
        for layer in layers:
            layer.flatten_parameters = lambda: None  # type: ignore[method-assign]
        with warnings.catch_warnings() if layers else nullcontext():
            if layers:
                warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
            yield
    finally:
        for layer, (weights, refs) in zip(layers, kept, strict=True):
            del layer.flatten_parameters
            layer._flat_weights, layer._flat_weight_refs = weights, refs


def laid_out_as(p: Tensor, gradient: Tensor | None) -> Tensor:
    """backward() sees to it that gradients lie in memory as their weights do, which fused optimizers rely on."""
    if gradient is None:  # of a pass that did not use it
        return torch.zeros_like(p)
    return gradient if gradient.stride() == p.stride() else torch.empty_like(p).copy_(gradient)


def objective_at(objective: Objective, net: nn.Module, state: Weights, *part: Tensor) -> tuple[Tensor, Tensor]:
    """The objective with other weights and buffers than those of the net."""

    def model(*inputs: Tensor) -> Any:
        return functional_call(net, state, inputs)

    return objective(model, *part)


class GraphStep:
    """``step`` captured once, replayed for every batch of the same shape. Weights and optimizer stay as they were."""

    def __init__(self, step: Step, net: nn.Module, batch: tuple[Tensor, ...], pool: Any = None) -> None:
        self.step = step
        self.batch = [tensor.clone() for tensor in batch]
        self.graph = torch.cuda.CUDAGraph()
        with unchanged(net, step.opt, step.sums):
            for _ in range(WARM_UP):
                step(*self.batch)
            torch.cuda.current_stream().synchronize()
            if isinstance(step.opt, NoisyOptimizer):
                step.opt.register_graph(self.graph)
            from ...analysis.acceleration import captured_in  # which loads all of the analysis

            with captured_in(self.graph, torch.cuda.current_stream(), pool):
                step(*self.batch)

    def __call__(self, *batch: Tensor) -> None:
        for mine, given in zip(self.batch, batch, strict=True):
            mine.copy_(given)
        if isinstance(self.step.opt, NoisyOptimizer):
            self.step.opt.before_replay()
        self.graph.replay()


class GraphSteps:
    """A GraphStep for each shape that batches come in, in memory that they share: only one is at work at a time."""

    def __init__(self, step: Step, net: nn.Module) -> None:
        self.step, self.net = step, net
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: dict[tuple[torch.Size, ...], GraphStep] = {}

    def capture(self, batch: tuple[Tensor, ...]) -> bool:
        """Captures a step for batches of this shape, if there is none, and returns whether it did.

        Capturing draws random numbers.
        """
        shapes = _shapes(batch)
        if shapes in self._graphs:
            return False
        self._graphs[shapes] = GraphStep(self.step, self.net, batch, self._pool)
        return True

    def __call__(self, *batch: Tensor) -> None:
        self._graphs[_shapes(batch)](*batch)


class GraphOf:
    """Captures ``work()`` once; every call computes its result again from the same tensors, with their new values."""

    def __init__(self, work: Callable[[], Tensor]) -> None:
        work()
        torch.cuda.current_stream().synchronize()
        self.graph = torch.cuda.CUDAGraph()
        from ...analysis.acceleration import captured_in

        with captured_in(self.graph, torch.cuda.current_stream()):
            self.out = work()

    def __call__(self) -> Tensor:
        self.graph.replay()
        return self.out


def _shapes(batch: tuple[Tensor, ...]) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in batch)


@contextmanager
def unchanged(net: nn.Module, opt: Optimizer, sums: Tensor) -> Iterator[None]:
    """Steps inside leave no trace: weights, statistics, optimizer state and counters return to what they were.

    The tensors stay the same ones, as a graph needs it. State that did not exist before is zero after, which is how
    torch's optimizers begin.
    """
    tensors = [*net.parameters(), *net.buffers(), sums]
    values = [t.detach().clone() for t in tensors]
    state = {p: {k: v.clone() for k, v in s.items() if isinstance(v, Tensor)} for p, s in opt.state.items()}
    groups = [{k: v for k, v in group.items() if k != "params"} for group in opt.param_groups]
    try:
        yield
    finally:
        opt.zero_grad()  # first: it ends a step that was cut short, which counts it
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
            for parameter, entries in opt.state.items():
                for key, entry in entries.items():
                    if isinstance(entry, Tensor):
                        old = state.get(parameter, {}).get(key)
                        entry.zero_() if old is None else entry.copy_(old)
        for group, before in zip(opt.param_groups, groups, strict=True):
            group.update(before)
