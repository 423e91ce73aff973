"""Every method by name: how to build it around a base, what a step costs, what can be set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..core.parallel import bare
from ..core.passes import Point
from ..core.point_optimizer import PointOptimizer
from ..optimizer import SSGD
from .averaging import Averaging
from .dropconnect import dropconnect
from .dropout import dropout_on_dense
from .entropy_sgd import EntropySGD
from .nso import NSO
from .one_sided import OneSided
from .plain import Plain
from .rwp import RWP
from .sam import SAM

LEVELS = {"noise", "rho", "p"}  # what the methods call theirs


@dataclass(frozen=True)
class Setting:
    """A hyper-parameter: its default and the range worth searching."""

    name: str
    default: float
    low: float
    high: float
    help: str


@dataclass(frozen=True)
class Method:
    """One way to train. ``build`` wraps a base optimizer; ``batches`` yields what to run forward and backward."""

    name: str
    description: str
    make: Callable[..., PointOptimizer]
    passes: float  # forward and backward passes over the batch, a step
    settings: tuple[Setting, ...] = ()
    halves: bool = False  # each point sees half of the batch
    fixed: dict[str, Any] = field(default_factory=dict)  # options that make the method what it is
    transform: Callable[[nn.Module, float], object] | None = None  # put on the model before training
    epochs: float = 1.0  # times those of the run it is compared with
    off_at_zero: bool = True  # at level 0 a step is the base's own, and one pass
    warm_restarts: bool = False  # trains under torch's CosineAnnealingWarmRestarts

    def build(self, base: Optimizer, model: nn.Module, **options: Any) -> PointOptimizer:
        """The optimizer. ``options`` are the settings, and what the method's class takes besides."""
        settings = {s.name: s.default for s in self.settings}
        if others := LEVELS & options.keys() - settings.keys():
            own = ", ".join(settings) or "none"
            raise TypeError(f"{self.name} has no setting {min(others)!r}; its settings: {own}")
        if self.transform is not None:
            self.transform(bare(model), options.pop("p", settings.pop("p")))
        return self.make(base, model=model, **{**settings, **self.fixed, **options})

    def takes_distribution(self) -> bool:
        """Whether the distribution of its noise can be chosen."""
        return self.make is SSGD and "distribution" not in self.fixed

    def settled_level(self, level: float | None, distribution: str) -> float | None:
        """The first setting as given, else its default, the same noise under every distribution; None: it has none."""
        if level is not None or not self.settings:
            return level if self.settings else None
        found = self.settings[0].default
        return float(f"{found * 3**0.5:.2g}") if distribution == "uniform" and self.takes_distribution() else found

    def batches(self, opt: PointOptimizer, *batch: Any) -> Iterator[tuple[Point, Any]]:
        """``(point, batch)`` for every pass of a step: the same loop for every method. ::

        for point, (xb, yb) in method.batches(opt, x, y):
            with point:
                loss_fn(model(xb), yb).backward()
        opt.step()
        """
        if self.halves:
            yield from opt.split(*batch)
        else:
            whole = batch[0] if len(batch) == 1 else batch
            for point in opt.points():
                yield point, whole


def _noise(default: float, high: float, help: str = "level, ||n|| / ||w|| in each layer") -> tuple[Setting, ...]:
    return (Setting("noise", default, 0.0, high, help),)


_peak = "level, peak of U(-a, a) in units of the layer's rms"
_methods = [
    Method("sgd", "the base optimizer", Plain, 1),
    Method("sgd-2x", "the base optimizer with twice the epochs: what two passes could have bought", Plain, 1, epochs=2),
    Method(
        "sgdr",
        "SGDR (arXiv:1608.03983): the base under cosine annealing with warm restarts",
        Plain,
        1,
        warm_restarts=True,
    ),
    Method("halves", "the base on the batch in two halves, no noise: split's control", Plain, 1, halves=True),
    Method("ssgd", "S-SGD: gradients at w + n and w - n on the whole batch", SSGD, 2, _noise(0.25, 1.0)),
    Method("ssgd-x2", "S-SGD with two noise pairs a step", SSGD, 4, _noise(0.25, 1.0), fixed={"pairs": 2}),
    Method("split", "+n on one half of the batch, -n on the other", SSGD, 1, _noise(0.15, 0.6), halves=True),
    Method(
        "mirror", "data parallel: even ranks +n, odd ranks -n", SSGD, 1, _noise(0.25, 1.0), fixed={"mode": "mirror"}
    ),
    Method("ssgdr", "S-SGD under SGDR's warm restarts", SSGD, 2, _noise(0.25, 1.0), warm_restarts=True),
    Method("noise", "one-sided Gaussian noise of fixed norm", OneSided, 1, _noise(0.2, 1.0)),
    Method(
        "noise-halves",
        "one-sided Gaussian noise, a draw for each half of the batch",
        OneSided,
        1,
        _noise(0.2, 1.0),
        halves=True,
    ),
    Method(
        "smoothout",
        "SmoothOut: one-sided uniform noise",
        OneSided,
        1,
        _noise(0.3, 1.0, _peak),
        fixed={"distribution": "uniform"},
    ),
    Method(
        "smoothout-x2",
        "SmoothOut averaged over two draws",
        OneSided,
        2,
        _noise(0.3, 1.0, _peak),
        fixed={"distribution": "uniform", "pairs": 2},
    ),
    Method("nso", "NSO: the pair with absolute Gaussian noise", NSO, 2, _noise(0.01, 0.1, "sigma, absolute")),
    Method(
        "rwp",
        "RWP: filter-wise noise, one pass",
        RWP,
        1,
        _noise(0.01, 0.05, "gamma: noise of gamma * ||filter|| in every weight"),
        fixed={"share": 1.0},
    ),
    Method(
        "m-arwp",
        "m-ARWP: adaptive filter-wise noise mixed with the clean gradient",
        RWP,
        2,
        (
            *_noise(0.01, 0.05, "gamma: noise of gamma * ||filter|| in every weight"),
            Setting("share", 0.5, 0.1, 0.9, "lambda, the noisy gradient's share"),
            Setting("eta", 1.0, 0.0, 10.0, "how much past gradients damp the noise"),
            Setting("beta", 0.99, 0.0, 0.999, "memory of past gradients"),
        ),
        fixed={"adaptive": True},
    ),
    Method(
        "sam",
        "SAM: the gradient up the steepest slope",
        SAM,
        2,
        (Setting("rho", 0.05, 0.0, 0.5, "length of the climb"),),
    ),
    Method(
        "asam",
        "ASAM: SAM in units of each weight",
        SAM,
        2,
        (Setting("rho", 0.5, 0.0, 5.0, "length of the climb"),),
        fixed={"adaptive": True},
    ),
    Method(
        "dropconnect",
        "DropConnect on dense layers",
        Plain,
        1,
        (Setting("p", 0.2, 0.0, 0.9, "share of weights dropped"),),
        transform=dropconnect,
    ),
    Method(
        "dropout",
        "dropout on the input of the last dense layer",
        Plain,
        1,
        (Setting("p", 0.2, 0.0, 0.9, "share of units dropped"),),
        transform=dropout_on_dense,
    ),
    Method("swa", "SWA: the mean of the weights over steps", Averaging, 1, fixed={"kind": "swa"}),
    Method(
        "ema",
        "EMA: a moving average of the weights",
        Averaging,
        1,
        (Setting("decay", 0.999, 0.9, 0.9999, "of the average, a step"),),
        fixed={"kind": "ema"},
    ),
    Method(
        "entropy-sgd",
        "Entropy-SGD: Langevin steps around w",
        EntropySGD,
        20,
        (
            Setting("noise", 1e-4, 0.0, 1e-2, "epsilon, thermal noise"),
            Setting("inner_lr", 0.1, 0.01, 1.0, "of the Langevin steps"),
            Setting("gamma", 1e-2, 1e-4, 1.0, "pull back to w"),
        ),
        fixed={"inner_steps": 20},
        off_at_zero=False,
    ),
]
METHODS: dict[str, Method] = {method.name: method for method in _methods}


def get(name: str) -> Method:
    """The method of that name."""
    if name not in METHODS:
        raise ValueError(f"no method called {name!r}: use one of {', '.join(METHODS)}")
    return METHODS[name]
