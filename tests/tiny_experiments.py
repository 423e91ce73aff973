"""Experiments of runs that take a moment."""

import signal
from dataclasses import replace

from ssgd.lab.experiments import Cell, Experiment, get
from ssgd.lab.train.rundir import RunDir


def tiny(name="one", **changes):
    return replace(get("digits"), name=f"test/{name}", phases="1", lr=(0.1,), train_limit=100, test_limit=50, **changes)


class AsItIs(Experiment):
    """The same runs at every scale."""

    def recipes(self, scale):
        return [cell.recipe for cell in self.cells]


def made_of(*recipes, name="test", **more):
    cells = tuple(Cell(recipe.name, lambda recipe=recipe: recipe) for recipe in recipes)
    return AsItIs(name, "a test", "tiny runs", cells, **more)


def cut_after(epochs, patch):
    """Runs get a signal to stop when they have so many epochs behind them."""
    plain = RunDir.add_metrics

    def add_metrics(self, row):
        plain(self, row)
        if len(self.metrics()) == epochs:
            signal.raise_signal(signal.SIGTERM)

    patch.setattr(RunDir, "add_metrics", add_metrics)
