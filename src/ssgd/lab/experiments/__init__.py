"""Every table and figure of the paper, and our own questions, as cells: planned, run, and kept as rows of results."""

from .catalogue import EXPERIMENTS, experiment, experiments, get, listing, names
from .cells import SCALES, Cell, Experiment, Picture
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
