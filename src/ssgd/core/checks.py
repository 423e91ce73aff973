"""Bad arguments, answered with a sentence that says what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

FSDP1 = (
    "FullyShardedDataParallel keeps the weights flat, and layers cannot be told apart: use FSDP2, "
    "torch.distributed.fsdp.fully_shard"
)
SECOND_ORDER = {"AdaHessian", "Adahessian", "SophiaH"}  # their backward() needs create_graph=True
ELSEWHERE = {  # bases whose state is not their own
    "ZeroRedundancyOptimizer": "its state is in optimizers of its own, so that checkpoints would lack it; use FSDP2",
    "PostLocalSGDOptimizer": "wrap the optimizer inside it, and average the weights after step()",
}
AROUND = "{} is an optimizer around another: wrap the one inside it, and give it the result"


def check_base(base: object, own_keys: Iterable[str]) -> None:
    if isinstance(base, type):
        raise TypeError(f"pass an optimizer instance, such as {base.__name__}(model.parameters(), ...), not the class")
    held = [inside for inside in getattr(base, "__dict__", {}).values() if isinstance(inside, Optimizer)]
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
    if isinstance(base, torch.optim.LBFGS):
        raise TypeError("LBFGS is not served: it evaluates its closure at points of its own; use a first-order method")
    if reason := ELSEWHERE.get(type(base).__name__):
        raise TypeError(f"{type(base).__name__} is not served: {reason}")
    theirs, own = ({id(p) for one in opts for g in one.param_groups for p in g["params"]} for opts in (held, [base]))
    if isinstance(getattr(type(base), "param_groups", None), property) or theirs & own:
        raise TypeError(AROUND.format(type(base).__name__))
    if shared := [key for key in own_keys if key in base.defaults]:  # as Adadelta has a rho
        raise TypeError(
            f"{type(base).__name__} has a setting {shared[0]!r} of its own, which would be taken for this method's "
            "level: use another base"
        )
    if type(base).__name__ in SECOND_ORDER:
        raise TypeError(
            f"{type(base).__name__} is not served: it differentiates gradients again, at weights that have moved since"
        )
    if isinstance(base, torch.optim.SparseAdam):
        raise TypeError("SparseAdam is not served: sparse gradients cannot be averaged over points; use Adam")


def check_model(model: object) -> None:
    if model is not None and not isinstance(model, nn.Module):
        raise TypeError(f"model must be the nn.Module that is trained, not {type(model).__name__}")
    if model is not None and any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise TypeError(FSDP1)


def check_flat(parameters: Iterable[Tensor]) -> None:
    """Refuse FSDP1's parameters, by which it is known where the model is not given."""
    if any(getattr(p, "_is_flat_param", False) or getattr(p, "_fsdp_flattened", False) for p in parameters):
        raise TypeError(FSDP1)


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


def check_chosen(perturb: Iterable[Tensor] | None, parameters: Iterable[Tensor]) -> None:
    known, perturb = {id(p) for p in parameters}, list(perturb or ())
    if any(not isinstance(p, Tensor) for p in perturb):
        raise TypeError('perturb is a list of tensors, not of names: select(model, "conv") and the like make one')
    if any(id(p) not in known for p in perturb):
        raise ValueError("perturb names a tensor that is in none of the base optimizer's parameter groups")


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
    """Whether a class defines a hook anew that one further up, Lightning's, defines."""
    return sum(hook in vars(kind) for kind in type(module).__mro__) > 1


def did_you_mean(name: str, known: Iterable[str], otherwise: str, words: Mapping[str, str] | None = None) -> str:
    """Asks for the names that are nearly ``name``, or says ``otherwise`` where there are none.

    ``words``: what people may call a known name instead.
    """
    from difflib import get_close_matches

    names = {one: one for one in known} | dict(words or {})
    near = dict.fromkeys(names[match] for match in get_close_matches(name.lower(), names, 3))
    return f"did you mean {' or '.join(near)}?" if near else otherwise
