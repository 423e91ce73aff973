"""What older versions of torch lack, and a sentence that refuses it."""

from __future__ import annotations

import re

import torch

OLDEST = (2, 6)  # as pyproject.toml asks for
FSDP2 = (2, 9)  # before, fully_shard fails on the CPU


def at_least(version: tuple[int, int]) -> bool:
    """Return whether this torch is that version or a newer one."""
    major, minor = map(int, re.findall(r"\d+", torch.__version__)[:2])
    return (major, minor) >= version


def need(version: tuple[int, int], what: str) -> None:
    """Raise unless this torch is new enough for ``what``, the subject of the sentence."""
    if not at_least(version):
        raise ImportError(
            f"{what} needs torch {'.'.join(map(str, version))} or newer, and this is {torch.__version__}: "
            "pip install -U torch"
        )


def inductor_has(option: str) -> bool:
    """Return whether torch.compile takes this option of inductor; it raises on those that it does not know."""
    from torch._inductor import list_options  # seconds to import, and there once something compiles

    return option in list_options()


def recompile_limit() -> str:
    """Return the name of dynamo's setting for how often it compiles one function: another one before torch 2.7."""
    from torch._dynamo import config

    return "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
