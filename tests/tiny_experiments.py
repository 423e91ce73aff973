"""Experiments of runs that take a moment."""

from dataclasses import replace

from ssgd.recipes.digits import digits
from ssgd.reproduce import Experiment


def tiny(name="one", **changes):
    return replace(digits(), name=f"test/{name}", phases="1", lr=(0.1,), train_limit=100, test_limit=50, **changes)


def made_of(*recipes, name="test", **more):
    return Experiment(name, "a test", "tiny runs", lambda scale: list(recipes), **more)
