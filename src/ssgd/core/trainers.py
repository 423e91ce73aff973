"""Trainers that know nothing of points: where they would train with the base alone, and what to do instead."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

CALLBACK = "give the Trainer the callback ssgd.integrations.lightning.SymmetricNoise(), which finds this optimizer"
REMEDIES = {
    "transformers": "train with ssgd.integrations.transformers.SymmetricTrainer",
    "lightning": CALLBACK,
    "pytorch_lightning": CALLBACK,
    "accelerate": "run forward and backward inside points(), which ssgd.integrations.accelerate.prepare() gives you",
}


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
        f"{name} under Lightning with {what} would step with something else than the mean over its points: {CALLBACK}"
    )


def _overrides(module: object, hook: str) -> bool:
    """Whether a class defines a hook anew that one further up, Lightning's, defines."""
    return sum(hook in vars(kind) for kind in type(module).__mro__) > 1


def remedy() -> str | None:
    """What to do where one of these packages calls; None where the caller's own loop does."""
    calling, frame = set(), sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        calling.add(str(frame.f_globals.get("__name__")).partition(".")[0])
    return next((REMEDIES[package] for package in REMEDIES if package in calling), None)
