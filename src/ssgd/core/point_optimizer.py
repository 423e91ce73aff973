"""The one class around an optimizer: it shares its groups and state, and steps with the mean gradient over points."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import random_state
from .batchnorm import check_policy
from .checks import check_base, check_call, check_choice, check_closure, check_level, check_model
from .gradients import all_finite
from .halves import halves, warn_of_reduction
from .parallel import sharding
from .passes import Passes, Point, Route, Stage
from .weights import Level

Loss = Tensor | float


class Rule:
    """Where one method takes its gradients, and what it keeps in each parameter group."""

    keys: Mapping[str, Any] = {}  # of every parameter group, with their first values; the level comes first
    counts_steps_in: str | None = None  # the key that counts them, taken or not
    saved_as = ""  # the key of state_dict() that has what state() gives
    level_is = "the noise level is ||n|| / ||w||"  # for errors
    shares: Sequence[float] | None = None  # of each point's gradient in the mean, where they are the method's own
    no_split: str | None = None  # why there is no split(), where there is none
    not_capturable: str | None = None  # why a CUDA graph cannot hold a step, where it cannot
    no_scaler: str | None = None  # why a GradScaler cannot be used, where it cannot

    def check(self, opt: PointOptimizer) -> None:
        """Refuse what cannot be served: called when the optimizer is made, and gets a model or parameters."""

    def selected(self, opt: PointOptimizer) -> list[Tensor]:
        """Return the tensors that move."""
        return []

    def is_off(self, opt: PointOptimizer) -> bool:
        """Say whether every point is w itself, so that a step is the base's own."""
        return True

    def route(self, opt: PointOptimizer, halve: Callable[[], Sequence[float]] | None) -> Route:
        """Return where to take the gradients of one batch, the step's number ``opt.batches``.

        Where split() asks, ``halve()`` cuts the batch in two and returns the halves' shares; else it is None.
        """
        return Route([0])

    def after_step(self, opt: PointOptimizer, found_inf: Tensor | None) -> None:
        """The base has stepped; on the device ``found_inf`` is above 0 where it was told to skip."""

    def state(self, opt: PointOptimizer) -> Any:
        """Return what is saved under ``saved_as``, or None."""

    def load(self, opt: PointOptimizer, state: Any) -> None:
        """Take what state() gave; None where the checkpoint is another method's."""


def _key_of_groups(name: str) -> property:
    """An attribute that raises when it is read or set, since the level is a key of the parameter groups."""

    def refuse(opt: object, value: object = "...") -> None:
        raise AttributeError(f'the level is a key of each group: opt.param_groups[0]["{name}"] = {value}')

    return property(refuse, refuse)


class PointOptimizer(Optimizer):
    """Any torch optimizer, with the mean gradient over the points of a rule. :class:`ssgd.SSGD` explains the options.

    A batch is taken through its points by ``points()``, ``split()`` or a closure, and ``step()`` follows.
    """

    noise, rho = _key_of_groups("noise"), _key_of_groups("rho")
    closure_has_points = False  # whether step()'s closure takes its batches through the points, as a trainer's may
    batches = 0  # how many of this step have begun
    _passes: Passes | None = None  # the last of them
    _in_closure = False
    _losses: Sequence[Loss] = ()

    def __new__(cls, *args: Any, **settings: Any) -> Any:
        check_call(cls, args, settings)
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
        if any(key in group for group in base.param_groups for key in list(rule.keys)[1:]):
            warnings.warn(
                "the base's groups have the noise of an S-SGD checkpoint, which goes on instead of the level and seed "
                "given here: wrap the base first, then load_state_dict()",
                stacklevel=3,
            )
        super().__setstate__({"defaults": {**base.defaults, **rule.keys}})  # makes room for hooks
        given = [dict(group) for group in base.param_groups]
        try:
            for group in base.param_groups:
                self._complete(group)
            rule.check(self)
        except BaseException:
            for group, before in zip(base.param_groups, given, strict=True):
                group.clear()
                group.update(before)
            raise
        base.__dict__["_wrapped_by"] = type(self).__name__

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
        if self.rule.no_split is not None:
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
        self._refuse_inside("step()")
        loss = None if closure is None else self._evaluate(closure)
        if self._passes is None or self._passes.stage is Stage.READY:
            self._check_plain_step()
        else:
            self._passes.check_complete()
        self._step_base()
        self._end_step()
        for after in self._optimizer_step_post_hooks.values():
            after(self, (self, closure), {})
        return loss

    step.hooked = True  # type: ignore[attr-defined]  # or torch would call its global hooks here and at the base's step

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; this ends the step."""
        if not self._in_closure:
            if self._stage is Stage.INSIDE:
                raise RuntimeError("zero_grad() inside a point would drop the other points' gradients: call it before")
            self._end_step()
        super().zero_grad(set_to_none)

    @property
    def losses(self) -> list[Loss]:
        """The last batch's loss at each point, where a closure returned it or ``point.loss`` was set."""
        return list(self._losses)

    @property
    def selected(self) -> list[Tensor]:
        """The tensors that move where their group's level is above 0."""
        return self.rule.selected(self)

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
        if self._stage in (Stage.READY, Stage.BETWEEN):
            raise RuntimeError(
                "add_param_group() before the last point: the batch would go on without it; call it after"
            )
        self._complete(param_group)
        self.base.add_param_group(param_group)
        try:
            self.rule.check(self)
        except BaseException:
            self.base.param_groups.pop()
            raise

    def state_dict(self) -> dict[str, Any]:
        self._refuse_inside("state_dict()")
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        found = self.base.state_dict()  # its own, which may hold more than groups and state
        for group in found["param_groups"]:
            group.update({key: _plain(group[key]) for key in self.rule.keys if key in group})
        if (own := self.rule.state(self)) is not None:
            found[self.rule.saved_as] = own
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
        saved = state_dict.pop(self.rule.saved_as, None)
        self.base.load_state_dict(state_dict)  # bases may look at every key
        for group, mine in zip(self.param_groups, own, strict=True):
            for key, value in mine.items():
                group.setdefault(key, value)
        if self._stage is Stage.BETWEEN:
            super().zero_grad()
        self._forget_passes()
        self.rule.load(self, saved)
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a copy makes for itself: the batch, torch's hooks, and the step an LR scheduler puts here."""
        self._refuse_inside("a copy")
        own = ("_passes", "batches", "_one_pass", "step")
        return {k: v for k, v in self.__dict__.items() if k not in own and not k.startswith("_optimizer_")}

    # --- below here: how --------------------------------------------------------------------------------------------

    @property
    def _stage(self) -> Stage:
        """How far the last batch of this step has come."""
        return Stage.CLOSED if self._passes is None else self._passes.stage

    def _complete(self, group: dict[str, Any]) -> None:
        """Give a parameter group the rule's keys: a level of its own, all else as in the first group."""
        for i, (key, value) in enumerate(self.rule.keys.items()):
            if i:
                group[key] = self.base.param_groups[0].get(key, value)
            else:
                check_level(group.setdefault(key, value), self.rule.level_is)

    def _begin(self, halve: Callable[[], Sequence[float]] | None) -> Passes:
        """Start a batch, once it is clear that the last one has ended well."""
        last = self._passes
        if last is not None:
            if last.check_followed():
                self._end_step()
            last.close()
        route = self.rule.route(self, halve)
        if self.rng == "same" and len(route.signs) > 1 and random_state.capturing():
            raise RuntimeError('rng="same" puts random states back on the host, which a CUDA graph cannot hold')
        self._passes = Passes(self, route)
        self.batches += 1
        return self._passes

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
                    with torch.enable_grad():
                        loss = closure()
                finally:
                    self._in_closure = False
                if loss is None or isinstance(loss, tuple | list | Mapping):
                    kind = "nothing" if loss is None else f"a {type(loss).__name__}"
                    raise TypeError(f"the closure returned {kind}: end it with `return loss`, and that alone")
                point.loss = loss.detach() if isinstance(loss, Tensor) else loss
                losses.append(point.loss)
        return sum(losses[1:], losses[0]) / len(losses)

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
            self._count_step()
        self._forget_passes()

    def _count_step(self) -> None:
        if key := self.rule.counts_steps_in:
            count = self.base.param_groups[0][key] + 1
            for group in self.base.param_groups:
                group[key] = count

    def _forget_passes(self) -> None:
        if self._passes is not None:
            self._passes.close()
        self._passes = None
        self.batches = 0

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
        if self._stage is Stage.INSIDE:
            raise RuntimeError(f"{what} inside a point would see perturbed weights: leave the `with` block first")

    def _check_plain_step(self) -> None:
        """Refuse a step with a gradient that no point has seen.

        torch's checkpoint helpers step with lr 0, or with gradients of zeros, to make the base's state.
        """
        gradients = [g for p in self.all_parameters if (g := p.grad) is not None]
        making_state = all(not group.get("lr", 1) for group in self.param_groups)
        if making_state or not gradients or self.rule.is_off(self) or not any(bool(g.any()) for g in gradients):
            return
        raise RuntimeError(
            f"{type(self).__name__}.step() without a new pass: run forward and backward inside points(), split() or "
            "one_pass(), in a trainer by ssgd.integrations. Was step() called twice? opt.base.step() is the base "
            "optimizer's plain step"
        )


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's own: torch.load takes no others."""
    return value.item() if isinstance(value, Real) and hasattr(value, "item") else value
