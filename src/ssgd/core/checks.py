"""Bad arguments, answered with a sentence that says what to do."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.optim import Optimizer

LARGEST = 5  # level that is no mistake
FSDP1 = (
    "FullyShardedDataParallel keeps the weights flat, and layers cannot be told apart: use FSDP2, "
    "torch.distributed.fsdp.fully_shard"
)
SECOND_ORDER = "it differentiates gradients again, at weights that have moved since"  # by create_graph=True
UNSERVED = {  # bases, and why
    "ZeroRedundancyOptimizer": "its state is in optimizers of its own, so that checkpoints would lack it; use FSDP2",
    "PostLocalSGDOptimizer": "wrap the optimizer inside it, and average the weights after step()",
    "LBFGS": "it evaluates its closure at points of its own; use a first-order method",
    "SparseAdam": "sparse gradients cannot be averaged over points; use Adam",
    **dict.fromkeys(("AdaHessian", "Adahessian", "SophiaH"), SECOND_ORDER),
}
AROUND = "{} is an optimizer around another: wrap the one inside it, and give it the result"


def check_call(kind: type, args: Sequence[object], settings: Mapping[str, object]) -> None:
    """A call with a model among its first arguments, or as of torch's own optimizers: show the right one."""
    if any(isinstance(one, nn.Module) for one in args[:2]):
        raise TypeError(
            f"{kind.__name__}: the first argument is the optimizer, then its level; the model goes to model="
        )
    base = args[0] if args else None
    if isinstance(base, Optimizer | str) or not isinstance(base, Iterable | type):
        return
    name = base.__name__ if isinstance(base, type) else "torch.optim.SGD"
    known = inspect.signature(kind).parameters
    own, theirs = (
        ", ".join(f"{k}={v!r}" for k, v in settings.items() if (k in known) is mine) for mine in (True, False)
    )
    around = f"{name}(model.parameters(), {theirs or 'lr=0.1'})"
    raise TypeError(
        f"{kind.__name__} wraps an optimizer: pass an optimizer instance, such as {around}:\n"
        f"    {kind.__name__}({around}, {own or '...'})"
    )


def check_base(base: object, own_keys: Iterable[str]) -> None:
    attributes = getattr(base, "__dict__", {}).values()
    parts = [part for value in attributes for part in (value if isinstance(value, list | tuple) else [value])]
    held = [part for part in parts if isinstance(part, Optimizer)]
    if held and not isinstance(base, Optimizer):  # as schedule-free's wrapper
        raise TypeError(AROUND.format(type(base).__name__))
    if not isinstance(base, Optimizer):
        raise TypeError(f"the base must be a torch.optim.Optimizer, not {type(base).__name__}")
    if hasattr(base, "points"):
        raise TypeError(f"the base is a {type(base).__name__} already: wrap the optimizer inside it instead")
    if other := base.__dict__.get("_wrapped_by"):
        raise ValueError(
            f"this {type(base).__name__} is wrapped by {other} already and carries its levels: make a new one, or call "
            "release() on what wraps it"
        )
    for kind in type(base).__mro__:
        if reason := UNSERVED.get(kind.__name__):
            raise TypeError(f"{kind.__name__} is not served: {reason}")
    if any(isinstance(p, UninitializedParameter) for group in base.param_groups for p in group["params"]):
        raise ValueError("a lazy layer has no weights yet: run one batch through the model, then make the optimizer")
    theirs, own = ({id(p) for one in opts for g in one.param_groups for p in g["params"]} for opts in (held, [base]))
    if isinstance(getattr(type(base), "param_groups", None), property) or theirs & own:
        raise TypeError(AROUND.format(type(base).__name__))
    needed = inspect.signature(base.step).parameters.get("closure")
    if needed is not None and needed.default is inspect.Parameter.empty:
        raise TypeError(f"{type(base).__name__} is not served: its step() needs a closure, and is called without one")
    if shared := [key for key in own_keys if key in base.defaults]:  # as Adadelta has a rho
        raise TypeError(
            f"{type(base).__name__} has a setting {shared[0]!r} of its own, which would be taken for this method's "
            "level: use another base"
        )


def check_model(model: object, parameters: Iterable[Tensor]) -> None:
    if model is None:
        return
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be the nn.Module that is trained, not {type(model).__name__}")
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise TypeError(FSDP1)
    if not {id(p) for p in model.parameters()} & {id(p) for p in parameters}:
        raise ValueError(
            f"model: this {type(model).__name__} has none of the parameters that the optimizer updates: pass the model "
            "that is trained, and make the optimizer after what replaces its parameters"
        )


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")


def check_level(level: object, meaning: str = "the noise level is ||n|| / ||w||") -> None:
    """A level on a device is taken as it is: looking at it would make the host wait."""
    if isinstance(level, Tensor):
        if level.numel() != 1:
            raise ValueError(f"{meaning}: a tensor must have one element, not {level.numel()}")
        if level.device.type != "cpu":
            return
        level = level.item()
    if isinstance(level, bool) or not isinstance(level, Real) or not math.isfinite(level) or level < 0:
        raise ValueError(f"{meaning}: a finite number of at least 0, not {level!r}")
    if float(level) > LARGEST and "||w||" in meaning:
        raise ValueError(f"{meaning}: {level!r} would drown the weights; {level!r} % is {float(level) / 100:g}")


def check_chosen(perturb: Iterable[Tensor] | None, parameters: Iterable[Tensor]) -> None:
    known, perturb = {id(p) for p in parameters}, list(perturb or ())
    if any(not isinstance(p, Tensor) for p in perturb):
        raise TypeError('perturb is a list of tensors, not of names: select(model, "conv") and the like make one')
    if any(id(p) not in known for p in perturb):
        raise ValueError(
            "perturb names a tensor that is in none of the base optimizer's parameter groups: put it into one, whose "
            "level its noise has; one that is frozen is not updated there"
        )


@torch.no_grad()
def check_movable(weights: Iterable[Tensor]) -> None:
    """Refuse weights of a class of their own, such as quantised ones, that lacks what noise needs."""
    for p in weights:
        if type(p) not in (Tensor, nn.Parameter):
            try:
                copy = p.detach().clone()
                torch._foreach_norm([copy])
                copy.add_(copy)
            except (NotImplementedError, RuntimeError, TypeError) as problem:
                raise TypeError(
                    f"weights of class {type(p).__name__}, as of quantised training, cannot be moved by noise: leave "
                    f"them out by perturb=select(model, where=...). {problem}"
                ) from problem


def check_seed(seed: int | None) -> int:
    """The seed; that of torch's global generator, read and not drawn from, where none was given."""
    if seed is None:
        return torch.initial_seed() % 2**63
    if isinstance(seed, bool) or not isinstance(seed, Integral) or not 0 <= seed < 2**63:
        raise ValueError(f"seed must be a whole number from 0 to 2**63 - 1, not {seed!r}")
    return int(seed)


def check_closure(closure: Any, name: str) -> None:
    """Lightning's closures know their trainer, which may want more of them than a gradient at each point."""
    module: Any = closure.args[0] if isinstance(closure, partial) and closure.args else None
    trainer = getattr(module, "_trainer", None)
    if trainer is None or not hasattr(module, "automatic_optimization"):
        return
    if not module.automatic_optimization:
        what = "manual optimization"
    elif trainer.accumulate_grad_batches > 1:
        what = f"accumulate_grad_batches={trainer.accumulate_grad_batches}"
    elif trainer.gradient_clip_val:
        what = f"gradient_clip_val={trainer.gradient_clip_val}"
    elif _overrides(module, "configure_gradient_clipping"):
        what = "a configure_gradient_clipping() of the module's own"
    else:
        return
    raise RuntimeError(
        f"{name} under Lightning with {what} would step with something else than the mean over its points: give the "
        "Trainer the callback ssgd.integrations.lightning.SymmetricNoise(), which finds this optimizer"
    )


def _overrides(module: object, hook: str) -> bool:
    """Say whether a class overrides a hook that one further up, Lightning's, defines."""
    return sum(hook in vars(kind) for kind in type(module).__mro__) > 1
