"""An optimizer around an optimizer: shares its groups and state, and takes its gradient over the points of a walk."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .checks import check_base, check_choice, check_level, check_model
from .gradients import MeanGradient, add_back, added_on_arrival, all_finite, clear
from .parallel import sharding, unwrap_ddp
from .points import Level
from .trainers import check_closure, remedy
from .walk import LATE, Point, Walk

Loss = Tensor | float


class Wrapper(Optimizer):
    """What every method around a base has in common: the three ways in, and being an optimizer like any other.

    A method says which points a batch is taken through (``points``) and keeps what it must remember in ``own_keys`` of
    each parameter group, so that every checkpoint format carries it.
    """

    own_keys: tuple[str, ...] = ()
    level_is = "the noise level is ||n|| / ||w||"  # what the first of these keys means, for errors
    not_capturable: str | None = None  # why a CUDA graph cannot hold a step, where it cannot
    not_copied: tuple[str, ...] = ("_walk", "step")  # made anew by a copy or a pickle; LR schedulers leave a step here
    closure_walks = False  # whether step()'s closure takes its batches through the points itself, as a trainer's may
    _walk: Walk | None
    _found_inf: Tensor | None = None  # above 0 where a fused base was told to skip its last step

    def __init__(self, base: Optimizer, own: dict[str, Any], model: nn.Module | None, nonfinite: str) -> None:
        check_base(base, own)
        check_model(model)
        check_choice("nonfinite", nonfinite, ("step", "skip", "raise"))
        self.base = base
        self.model = model
        self.nonfinite = nonfinite
        self._losses: list[Loss] = []
        self._warned = False
        self._reset()
        groups, state = base.param_groups, base.state
        given = [dict(group) for group in groups]
        try:
            super().__init__(groups, {**base.defaults, **own})
            self._settle()
        except BaseException:
            for group, before in zip(groups, given, strict=True):
                group.clear()
                group.update(before)
            base.param_groups = groups
            raise
        finally:
            base.state = state
        base.__dict__["_wrapped_by"] = type(self).__name__

    def points(self) -> Iterator[Point]:
        """The points to take this batch's gradient at; run forward and backward inside ``with point:``."""
        raise NotImplementedError

    def step(self, closure: Callable[[], Loss] | None = None) -> Loss | None:  # type: ignore[override]
        """The base's step with the mean gradient. With a closure, first calls it at every point.

        Returns the mean of the closure's losses.
        """
        loss = None if closure is None else self._evaluate(closure)
        walk = self._walk
        if walk is None or walk.untouched:
            self._warn_without_points()
        elif walk.half_way:
            raise RuntimeError(
                f"step() after {walk.done} of {len(walk.points)} points: run all that points() or split() gives "
                "before step(), or call zero_grad() to drop the batch"
            )
        elif walk.cut_short:
            raise RuntimeError("an exception cut the batch short and its gradients were dropped: skip this step()")
        elif walk.came_late and not self._clean():
            raise RuntimeError(LATE)
        self._step_base()
        self._end_step()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; this ends the step."""
        if not self._in_closure:
            if self._walk is not None and self._walk.inside:
                raise RuntimeError("zero_grad() inside a point would drop the other points' gradients: call it before")
            self._end_step()
        super().zero_grad(set_to_none)

    def attach(self, model: nn.Module) -> None:
        """Name the module trained, as it is called, where a framework wraps or shards it after this was built."""
        self._refuse_inside("attach()")
        self.model = model

    def train(self) -> None:
        """The base's own, where it has one: schedule-free optimizers train at other weights than they are judged at."""
        getattr(self.base, "train", lambda: None)()

    def eval(self) -> None:
        """The base's own, where it has one."""
        self._refuse_inside("eval()")
        getattr(self.base, "eval", lambda: None)()

    def release(self) -> Optimizer:
        """The base, without what was this method's own in its groups: for another method to take over."""
        self._refuse_inside("release()")
        for group in self.param_groups:
            for key in self.own_keys:
                group.pop(key, None)
        self.base.__dict__.pop("_wrapped_by", None)
        return self.base

    @property
    def losses(self) -> list[Loss]:
        """The last batch's loss at each point, where a closure returned it or ``point.loss`` was set."""
        return self._losses

    # --- groups, state and checkpoints: the base's -----------------------------------------------------------------

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
        return getattr(self.base, "_step_supports_amp_scaling", False)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        self._refuse_inside("add_param_group()")
        for key in self.own_keys:
            param_group.setdefault(key, self.defaults[key])
        self.base.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        self._refuse_inside("state_dict()")
        for before in self._optimizer_state_dict_pre_hooks.values():
            before(self)
        found = self.base.state_dict()  # its own, which may hold more than groups and state
        for group in found["param_groups"]:
            group.update({key: plain(group[key]) for key in self.own_keys if key in group})
        for after in self._optimizer_state_dict_post_hooks.values():
            found = after(self, found) or found
        return found

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Also takes a checkpoint of the base alone: what is the method's own then stays as it is."""
        self._refuse_inside("load_state_dict()")
        own = [{key: group[key] for key in self.own_keys} for group in self.param_groups]
        state_dict = dict(state_dict)  # a hook may change it
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            state_dict = before(self, state_dict) or state_dict
        self.base.load_state_dict(state_dict)
        for group, mine in zip(self.param_groups, own, strict=True):
            for key, value in mine.items():
                group.setdefault(key, value)
        self._forget_walk()
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def __getstate__(self) -> dict[str, Any]:
        self._refuse_inside("a copy")
        hooks = {key for key in self.__dict__ if key.startswith("_optimizer_")}  # torch's stay behind too
        return {key: value for key, value in self.__dict__.items() if key not in hooks.union(self.not_copied)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reset()
        super().__setstate__(state)

    # --- below here: how --------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """What a method makes of the groups it was given; where it raises, the base stays as it was."""

    def _reset(self) -> None:
        self._walk = None
        self._in_closure = False

    def _begin(self, walk: Callable[[], Walk]) -> Walk:
        """A new walk, once it is clear that the last one has ended well."""
        last = self._walk
        if last is not None and last.inside:
            raise RuntimeError("points cannot be nested: leave the `with point:` you are in first")
        if last is not None and last.half_way:
            raise RuntimeError(
                f"the last batch was left after {last.done} of {len(last.points)} points: call zero_grad() to drop it"
            )
        if last is not None and last.came_late and not self._clean():
            raise RuntimeError(LATE)
        if last is not None and (last.cut_short or all(p.grad is None for p in self._parameters())):
            self._end_step()  # GradScaler skipped the step, or the gradients were cleared behind our back
        if last is not None:
            last.close()
        self._walk = walk()
        self._walk.gradients.beside = self._beside()
        return self._walk

    def _evaluate(self, closure: Callable[[], Loss]) -> Loss | None:
        """Call the closure at every point; right whether or not it clears gradients."""
        if self.closure_walks:
            return closure()
        check_closure(closure, type(self).__name__)
        losses: list[Loss] = []
        for point in self.points():
            with point:
                point.walk.by_closure = True
                self._in_closure = True
                try:
                    point.loss = self._call(closure, point.index == 0, point.walk.gradients)
                finally:
                    self._in_closure = False
                if isinstance(point.loss, Tensor):
                    point.loss = point.loss.detach()
                losses.append(point.loss)
        return sum(losses[1:], losses[0]) / len(losses)

    def _call(self, closure: Callable[[], Loss], first: bool, gradients: MeanGradient) -> Loss:
        """The first call may clear what was there before; the later ones must not clear what the first has left."""
        parameters = gradients.all
        ddp = unwrap_ddp(self.model)
        with torch.enable_grad():
            if first:
                with gradients.clearing_noticed():
                    loss = closure()
            else:
                aside = [p.grad for p in parameters]
                clear(parameters)
                with nullcontext() if ddp is None else added_on_arrival(parameters, aside):
                    loss = closure()
                add_back(parameters, aside)
        if loss is None:
            raise RuntimeError("the closure returned nothing: end it with `return loss`")
        if isinstance(loss, tuple | list | Mapping):
            raise TypeError(f"the closure returned a {type(loss).__name__}: end it with `return loss`, and that alone")
        return loss

    def _step_base(self) -> bool:
        """The base's step, with what GradScaler left for fused kernels, and non-finite gradients judged first.

        False where the gradients were found wanting and no step was taken.
        """
        given = self.__dict__
        scaling: dict[str, Any] = {key: given[key] for key in ("grad_scale", "found_inf") if key in given}
        if self.nonfinite != "step" and "found_inf" not in scaling:  # a scaler has judged already
            parameters = self._parameters()
            cuts = dict.fromkeys(s for s in map(sharding, parameters) if s is not None)  # the same order on all ranks
            finite = all_finite(parameters, cuts)
            if self.nonfinite == "skip" and getattr(self.base, "_step_supports_amp_scaling", False):
                # the kernel skips, the host need not wait
                scaling = {"found_inf": (~finite).float(), "grad_scale": None}
            elif capturing():
                raise RuntimeError(f"nonfinite={self.nonfinite!r} in a CUDA graph needs 'skip' and a fused base")
            elif not finite:
                if self.nonfinite == "raise":
                    raise FloatingPointError("a gradient is not finite: zero_grad() and skip the batch, or lower lr")
                return False
        self._found_inf = scaling.get("found_inf")
        self.base.__dict__.update(scaling)
        try:
            self.base.step()
        finally:
            for key in scaling:
                self.base.__dict__.pop(key, None)
        return True

    def _end_step(self) -> None:
        if self._walk is not None:
            found = [point.loss for point in self._walk.points if point.loss is not None]
            self._losses = [loss.detach() if isinstance(loss, Tensor) else loss for loss in found]
            self._forget_walk()

    def _forget_walk(self) -> None:
        if self._walk is not None:
            self._walk.close()
        self._walk = None

    def _levels(self) -> list[Level]:
        """The level of each parameter group, the first of the method's own keys, checked."""
        key = self.own_keys[0]
        if any(key not in group for group in self.param_groups):
            raise RuntimeError(
                f"a parameter group has no {key!r}: add groups to {type(self).__name__}, not to the optimizer inside"
            )
        levels = [group[key] for group in self.param_groups]
        for level in levels:
            check_level(level, self.level_is)
            if isinstance(level, Tensor) and level.device.type == "cpu" and capturing():
                raise RuntimeError("a CUDA graph would hold the level as it is now: make the tensor on the GPU")
        return [level.reshape(()) if isinstance(level, Tensor) else level for level in levels]

    def _parameters(self) -> list[Tensor]:
        return [p for group in self.param_groups for p in group["params"]]

    def _beside(self) -> list[Tensor]:
        """What of the model is in none of the groups."""
        own = {id(p) for p in self._parameters()}
        return [] if self.model is None else [p for p in self.model.parameters() if id(p) not in own]

    def _refuse_inside(self, what: str) -> None:
        if self._walk is not None and self._walk.inside:
            raise RuntimeError(f"{what} inside a point would see perturbed weights: leave the `with point:` first")

    def _clean(self) -> bool:
        """Whether every point is w itself, so that step() may follow a backward() taken anywhere."""
        return False

    def _warn_without_points(self) -> None:
        """The base's plain step. Where a trainer takes it for the user, who could not notice, it is refused."""
        initialising = all(not group.get("lr", 1) for group in self.param_groups)  # torch's checkpoints do that
        if self._warned or initialising or self._clean() or all(p.grad is None for p in self._parameters()):
            return
        what = f"{type(self).__name__}.step() without points() before it is the base optimizer's plain step"
        if instead := remedy():
            raise RuntimeError(f"{what}: {instead}")
        self._warned = True
        warnings.warn(what, stacklevel=4)


def plain(value: Any) -> Any:
    """NumPy's numbers as Python's own: torch.load takes no others."""
    return value.item() if isinstance(value, Real) and hasattr(value, "item") else value


def capturing() -> bool:
    """Whether a CUDA graph is being captured."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
