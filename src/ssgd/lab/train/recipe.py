"""A training as data: everything that decides its result, and nothing else."""

from __future__ import annotations

import difflib
import math
import types
import typing
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import PurePath
from typing import Any

from ...core.batchnorm import POLICIES
from ...core.checks import check_choice, check_count
from ...core.noise import DISTRIBUTIONS
from ...core.selection import KINDS
from ...methods import registry
from ..data.faults import BAD
from ..data.speech.frames import NORMALISED
from .phases import Schedule, parse

PRECISIONS = ("auto", "fp32", "tf32", "bf16")
NEED_EVERY_PASS = ("sam", "asam", "entropy-sgd")


@dataclass(frozen=True)
class Recipe:
    """What is trained, on what and how. Two runs of one recipe and seed end the same."""

    name: str = "custom"
    """What the runs are called."""
    model: str = "resnet20"
    """A name of ssgd.lab.models (`ssgd models`), or package.module:function of your own."""
    data: str = "cifar100"
    """A name of ssgd.lab.data, or a folder with train/ and val/ inside."""
    train_limit: int | None = None
    """Only the first so many training images."""
    test_limit: int | None = None
    """Only the first so many test images."""
    held_out: int = 0
    """So many training images are kept apart and stand in for the test set: for tuning."""
    augment: bool = True
    """Crop and flip at random."""
    image_size: int = 224
    """Of images read from a folder."""
    normalise: str = "speaker"
    """Over what the features of speech are normalised: speaker, global or none."""
    spec_augment: bool = False
    """Leave out bands and stretches of the features of speech at random."""
    dropout: float | None = None
    """Of the model's own dropout layers; None: what the model has."""
    bad: str = "raise"
    """A row or file of the data that cannot be used ends the training (raise) or is left out and counted (skip)."""

    method: str = "sgd"
    """A name of ssgd.methods (`ssgd methods`)."""
    level: float | None = None
    """The method's first setting: noise level, SAM's rho, …; None: the method's default."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """The method's other settings by name."""
    distribution: str = "sphere"
    """Of S-SGD's noise."""
    perturb: str = "all"
    """Which layers get noise: all, conv, dense, recurrent or embedding. DropConnect has dense unless told otherwise."""
    bn_stats: str = "both"
    """What noisy passes, and SAM's, do to batch-norm's running statistics."""
    per_rank: bool | None = None
    """Whether each rank draws noise of its own; None: the method's default."""

    phases: str = "75-50-50"
    """Epochs of each phase; S marks those under the method: 75-25S-25S. SGDR: 10*2."""
    lr: tuple[float, ...] = (0.1, 0.01, 0.001)
    """The learning rate, of all phases or of each."""
    epochs: int | None = None
    """Where restarts (10*2) end."""
    anneal: str = "steps"
    """steps: the rates as given; cosine: the first of them, falling to 0 over the training."""
    warm_up: float = 0.0
    """Epochs over which the rate rises from 0."""
    lr_for_batch: int | None = None
    """The batch that lr is meant for: another batch scales it in proportion."""

    decay: float = 1.0
    """What the rate is divided by, every epoch after ``decay_after``."""
    decay_after: int = 0
    """Epochs at the full rate before ``decay`` sets in."""
    clip: float | None = None
    """The largest norm of the gradient."""

    optimizer: str = "sgd"
    """The base: sgd, adam or adamw."""
    momentum: float = 0.9
    """SGD's."""
    nesterov: bool = False
    """SGD's."""
    weight_decay: float = 1e-4
    """On the parameters that ``decayed`` says."""
    decayed: str = "all"
    """all parameters, or weights: those of two or more dimensions, not batch-norm's and no biases."""
    batch: int = 128
    """Images a step, over all devices."""
    devices: int = 1
    """As if so many shared the batch, each with batch-norm and noise of its own; 1: as many as there are processes."""

    precision: str = "auto"
    """fp32, tf32 or bf16 (autocast over fp32 weights); auto: bf16 on a GPU that has it, else fp32."""
    parallel: str = "ddp"
    """With several processes: ddp or fsdp."""
    sync_batchnorm: bool = False
    """Batch-norm over all devices instead of each."""
    recompute_bn: bool = False
    """Evaluate with batch-norm statistics gathered again with the clean weights."""
    evaluate_every: int = 1
    """Epochs between evaluations; the last is always evaluated."""
    seeds: tuple[int, ...] = (0,)
    """A run for each."""

    def __post_init__(self) -> None:
        check_choice("normalise", self.normalise, NORMALISED)
        check_choice("bad", self.bad, BAD)
        check_choice("distribution", self.distribution, tuple(DISTRIBUTIONS))
        check_choice("perturb", self.perturb, ("all", *KINDS))
        check_choice("bn_stats", self.bn_stats, POLICIES)
        check_choice("anneal", self.anneal, ("steps", "cosine"))
        check_choice("decayed", self.decayed, ("all", "weights"))
        check_choice("optimizer", self.optimizer, ("sgd", "adam", "adamw"))
        check_choice("precision", self.precision, PRECISIONS)
        check_choice("parallel", self.parallel, ("ddp", "fsdp"))
        check_count("batch", self.batch)
        check_count("evaluate_every", self.evaluate_every)
        if PurePath(self.name).is_absolute() or ".." in PurePath(self.name).parts:
            raise ValueError(f"name={self.name} would lie outside the folder of the runs: say with out= where they go")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be different numbers, at least one, not {self.seeds}")
        if any(not 0 <= seed < 2**63 for seed in self.seeds):
            raise ValueError(f"a seed is a whole number from 0 to 2**63 - 1, not one of {self.seeds}")
        if not self.lr or any(not math.isfinite(rate) or rate < 0 for rate in self.lr):
            raise ValueError(f"lr must be finite and at least 0, not {self.lr}")
        if self.lr_for_batch is not None:
            check_count("lr_for_batch", self.lr_for_batch)
        if not 0 < self.decay < math.inf or (self.clip is not None and not self.clip > 0):
            raise ValueError(f"decay and clip must be above 0, and decay finite, not {self.decay} and {self.clip}")
        for name in ("momentum", "weight_decay", "warm_up", "held_out"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ValueError(f"{name} must be finite and not negative, not {value}")
        known = [setting.name for setting in registry.get(self.method).settings][1:]
        if unknown := [key for key in self.settings if key not in known]:
            raise ValueError(
                f"{self.method} has no setting {unknown[0]!r} beside its level: {', '.join(known) or 'none'}"
            )
        self.schedule  # noqa: B018 - reads the phases, so that a mistake shows at once
        self._check_devices()

    def check_method(self) -> None:
        """Before a training, whose row would have the name of a method, or a cost, that is not its own."""
        if self.method != "sgd" and all(phase.method != self.method for phase in self.schedule.phases):
            raise ValueError(
                f"method={self.method} trains none of phases={self.phases}: mark some with S, or leave the method out"
            )
        if self.warm_up > self.schedule.epochs:
            raise ValueError(f"warm_up={self.warm_up:g} is longer than the {self.schedule.epochs} epochs there are")
        if self.method == "m-arwp" and self.settings.get("share") == 1:
            raise ValueError("settings.share=1 leaves no clean gradient to mix with, at one pass: use method=rwp")

    def _check_devices(self) -> None:
        check_count("devices", self.devices)
        if self.devices == 1:
            return
        if self.batch % self.devices:
            raise ValueError(
                f"batch={self.batch} cannot be divided evenly among {self.devices} devices: use a multiple of"
                f" {self.devices}"
            )
        if self.sync_batchnorm or self.parallel == "fsdp":
            raise ValueError("devices are replicas with batch-norm of their own: no sync_batchnorm, and parallel=ddp")
        if needing := [phase.method for phase in self.schedule.phases if phase.method in NEED_EVERY_PASS]:
            raise ValueError(
                f"method={needing[0]} needs every pass's mean over the devices: leave devices=1 and start"
                f" torchrun --nproc-per-node {self.devices}"
            )

    @property
    def schedule(self) -> Schedule:
        scale = 1.0 if self.lr_for_batch is None else self.batch / self.lr_for_batch
        rates = tuple(rate * scale for rate in self.lr)
        return parse(
            self.phases,
            rates,
            self.method,
            self.level,
            epochs=self.epochs,
            anneal=self.anneal,
            warm_up=self.warm_up,
            decay=self.decay,
            decay_after=self.decay_after,
        )

    def with_changes(self, changes: Iterable[str]) -> Recipe:
        """``key=value`` texts applied: ``lr=0.1,0.01``, ``method=split:0.15``, ``settings.share=0.3``."""
        changed = override(self, changes)
        if changed.level not in (None, self.level) and not registry.get(changed.method).settings:
            raise ValueError(
                f"{changed.method} has no level to set to {changed.level:g}: give a method too, such as method=ssgd:0.2"
            )
        return changed

    def differences(self, other: Recipe) -> dict[str, tuple[Any, Any]]:
        """The fields in which they differ: mine, the other's."""
        mine, theirs = self.to_json(), other.to_json()
        return {key: (mine[key], theirs[key]) for key in mine if mine[key] != theirs[key]}

    def to_json(self) -> dict[str, Any]:
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Recipe:
        """Rebuilt from what to_json() gave, also by an earlier version with fewer fields."""
        known = {f.name for f in fields(cls)}
        if unknown := [key for key in found if key not in known]:
            raise ValueError(f"a recipe has no field {unknown[0]!r}: it comes from another version of ssgd")
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items()}
        hints = typing.get_type_hints(cls)
        if wrong := [key for key, value in values.items() if not _is(hints[key], value)]:
            raise ValueError(f"the field {wrong[0]!r} of a recipe cannot be {found[wrong[0]]!r}")
        return cls(**values)

    def __str__(self) -> str:
        plain, schedule = Recipe(), self.schedule
        told = {key: value for key, value in self.__dict__.items() if key in MAIN or value != getattr(plain, key)}
        lines = [f"{key} = {value!r}" for key, value in told.items()]
        length = "1 epoch that costs" if schedule.epochs == 1 else f"{schedule.epochs} epochs that cost"
        cost = f"{length} as much as {schedule.passes:g} of plain SGD"
        return "\n".join([*lines, f"# {schedule}", f"# {cost}", *self._remarks()])

    def _remarks(self) -> Iterable[str]:
        for name, level in dict.fromkeys((phase.method, phase.level) for phase in self.schedule.phases):
            method = registry.get(name)
            a = method.settled_level(level, self.distribution)
            if self.distribution == "uniform" and method.takes_distribution() and a is not None:
                ratio = a / 3**0.5
                yield f"# {name}: level {a:g} of distribution uniform is a noise of {ratio:.2g} of the weights' norm"
        settings = registry.get(self.method).settings
        if settings and self.level is not None and self.level > 2 * settings[0].high:
            low, high = settings[0].low, settings[0].high
            yield f"# {self.method} at {self.level:g} may well learn nothing: worth trying are {low:g} to {high:g}"


MAIN = ("name", "model", "data", "method", "level", "phases", "lr", "weight_decay", "batch", "seeds")

Configuration = typing.TypeVar("Configuration")


def override(config: Configuration, changes: Iterable[str]) -> Configuration:
    """A copy of a frozen dataclass with ``key=value`` texts applied, read by the field's type."""
    hints = typing.get_type_hints(type(config))
    nested = {key for key in hints if isinstance(getattr(config, key), Mapping)}
    values: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        key = key.strip().replace("-", "_")
        name, _, inner = key.partition(".")
        if not equals or name not in hints or bool(inner) != (name in nested):
            keys = [f"{key}.NAME" if key in nested else key for key in hints]
            near = difflib.get_close_matches(name, hints, 1) if name not in hints else []
            hint = f"did you mean {near[0]}?" if near else f"write key=value with one of the keys {', '.join(keys)}"
            raise ValueError(f"cannot use {change!r}: {hint}")
        if inner:
            values[name] = {**values.get(name, getattr(config, name)), inner: read_value(key, float, text)}
        elif key == "method" and ":" in text:
            values["method"], _, level = text.partition(":")
            values["level"] = read_value("level", float, level)
        else:
            values[name] = read_value(name, hints[name], text)
    if values.get("method", getattr(config, "method", None)) != getattr(config, "method", None):
        values.setdefault("level", None)  # a level means another thing for another method
    return replace(config, **values)  # type: ignore[type-var]


def _is(kind: Any, value: Any) -> bool:
    """Whether a value that JSON gave is of a field's type."""
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return any(_is(option, value) for option in options)
    if origin is tuple:
        return isinstance(value, tuple) and all(_is(options[0], one) for one in value)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return isinstance(value, origin or kind)


def read_value(name: str, kind: Any, text: str) -> Any:
    """``text`` as a value of type ``kind``."""
    text = text.strip()
    options = typing.get_args(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        if text.lower() == "none":
            return None
        return read_value(name, next(option for option in options if option is not type(None)), text)
    if typing.get_origin(kind) is tuple:
        return tuple(read_value(name, options[0], part) for part in text.strip("()").split(",") if part.strip())
    if kind is bool:
        if text.lower() not in ("true", "false", "yes", "no", "1", "0"):
            raise ValueError(f"{name} is true or false, not {text!r}")
        return text.lower() in ("true", "yes", "1")
    try:
        return kind(text)
    except (TypeError, ValueError):
        raise ValueError(f"{name} takes {getattr(kind, '__name__', kind)}, not {text!r}") from None
