"""Training: a recipe in, a run directory out."""

from .engine import Listener, compare, train
from .recipe import Execution, Recipe
from .rundir import RunDir, find_runs

__all__ = ["Execution", "Listener", "Recipe", "RunDir", "compare", "find_runs", "train"]
