"""Every method by name: how to build it around a base, what a step costs, what can be set."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..core.parallel import bare
from ..core.point_optimizer import PointOptimizer
from ..imported import did_you_mean, imported
from ..optimizer import SSGD
from .averaging import Averaging
from .dropconnect import dropconnect
from .dropout import dropout_on_dense
from .entropy_sgd import EntropySGD
from .momentum_sam import MomentumSAM
from .nso import NSO
from .one_sided import OneSided
from .plain import Plain
from .rwp import RWP
from .sam import SAM
from .sam_at_intervals import SAMAtIntervals

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
    one_pass: str | None = None  # both signs in one forward: what batch-norm then normalises by, "halves" or "batch"
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

    def settled_level(self, level: float | None) -> float | None:
        """Returns the level as given, else the method's default; None where the method has no level."""
        return None if not self.settings else self.settings[0].default if level is None else level

    def batches(self, opt: PointOptimizer, *batch: Any) -> Iterator[tuple[AbstractContextManager[Any], Any]]:
        """``(point, batch)`` for every pass of a step: the same loop for every method. ::

        for point, (xb, yb) in method.batches(opt, x, y):
            with point:
                loss_fn(model(xb), yb).backward()
        opt.step()
        """
        whole = batch[0] if len(batch) == 1 else batch
        if self.halves:
            yield from opt.split(*batch)
        elif self.one_pass is not None:
            assert isinstance(opt, SSGD)
            yield opt.one_pass(batch_norm=self.one_pass), whole
        else:
            for point in opt.points():
                yield point, whole


BOTH = 0.29  # the paper's 0.5 as a ratio, paper_level(0.5): the level of the better rows of its tables
SPLIT = 0.15  # the best of three on held-out images of CIFAR-100 (results/tune.jsonl)
ONE_SIDED = 0.17  # where the paper's SmoothOut is near its peak, paper_level(0.3)
RATIO = "The noise level, ||n|| / ||w|| in each layer."
GAMMA = "Gamma: every weight gets noise of gamma times the norm of its filter."


def _noise(default: float, high: float, help: str = RATIO) -> tuple[Setting, ...]:
    return (Setting("noise", default, 0.0, high, help),)


_methods = [
    Method("base", "Takes the base optimizer's own step.", Plain, 1),
    Method(
        "base-2x",
        "Gives the base optimizer twice the epochs, which is what two passes could have bought.",
        Plain,
        1,
        epochs=2,
    ),
    Method(
        "sgdr",
        "Anneals the base by cosines with warm restarts: SGDR (arXiv:1608.03983).",
        Plain,
        1,
        warm_restarts=True,
    ),
    Method("halves", "Passes the batch in two halves without noise, the control of split.", Plain, 1, halves=True),
    Method("both", "Takes gradients at w + n and w - n on the whole batch: S-SGD.", SSGD, 2, _noise(BOTH, 1.0)),
    Method("both-x2", "Takes two noise pairs a step: S-SGD x2.", SSGD, 4, _noise(BOTH, 1.0), fixed={"pairs": 2}),
    Method("split", "Takes +n on one half of the batch and -n on the other.", SSGD, 1, _noise(SPLIT, 0.6), halves=True),
    Method(
        "one-pass",
        "Takes the halves of split in one forward and one backward.",
        SSGD,
        1,
        _noise(SPLIT, 0.6),
        one_pass="halves",
    ),
    Method(
        "one-pass-batch",
        "Takes one-pass with batch-norm over the whole batch, which sees both points.",
        SSGD,
        1,
        _noise(0.1, 0.4),
        one_pass="batch",
    ),
    Method(
        "mirror",
        "Takes +n on even ranks and -n on odd ranks of a data-parallel training.",
        SSGD,
        1,
        _noise(BOTH, 1.0),
        fixed={"mode": "mirror"},
    ),
    Method(
        "both-sgdr", "Takes both signs under the warm restarts of SGDR.", SSGD, 2, _noise(BOTH, 1.0), warm_restarts=True
    ),
    Method("one-sided", "Adds Gaussian noise of fixed norm with one sign.", OneSided, 1, _noise(ONE_SIDED, 1.0)),
    Method(
        "one-sided-halves",
        "Adds Gaussian noise with one sign, drawn afresh for each half of the batch.",
        OneSided,
        1,
        _noise(ONE_SIDED, 1.0),
        halves=True,
    ),
    Method(
        "smoothout",
        "Adds uniform noise with one sign: SmoothOut.",
        OneSided,
        1,
        _noise(ONE_SIDED, 1.0),
        fixed={"distribution": "uniform"},
    ),
    Method(
        "smoothout-x2",
        "Averages SmoothOut over two draws.",
        OneSided,
        2,
        _noise(ONE_SIDED, 1.0),
        fixed={"distribution": "uniform", "pairs": 2},
    ),
    Method(
        "nso",
        "Takes the pair with Gaussian noise of absolute size: NSO.",
        NSO,
        2,
        _noise(0.01, 0.1, "Sigma, the absolute standard deviation of the noise."),
    ),
    Method(
        "rwp",
        "Adds filter-wise Gaussian noise in one pass: RWP.",
        RWP,
        1,
        _noise(0.01, 0.05, GAMMA),
        fixed={"share": 1.0},
    ),
    Method(
        "m-arwp",
        "Mixes the gradient under adaptive filter-wise noise with the clean gradient: m-ARWP.",
        RWP,
        2,
        (
            *_noise(0.01, 0.05, GAMMA),
            Setting("share", 0.5, 0.1, 0.9, "Lambda, the share of the noisy gradient."),
            Setting("eta", 1.0, 0.0, 10.0, "How much past gradients damp the noise."),
            Setting("beta", 0.99, 0.0, 0.999, "How long past gradients are remembered."),
        ),
        fixed={"adaptive": True},
    ),
    Method(
        "sam",
        "Takes the gradient where the loss is worst within rho, to first order: SAM.",
        SAM,
        2,
        (Setting("rho", 0.05, 0.0, 0.5, "The length of the climb."),),
    ),
    Method(
        "asam",
        "Takes SAM's climb in units of each weight: ASAM.",
        SAM,
        2,
        (Setting("rho", 0.5, 0.0, 5.0, "The length of the climb."),),
        fixed={"adaptive": True},
    ),
    Method(
        "msam",
        "Takes the gradient up the slope that past steps came down: momentum-SAM.",
        MomentumSAM,
        1,
        (Setting("rho", 0.3, 0.0, 5.0, "length of the climb"),),
    ),
    Method(
        "sam-10",
        "Takes a step of SAM in every tenth step, and the base's in the others.",
        SAMAtIntervals,
        1.1,
        (Setting("rho", 0.05, 0.0, 0.5, "length of the climb"),),
        fixed={"interval": 10},
    ),
    Method(
        "dropconnect",
        "Drops weights of dense layers at random: DropConnect.",
        Plain,
        1,
        (Setting("p", 0.2, 0.0, 0.9, "The share of weights that are dropped."),),
        transform=dropconnect,
    ),
    Method(
        "dropout",
        "Drops units of the input of the last dense layer at random.",
        Plain,
        1,
        (Setting("p", 0.2, 0.0, 0.9, "The share of units that are dropped."),),
        transform=dropout_on_dense,
    ),
    Method("swa", "Averages the weights over steps: SWA.", Averaging, 1, fixed={"kind": "swa"}),
    Method(
        "ema",
        "Keeps a moving average of the weights: EMA.",
        Averaging,
        1,
        (Setting("decay", 0.999, 0.9, 0.9999, "The decay of the average in a step."),),
        fixed={"kind": "ema"},
    ),
    Method(
        "entropy-sgd",
        "Descends the local entropy by Langevin steps around w: Entropy-SGD.",
        EntropySGD,
        20,
        (
            Setting("noise", 1e-4, 0.0, 1e-2, "Epsilon, the thermal noise."),
            Setting("inner_lr", 0.1, 0.01, 1.0, "The learning rate of the Langevin steps."),
            Setting("gamma", 1e-2, 1e-4, 1.0, "The strength of the pull back to w."),
        ),
        fixed={"inner_steps": 20},
        off_at_zero=False,
    ),
]
METHODS: dict[str, Method] = {method.name: method for method in _methods}


ELSEWHERE = {"s-sgd": "both", "ssgd": "both", "sgd": "base", "adam": "base"}  # names that one would try


def get(name: str) -> Method:
    """The method of that name, or the one that ``"package.module:function"`` of your own returns."""
    if ":" in name:
        return _own(name)
    if name not in METHODS:
        hint = did_you_mean(name, METHODS, f"use one of {', '.join(METHODS)}", ELSEWHERE)
        raise ValueError(f"no method called {name!r}: {hint}")
    return METHODS[name]


@cache
def _own(name: str) -> Method:
    found = imported(name)()
    if not isinstance(found, Method):
        raise ValueError(f"{name} returned {type(found).__name__}: let it return a Method of ssgd.methods")
    return replace(found, name=name)
