"""The one class around an optimizer: it shares its groups and state, and steps with the mean gradient over points."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from . import random_state
from .batchnorm import RunningStatistics, check_policy
from .checks import check_base, check_call, check_choice, check_closure, check_count, check_level, check_model
from .gradients import all_finite
from .halves import halves, warn_of_reduction
from .parallel import sharding
from .passes import LATE, NOTHING, Passes, Point, Route, Stage
from .weights import Level, NoisyWeights

Loss = Tensor | float


_others_that_stepped: weakref.WeakSet[Optimizer] = weakref.WeakSet()  # neither ours nor inside one of ours


def _note_step(opt: Optimizer, *_: object) -> None:
    if not isinstance(opt, PointOptimizer) and "_wrapped_by" not in opt.__dict__:
        _others_that_stepped.add(opt)


def _strangers(own: Sequence[Tensor]) -> list[Tensor]:
    """The parameters that other optimizers have updated."""
    known = set(map(id, own))
    groups = [group for opt in _others_that_stepped if "_wrapped_by" not in opt.__dict__ for group in opt.param_groups]
    return [p for group in groups for p in group["params"] if id(p) not in known]


register_optimizer_step_post_hook(_note_step)


class Rule:
    """How one method differs from another: what it keeps in each parameter group, and its route through a batch."""

    keys: Mapping[str, Any] = {}  # of every parameter group, with their first values; the level comes first
    level_is = "the noise level is ||n|| / ||w||"  # for errors
    saved_as: tuple[str, ...] = ()  # top-level keys of state_dict() that are the rule's own
    has_noise = False
    no_split = "there is no split()"  # why, where halves() gives nothing
    shares: Sequence[float] | None = None  # of each point's gradient in the mean, where they are the method's own
    not_capturable: str | None = None  # why a CUDA graph cannot hold a step, where it cannot
    no_scaler: str | None = None  # why a GradScaler cannot be used, where it cannot

    def check(self, opt: PointOptimizer) -> None:
        """Refuse what cannot be served: called when the optimizer is made, and when a model is attached."""

    def is_off(self, opt: PointOptimizer) -> bool:
        """Say whether every point is w itself, so that a step is the base's own."""
        return True

    def can_split(self) -> bool:
        """Say whether split() is served; ``no_split`` says why not."""
        return False

    def route(self, opt: PointOptimizer, halve: Callable[[], Sequence[float]] | None, batch: int) -> Route:
        """Return where to take the gradients of one batch, the step's number ``batch``.

        Where split() asks, ``halve()`` cuts the batch in two and returns the halves' shares; else it is None.
        """
        return Route([0])

    def selected(self, opt: PointOptimizer) -> list[Tensor]:
        """Return the tensors that move."""
        return []

    def end_batches(self, opt: PointOptimizer) -> None:
        """Note that the step is over, taken or not."""

    def ratios(self, opt: PointOptimizer) -> list[Tensor]:
        """Return ‖n‖ / ‖w‖ of each tensor at the point entered."""
        return []

    def after_step(self, opt: PointOptimizer, found_inf: Tensor | None) -> None:
        """The base has stepped; on the device ``found_inf`` is above 0 where it was told to skip."""

    def as_ranks(self, opt: PointOptimizer, ranks: int) -> None:
        """See :meth:`PointOptimizer.as_ranks`."""

    def register_graph(self, opt: PointOptimizer, graph: torch.cuda.CUDAGraph) -> None:
        """See :meth:`PointOptimizer.register_graph`."""

    def before_replay(self, opt: PointOptimizer) -> None:
        """See :meth:`PointOptimizer.before_replay`."""

    def looked_at(self, opt: PointOptimizer) -> AbstractContextManager[Callable[[int], NoisyWeights]]:
        """Return a context with a function that moves the weights to w + sign · n, for a look outside training."""
        raise TypeError(f"{type(opt).__name__} has no noise to look at")

    def state(self, opt: PointOptimizer) -> dict[str, Any]:
        """Return what is saved under ``saved_as``."""
        return {}

    def load(self, opt: PointOptimizer, state: Mapping[str, Any]) -> None:
        """Take what state() gave; empty where the checkpoint is another method's."""


class InGroups:
    """A name that is no attribute, but a key of the parameter groups."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, opt: object, kind: type | None = None) -> Any:
        raise AttributeError(f'the level is a key of each group: opt.param_groups[0]["{self.name}"]')

    def __set__(self, opt: object, value: object) -> None:
        raise AttributeError(f'the level is a key of each group: opt.param_groups[0]["{self.name}"] = {value!r}')


class PointOptimizer(Optimizer):
    """Any torch optimizer, with the mean gradient over the points of a rule. :class:`ssgd.SSGD` explains the options.

    A batch is taken through its points by ``points()``, ``split()`` or a closure, and ``step()`` follows.
    """

    noise, rho = InGroups(), InGroups()
    closure_has_points = False  # whether step()'s closure takes its batches through the points, as a trainer's may

    def __new__(cls, *args: Any, **settings: Any) -> Any:
        check_call(cls, args[0] if args else None, settings)
        return super().__new__(cls)

    def __init__(
        self,
        base: Optimizer,
        rule: Rule,
        *,
        model: nn.Module | None = None,
        bn_stats: str = "both",
        rng: str = "independent",
        nonfinite: str = "step",
    ) -> None:
        check_base(base, rule.keys)
        check_model(model, [p for group in base.param_groups for p in group["params"]])
        check_policy(bn_stats, model)
        check_choice("rng", rng, ("independent", "same"))
        check_choice("nonfinite", nonfinite, ("step", "skip", "raise"))
        self.base, self.rule, self.model = base, rule, model
        self.bn_stats, self.rng, self.nonfinite = bn_stats, rng, nonfinite
        self._losses: list[Loss] = []
        self._reset()
        groups, state = base.param_groups, base.state
        loaded = any(key in group for group in groups for key in list(rule.keys)[1:])
        given = [dict(group) for group in groups]
        try:
            super().__init__(groups, {**base.defaults, **rule.keys})
            rule.check(self)
        except BaseException:
            for group, before in zip(groups, given, strict=True):
                group.clear()
                group.update(before)
            base.param_groups = groups
            raise
        finally:
            base.state = state
        base.__dict__["_wrapped_by"] = type(self).__name__
        if loaded:
            warnings.warn(
                "the base's groups have the noise of an S-SGD checkpoint, which goes on instead of the level and seed "
                "given here: wrap the base first, then load_state_dict()",
                stacklevel=3,
            )

    # --- the ways in ------------------------------------------------------------------------------------------------

    def points(self) -> Iterator[Point]:
        """Yield the points to take this batch's gradient at; run forward and backward inside ``with point:``."""
        yield from self._begin(None)

    def split(self, *batch: Any, reduction: str = "mean") -> Iterator[tuple[Point, Any]]:
        """Yield ``(point, half)`` twice: each half of the batch has a point of its own.

        The batch is any nested structure of tensors, and of lists or tuples, with one entry a sample. Where no weight
        moves, it is yielded whole.

        Args:
            reduction: what the loss is over the samples. ``"mean"``: each half's gradient is weighed by its share of
                them; ``"sum"``: the gradients are added up. A loss of the other kind is warned of where ``point.loss``
                is what a loss function of torch's or ``sum()`` returned; nothing else tells them apart.
        """
        check_choice("reduction", reduction, ("mean", "sum"))
        if not self.rule.can_split():
            raise ValueError(self.rule.no_split)
        if reduction == "sum" and self.rule.shares:
            raise ValueError(f"{type(self).__name__} weighs its halves by shares of its own: use the mean loss")
        whole = batch[0] if len(batch) == 1 else batch
        parts = [whole]

        def halve() -> Sequence[float]:
            parts[:], shares = zip(*halves(whole), strict=True)
            return shares if reduction == "mean" else (1.0, 1.0)

        passes = self._begin(halve)
        for point, part in zip(passes, parts, strict=True):
            yield point, part
            if len(parts) > 1:
                warn_of_reduction(point.loss, part, reduction)

    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:  # type: ignore[override]
        """Take the base's step with the mean gradient. With a closure, first call it at every point.

        Returns the mean of the closure's losses. Without points before it, ``step()`` is refused where weights would
        move; ``opt.base.step()`` is the base's plain step.
        """
        for before in self._optimizer_step_pre_hooks.values():
            changed = before(self, (self, closure), {})
            closure = closure if changed is None else changed[0][1]
        loss = None if closure is None else self._evaluate(closure)
        passes = self._passes
        if passes is None or passes.stage is Stage.READY:
            self._check_plain_step()
        elif passes.stage is Stage.INSIDE:
            raise RuntimeError("step() inside a point would see perturbed weights: leave the `with point:` first")
        elif passes.stage is Stage.BETWEEN:
            raise RuntimeError(
                f"step() after {passes.done} of {len(passes.points)} points: run all that points() or split() gives "
                "before step(), or call zero_grad() to drop the batch"
            )
        elif passes.stage is Stage.DROPPED:
            raise RuntimeError("an exception cut the batch short and its gradients were dropped: skip this step()")
        elif passes.gradients.came_late and not self.rule.is_off(self):
            raise RuntimeError(LATE)
        elif not (any(passes.gradients.arrivals) or self.rule.is_off(self) or passes.gradients.there):
            warnings.warn(NOTHING, stacklevel=2)
        self._step_base()
        self._end_step()
        for after in self._optimizer_step_post_hooks.values():
            after(self, (self, closure), {})
        return loss

    step.hooked = True  # type: ignore[attr-defined]  # or torch would call its global hooks here and at the base's step

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; this ends the step."""
        if not self._in_closure:
            if self._passes is not None and self._passes.stage is Stage.INSIDE:
                raise RuntimeError("zero_grad() inside a point would drop the other points' gradients: call it before")
            self._end_step()
        super().zero_grad(set_to_none)

    @property
    def losses(self) -> list[Loss]:
        """The last batch's loss at each point, where a closure returned it or ``point.loss`` was set."""
        return self._losses

    @property
    def selected(self) -> list[Tensor]:
        """The tensors that move where their group's level is above 0."""
        return self.rule.selected(self)

    # --- for logging ------------------------------------------------------------------------------------------------

    def realised_ratios(self) -> list[Tensor]:
        """``||n|| / ||w||`` of each tensor that gets noise: at the point entered, else for the next step's noise."""
        if self._passes is not None and self._passes.stage is Stage.INSIDE:
            return self.rule.ratios(self)
        with self.rule.looked_at(self) as move:
            return move(1).ratios()

    @torch.no_grad()
    def symmetric_excess(self, loss: Callable[[], Loss]) -> Loss:
        """``(L(w+n) + L(w−n)) / 2 − L(w)`` for the next step's noise: about ½ nᵀHn, the sharpness that S-SGD sees.

        ``loss()`` runs the forward pass three times with the same dropout masks and moves nothing: no weight, no
        gradient, no random stream, and with ``model`` given no running statistic.
        """
        statistics = RunningStatistics(self.model, "none")
        statistics.begin()
        random = random_state.snapshot({p.device for p in self.all_parameters})
        try:
            with self.rule.looked_at(self) as move:
                losses = []
                for sign in (1, 0, -1):
                    move(sign)
                    random_state.put_back(random)
                    statistics.undo()
                    losses.append(loss())
        finally:
            random_state.put_back(random)
            statistics.undo()
        plus, clean, minus = losses
        return (plus + minus) / 2 - clean

    # --- CUDA graphs, and several ranks in one process --------------------------------------------------------------

    def register_graph(self, graph: torch.cuda.CUDAGraph) -> None:
        """Before capture: let ``graph`` draw this optimizer's noise. Call :meth:`before_replay` before each replay."""
        self.rule.register_graph(self, graph)

    def before_replay(self) -> None:
        """Give the graph's next replay the noise of the next step: on the stream that replays it."""
        self.rule.before_replay(self)

    def as_ranks(self, ranks: int) -> None:
        """Take the place of so many data parallel ranks: a step's batches see, in turn, the noise each would draw."""
        check_count("ranks", ranks)
        self._refuse_inside("as_ranks()")
        self.rule.as_ranks(self, ranks)

    # --- the model, and who takes over ------------------------------------------------------------------------------

    def attach(self, model: nn.Module) -> None:
        """Name the module trained, as it is called, where a framework wraps or shards it after this was built."""
        self._refuse_inside("attach()")
        check_model(model, self.all_parameters)
        self.model = model
        self.rule.check(self)

    def train(self) -> None:
        """The base's own, where it has one: schedule-free optimizers train at other weights than they are judged at."""
        getattr(self.base, "train", lambda: None)()

    def eval(self) -> None:
        """The base's own, where it has one."""
        self._refuse_inside("eval()")
        getattr(self.base, "eval", lambda: None)()

    def release(self) -> Optimizer:
        """Return the base, without what was this method's own in its groups: for another method to take over."""
        self._refuse_inside("release()")
        for group in self.param_groups:
            for key in self.rule.keys:
                group.pop(key, None)
        self.base.__dict__.pop("_wrapped_by", None)
        return self.base

    # --- groups, state and checkpoints: the base's ------------------------------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return self.base.param_groups

    @param_groups.setter
    def param_groups(self, groups: list[dict[str, Any]]) -> None:
        self.base.param_groups = groups

    @property
    def state(self) -> Any:
        return self.base.state

    @state.setter
    def state(self, state: Any) -> None:
        self.base.state = state

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """Where it is True, a GradScaler makes itself known."""
        return self.rule.no_scaler is not None or getattr(self.base, "_step_supports_amp_scaling", False)

    @property
    def all_parameters(self) -> list[Tensor]:
        """All that the base updates, each once."""
        return list({id(p): p for group in self.base.param_groups for p in group["params"]}.values())

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._refuse_inside("add_param_group()")
        if self._passes is not None and self._passes.stage in (Stage.READY, Stage.BETWEEN):
            raise RuntimeError(
                "add_param_group() before the last point: the batch would go on without it; call it after"
            )
        for i, key in enumerate(self.rule.keys):
            if i and self.param_groups:  # all but the level is the same in all groups
                param_group[key] = self.param_groups[0][key]
            value = param_group.setdefault(key, self.defaults[key])
            if not i:
                check_level(value, self.rule.level_is)
        self.base.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        self._refuse_inside("state_dict()")
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        found = self.base.state_dict()  # its own, which may hold more than groups and state
        for group in found["param_groups"]:
            group.update({key: _plain(group[key]) for key in self.rule.keys if key in group})
        found.update(self.rule.state(self))
        for after in self._optimizer_state_dict_post_hooks.values():
            found = after(self, found) or found
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also takes a checkpoint of the base alone: what is the method's own then stays as it is.

        A batch that has begun is dropped, and its gradients with it.
        """
        self._refuse_inside("load_state_dict()")
        own = [{key: group[key] for key in self.rule.keys} for group in self.param_groups]
        state_dict = dict(state_dict)  # a hook may change it
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        rules = {key: state_dict.pop(key) for key in self.rule.saved_as if key in state_dict}
        self.base.load_state_dict(state_dict)  # bases may look at every key
        for group, mine in zip(self.param_groups, own, strict=True):
            for key, value in mine.items():
                group.setdefault(key, value)
        if self._passes is not None and self._passes.stage is Stage.BETWEEN:
            super().zero_grad()
        self._forget_passes()
        self.rule.load(self, rules)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a copy makes for itself: the batch, torch's hooks, and the step an LR scheduler puts here."""
        self._refuse_inside("a copy")
        hooks = {key for key in self.__dict__ if key.startswith("_optimizer_")}
        return {key: value for key, value in self.__dict__.items() if key not in {*hooks, "_passes", "step"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reset()
        super().__setstate__(state)

    # --- below here: how --------------------------------------------------------------------------------------------

    def _reset(self) -> None:
        self._passes: Passes | None = None
        self._batch = 0  # how many of this step have begun
        self._in_closure = False

    def _begin(self, halve: Callable[[], Sequence[float]] | None) -> Passes:
        """Start a batch, once it is clear that the last one has ended well."""
        last = self._passes
        if last is not None:
            self._check_ended(last)
        route = self.rule.route(self, halve, self._batch)
        moving = any(route.signs)
        if self.rng == "same" and moving and random_state.capturing():
            raise RuntimeError('rng="same" puts random states back on the host, which a CUDA graph cannot hold')
        parameters = self.all_parameters
        others: list[Tensor] = []
        if self.model is not None:
            own = {id(p) for p in parameters}
            others = [p for p in self.model.parameters() if id(p) not in own]
        statistics = RunningStatistics(self.model, self.bn_stats if moving else "both")
        strangers = _strangers(parameters) if self.model is None and _others_that_stepped else []
        self._passes = Passes(route, parameters, others, self.model, statistics, self.rng == "same", strangers)
        self._batch += 1
        return self._passes

    def _check_ended(self, last: Passes) -> None:
        if last.stage is Stage.INSIDE:
            raise RuntimeError("points cannot be nested: leave the `with point:` you are in first")
        if last.stage is Stage.BETWEEN:
            raise RuntimeError(
                f"the last batch was left after {last.done} of {len(last.points)} points: call zero_grad() to drop it"
            )
        if last.stage is Stage.DONE and last.gradients.came_late and not self.rule.is_off(self):
            raise RuntimeError(LATE)
        if last.stage is Stage.DROPPED or not last.gradients.there or last.stepped():
            self._end_step()  # GradScaler skipped the step, or it was taken or cleared behind our back
        last.close()

    def _evaluate(self, closure: Callable[[], Loss]) -> Loss | None:
        """Call the closure at every point; right whether or not it clears gradients."""
        if self.closure_has_points:
            return closure()
        check_closure(closure, type(self).__name__)
        losses: list[Loss] = []
        for point in self._begin(None):
            point.passes.by_closure = True
            with point:
                self._in_closure = True
                try:
                    point.loss = self._call(closure)
                finally:
                    self._in_closure = False
                losses.append(point.loss)
        return sum(losses[1:], losses[0]) / len(losses)

    def _call(self, closure: Callable[[], Loss]) -> Loss:
        with torch.enable_grad():
            loss = closure()
        if loss is None:
            raise RuntimeError("the closure returned nothing: end it with `return loss`")
        if isinstance(loss, tuple | list | Mapping):
            raise TypeError(f"the closure returned a {type(loss).__name__}: end it with `return loss`, and that alone")
        return loss.detach() if isinstance(loss, Tensor) else loss

    def _step_base(self) -> None:
        """Take the base's step, with what a GradScaler left for it, unless a gradient that is not finite forbids it."""
        given = self.__dict__
        scaling: dict[str, Any] = {key: given[key] for key in ("grad_scale", "found_inf") if key in given}
        if scaling and self.rule.no_scaler:
            raise RuntimeError(self.rule.no_scaler)
        if self.nonfinite != "step" and "found_inf" not in scaling:  # a scaler has judged already
            parameters = self.all_parameters
            cuts = dict.fromkeys(s for s in map(sharding, parameters) if s is not None)  # the same order on all ranks
            finite = all_finite(parameters, cuts)
            if self.nonfinite == "skip" and getattr(self.base, "_step_supports_amp_scaling", False):
                # the kernel skips, the host need not wait
                scaling = {"found_inf": (~finite).float(), "grad_scale": None}
            elif random_state.capturing():
                raise RuntimeError(f"nonfinite={self.nonfinite!r} in a CUDA graph needs 'skip' and a fused base")
            elif not finite:
                if self.nonfinite == "raise":
                    raise FloatingPointError("a gradient is not finite: zero_grad() and skip the batch, or lower lr")
                return
        self.base.__dict__.update(scaling)
        try:
            self.base.step()
        finally:
            for key in scaling:
                self.base.__dict__.pop(key, None)
        self.rule.after_step(self, scaling.get("found_inf"))

    def _end_step(self) -> None:
        if self._passes is None:
            return
        found = [point.loss for point in self._passes.points if point.loss is not None]
        self._losses = [loss.detach() if isinstance(loss, Tensor) else loss for loss in found]
        if not random_state.capturing():
            self.rule.end_batches(self)
        self._forget_passes()

    def _forget_passes(self) -> None:
        if self._passes is not None:
            self._passes.close()
        self._passes = None
        self._batch = 0

    def _levels(self) -> list[Level]:
        """Return the level of each parameter group, the first of the rule's keys, checked."""
        key = next(iter(self.rule.keys))
        levels = []
        for group in self.base.param_groups:
            if key not in group:
                name = type(self).__name__
                raise RuntimeError(
                    f"a parameter group has no {key!r}: add groups to {name}, not to the optimizer inside"
                )
            level = group[key]
            check_level(level, self.rule.level_is)
            if isinstance(level, Tensor):
                if level.device.type == "cpu" and random_state.capturing():
                    raise RuntimeError("a CUDA graph would hold the level as it is now: make the tensor on the GPU")
                level = level.reshape(())
            levels.append(level)
        return levels

    def _refuse_inside(self, what: str) -> None:
        if self._passes is not None and self._passes.stage is Stage.INSIDE:
            raise RuntimeError(f"{what} inside a point would see perturbed weights: leave the `with point:` first")

    def _check_plain_step(self) -> None:
        """Refuse a step with a gradient that no point has seen.

        torch's checkpoint helpers step with lr 0, or with gradients of zeros, to make the base's state.
        """
        gradients = [g for p in self.all_parameters if (g := p.grad) is not None]
        making_state = all(not group.get("lr", 1) for group in self.param_groups)
        if making_state or not gradients or self.rule.is_off(self) or not any(bool(g.any()) for g in gradients):
            return
        raise RuntimeError(
            f"{type(self).__name__}.step() without points() before it: run forward and backward inside points() or "
            "split(), in a trainer by ssgd.integrations, or call opt.base.step() for the base optimizer's plain step"
        )


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's own: torch.load takes no others."""
    return value.item() if isinstance(value, Real) and hasattr(value, "item") else value
