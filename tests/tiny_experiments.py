"""Experiments of runs that take a moment."""

import signal
from dataclasses import replace

from ssgd.lab.recipes.digits import digits
from ssgd.lab.reproduce import Experiment
from ssgd.lab.train.rundir import RunDir


def tiny(name="one", **changes):
    return replace(digits(), name=f"test/{name}", phases="1", lr=(0.1,), train_limit=100, test_limit=50, **changes)


def made_of(*recipes, name="test", **more):
    return Experiment(name, "a test", "tiny runs", lambda scale: list(recipes), **more)


def cut_after(epochs, patch):
    """Runs get a signal to stop when they have so many epochs behind them."""
    plain = RunDir.add_metrics

    def add_metrics(self, row):
        plain(self, row)
        if len(self.metrics()) == epochs:
            signal.raise_signal(signal.SIGTERM)

    patch.setattr(RunDir, "add_metrics", add_metrics)
