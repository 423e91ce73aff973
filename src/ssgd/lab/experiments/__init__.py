"""Every table and figure of the paper, and our own questions, as cells: planned, run, and kept as rows of results."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .catalogue import EXPERIMENTS, experiment, experiments, get, listing, names
from .cells import SCALES, Cell, Experiment, Picture

if TYPE_CHECKING:
    from .planning import Plan, plan, plans
    from .rows import Results

__all__ = [
    "EXPERIMENTS",
    "SCALES",
    "Cell",
    "Experiment",
    "Picture",
    "Plan",
    "Results",
    "experiment",
    "experiments",
    "get",
    "listing",
    "names",
    "plan",
    "plans",
]
LATER = {"Plan": "planning", "plan": "planning", "plans": "planning", "Results": "rows"}  # a training needs neither


def __getattr__(name: str) -> Any:
    if name not in LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{LATER[name]}", __name__), name)
