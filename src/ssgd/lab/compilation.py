"""torch.compile as functions of a fixed shape want it, and torch's own way where there is no compiler."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import torch

from .versions import inductor_has, recompile_limit

COMPILATIONS = 64  # of one function

Result = TypeVar("Result")


def compiled_for(device: torch.device, function: Callable[..., Result]) -> Callable[..., Result]:
    """``function`` compiled. From Hopper on, each kernel is set up while the one before still runs.

    Where only deterministic algorithms are asked for, nothing is chosen by a race between kernels.
    """
    options: dict[str, str | int | bool | Callable[..., Any]] = {}
    if torch.are_deterministic_algorithms_enabled():
        if not inductor_has("deterministic"):
            raise ImportError(
                f"torch.compile of torch {torch.__version__} has no deterministic mode, which 2.11 has: "
                "leave out deterministic=true, or add compile=false"
            )
        options["deterministic"] = True
    elif device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0):
        options |= dict.fromkeys(filter(inductor_has, ["triton.enable_pdl"]), True)
    return or_as_it_is(torch.compile(function, dynamic=False, options=options), function)


def or_as_it_is(compiled: Callable[..., Result], function: Callable[..., Result]) -> Callable[..., Result]:
    """Returns the compiled function, or from the first call on the function itself where compilation is impossible."""
    chosen = compiled

    def call(*arguments: Any) -> Result:
        nonlocal chosen
        try:
            return chosen(*arguments)
        except RuntimeError as problem:
            from torch._dynamo.exc import BackendCompilerFailed  # seconds to import, and there once something compiles

            if chosen is function or not isinstance(problem, BackendCompilerFailed):
                raise
            chosen, reason = function, str(problem).removeprefix("backend='inductor' raised:\n").partition("\n")[0]
            warnings.warn(f"torch.compile does not work here, and all goes on slower without: {reason}", stacklevel=2)
            return function(*arguments)

    return call


def allow_many_compilations() -> None:
    """For the whole process: torch compiles a function for eight nets or shapes, and the ninth would train without."""
    from torch._dynamo import config

    setattr(config, recompile_limit(), max(getattr(config, recompile_limit()), COMPILATIONS))


def start_compilers() -> None:
    """Start the processes in which torch compiles, to be called while there is other work to do.

    They take seconds, and torch begins with them at its first kernel only, compiling one kernel after the other itself
    until they are there.
    """
    with suppress(ImportError, AttributeError):  # torch's own business, which may go by another name
        from torch._inductor.async_compile import AsyncCompile

        AsyncCompile.warm_pool()
        AsyncCompile.use_process_pool()  # type: ignore[no-untyped-call]
