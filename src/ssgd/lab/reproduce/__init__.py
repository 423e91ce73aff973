"""Every table and figure of the paper, and our own questions: planned, run, and kept as rows of results."""

from .catalogue import EXPERIMENTS, get
from .experiment import SCALES, Experiment, Picture
from .planning import Plan, plan, plans
from .rows import Results
from .running import carry_out

__all__ = ["EXPERIMENTS", "SCALES", "Experiment", "Picture", "Plan", "Results", "carry_out", "get", "plan", "plans"]
