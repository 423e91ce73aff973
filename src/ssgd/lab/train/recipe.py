"""A training as data: the recipe, which decides its result, and the execution, which does not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path, PurePath
from typing import Any

import torch

from ...core.batchnorm import POLICIES
from ...core.noise import DISTRIBUTIONS
from ...core.selection import KINDS
from ...methods import registry
from ..data.faults import BAD
from ..data.registry import NORMALISED
from . import fields
from .fields import declared
from .phases import NUMBER, Schedule, parse

NEED_EVERY_PASS = ("sam", "asam", "sam-10", "entropy-sgd")
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Recipe:
    """Everything that decides the result of a training. Two runs of one recipe and seed end the same."""

    name: str = declared("custom", "The name of the runs, and of the folder that they lie in.")
    model: str = declared("resnet20", "A model that `ssgd models` lists, or package.module:function of your own.")
    data: str = declared("cifar100", "A data set by name, or a folder with train/ and val/ inside.")
    train_limit: int | None = declared(None, "Takes only this many of the training samples.", least=1)
    test_limit: int | None = declared(None, "Takes only this many of the test samples.", least=1)
    held_out: int = declared(
        0,
        "Keeps this many training samples apart and tests on them instead of the test set, on a text's validation part"
        " whatever the number: for tuning.",
        least=0,
    )
    augment: bool = declared(True, "Crops and flips images at random.")
    image_size: int = declared(224, "The height and width to which images from a folder are brought.", least=1)
    normalise: str = declared(
        "speaker", "What the features of speech are normalised over: speaker, global or none.", choices=NORMALISED
    )
    spec_augment: bool = declared(False, "Leaves out bands and stretches of the features of speech at random.")
    dropout: float | None = declared(
        None, "The rate of the model's own dropout layers; none leaves it as the model has it.", least=0, below=1
    )
    bad: str = declared(
        "raise",
        "Whether a row or file of the data that cannot be used ends the training (raise) or is left out (skip).",
        choices=BAD,
    )

    method: str = declared(
        "base",
        "A method that `ssgd methods` lists, or package.module:function of your own; method=split:0.15 sets its level"
        " too.",
    )
    level: float | None = declared(
        None, "The method's first setting, such as the noise level or SAM's rho; none is the method's default.", least=0
    )
    settings: Mapping[str, float] = declared({}, "The method's other settings, by name: settings.share=0.3.")
    distribution: str = declared("sphere", "The distribution of S-SGD's noise.", choices=tuple(DISTRIBUTIONS))
    perturb: str = declared(
        "all",
        "The layers that get noise, by kind. DropConnect takes dense layers where this is all.",
        choices=("all", *KINDS),
    )
    bn_stats: str = declared(
        "both", "What the passes of a step do to batch-norm's running statistics.", choices=POLICIES
    )
    per_rank: bool | None = declared(None, "Draws another noise on every rank; none is the method's default.")

    phases: str = declared(
        "75-50-50", "The epochs of each phase; S marks those under the method: 75-25S-25S. SGDR is 10*2."
    )
    lr: tuple[float, ...] = declared(
        (0.1, 0.01, 0.001), "The learning rate of all phases, or one rate for each phase.", least=0
    )
    epochs: int | None = declared(None, "The number of epochs of a training with warm restarts (10*2).", least=1)
    anneal: str = declared(
        "steps",
        "How the rate falls: steps takes the rates as given, cosine lets the first fall to 0 over the training.",
        choices=("steps", "cosine"),
    )
    warm_up: float = declared(0.0, "The epochs over which the rate rises from 0.", least=0)
    lr_for_batch: int | None = declared(
        None, "The batch that lr is meant for; another batch scales lr in proportion.", least=1
    )

    decay: float = declared(1.0, "The number that divides the rate in every epoch after decay_after.", above=0)
    decay_after: int = declared(0, "The epochs at the full rate before decay sets in.", least=0)
    clip: float | None = declared(None, "The largest norm of the gradient; a larger gradient is scaled down.", above=0)

    optimizer: str = declared("sgd", "The base optimizer.", choices=("sgd", "adam", "adamw"))
    momentum: float = declared(0.9, "The momentum of SGD.", least=0, below=1)
    nesterov: bool = declared(False, "Uses Nesterov's momentum in SGD.")
    weight_decay: float = declared(1e-4, "The weight decay of the parameters that decayed names.", least=0)
    decayed: str = declared(
        "all",
        "The parameters with weight decay: all, or weights, which leaves out biases and batch-norm.",
        choices=("all", "weights"),
    )
    batch: int = declared(128, "The number of samples in a step, over all devices.", least=1)
    devices: int = declared(
        1,
        "Trains as if this many devices shared the batch, each with batch-norm and noise of its own;"
        " 1 is as many as there are processes.",
        least=1,
    )

    precision: str = declared(
        "auto",
        "The arithmetic; bf16 is autocast over fp32 weights. auto is bf16 on a GPU that has it, else fp32.",
        choices=("auto", "fp32", "tf32", "bf16"),
    )
    parallel: str = declared("ddp", "How several processes share a training.", choices=("ddp", "fsdp"))
    sync_batchnorm: bool = declared(False, "Takes batch-norm's statistics over all devices instead of each.")
    recompute_bn: bool = declared(False, "Evaluates with batch-norm's statistics gathered again for the clean weights.")
    tolerance: bool = declared(
        False, "Measures the final weights under noise, pruning and few bits too, unless they are sharded."
    )
    evaluate_every: int = declared(1, "The epochs from one evaluation to the next; the last is always made.", least=1)
    seeds: tuple[int, ...] = declared((0,), "The seeds; there is a run for each.", least=0, most=LARGEST_SEED)

    def __post_init__(self) -> None:
        fields.check(self)
        name = PurePath(self.name)
        if self.name in ("nan", "inf", "-inf"):
            raise ValueError(f"name={self.name} would be read back as a number: choose another name")
        if not name.parts or name.is_absolute() or ".." in name.parts:
            raise ValueError(f"name={self.name!r} names no folder inside that of the runs: say with out= where they go")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds must be different numbers, at least one, not {self.seeds}")
        if not self.lr:
            raise ValueError("lr must have a rate for all phases, or one for each")
        known = [setting.name for setting in registry.get(self.method).settings][1:]
        if unknown := [key for key in self.settings if key not in known]:
            raise ValueError(
                f"{self.method} has no setting {unknown[0]!r} besides its level: {', '.join(known) or 'none'}"
            )
        self.schedule  # noqa: B018 - reads the phases, so that a mistake shows at once
        self._check_devices()

    def check_trainable(self) -> None:
        """Raises a ValueError where a training would not do what the recipe's method and cost say."""
        if self.method != "base" and all(phase.method != self.method for phase in self.schedule.phases):
            raise ValueError(
                f"method={self.method} trains none of phases={self.phases}: mark some with S, or leave the method out"
            )
        if self.warm_up > self.schedule.epochs:
            raise ValueError(f"warm_up={self.warm_up:g} is longer than the {self.schedule.epochs} epochs there are")
        if self.method == "m-arwp" and self.settings.get("share") == 1:
            raise ValueError("settings.share=1 leaves no clean gradient to mix with, at one pass: use method=rwp")

    def _check_devices(self) -> None:
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

    @cached_property
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

    def resolved(self, device: str) -> Recipe:
        """Returns the recipe with what it leaves to the machine decided, as it is kept with the run."""
        bf16 = device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
        precision = self.precision if self.precision != "auto" else "bf16" if bf16 else "fp32"
        level = registry.get(self.method).settled_level(self.level)
        return replace(self, precision=precision, level=level)

    def with_changes(self, changes: Iterable[str]) -> Recipe:
        """A copy with ``key=value`` texts applied: ``lr=0.1,0.01``, ``method=split:0.15``, ``settings.share=0.3``."""
        values = fields.read_changes(self, [word for change in changes for word in _with_level(change)], setting_hint)
        if values.get("method", self.method) != self.method:
            values.setdefault("level", None)  # a level means another thing for another method
        changed = replace(self, **values)
        if changed.level not in (None, self.level) and not registry.get(changed.method).settings:
            raise ValueError(
                f"{changed.method} has no level to set to {changed.level:g}: give a method too, such as method=both:0.2"
            )
        return changed

    def differences(self, other: Recipe) -> dict[str, tuple[Any, Any]]:
        """The fields in which they differ, with the value here and the other's."""
        mine, theirs = self.to_json(), other.to_json()
        return {key: (mine[key], theirs[key]) for key in mine if mine[key] != theirs[key]}

    def to_json(self) -> dict[str, Any]:
        return fields.to_json(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Recipe:
        """The recipe that to_json() was called on; a field that is not there has its default."""
        return fields.from_json(cls, found)

    def __str__(self) -> str:
        plain, schedule = Recipe(), self.schedule
        told = {key: value for key, value in asdict(self).items() if key in MAIN or value != getattr(plain, key)}
        lines = [f"{key} = {value!r}" for key, value in told.items()]
        default = registry.get(self.method).settled_level(None)
        if self.level is None and default is not None:
            lines[lines.index("level = None")] = f"level = {default!r}  # the method's default"
        length = "1 epoch that costs" if schedule.epochs == 1 else f"{schedule.epochs} epochs that cost"
        cost = f"{length} as much as {schedule.passes:g} of plain SGD"
        return "\n".join([*lines, f"# {schedule}", f"# {cost}", *self._remarks()])

    def _remarks(self) -> Iterable[str]:
        settings = registry.get(self.method).settings
        if settings and self.level is not None and self.level > 2 * settings[0].high:
            low, high = settings[0].low, settings[0].high
            yield f"# {self.method} at {self.level:g} may well learn nothing: worth trying are {low:g} to {high:g}"


MAIN = ("name", "model", "data", "method", "level", "phases", "lr", "weight_decay", "batch", "seeds")


def _with_level(change: str) -> list[str]:
    """``method=split:0.15`` as two changes, one of them of the level; others as they are."""
    name, _, level = change.rpartition(":")
    key, _, method = name.partition("=")
    has_level = method in registry.METHODS or re.fullmatch(NUMBER, level)  # else it is package.module:function
    return [name, f"level={level}"] if key.strip() == "method" and has_level else [change]


def setting_hint(key: str, text: str, values: Mapping[str, Any]) -> str | None:
    """Says how to set a method's setting, whose name is no field of a recipe."""
    for method in (registry.METHODS.get(values.get("method", "split")), *registry.METHODS.values()):
        for index, setting in enumerate(method.settings if method else ()):
            if method and key == setting.name:
                words = f"method={method.name}:{text}" if index == 0 else f"method={method.name} settings.{key}={text}"
                return f"{'the noise level' if key == 'noise' else key} is part of the method: {words}"
    return None


@dataclass(frozen=True)
class Execution:
    """Where a training runs and what it leaves behind."""

    out: str = declared("runs", "The folder that gets a folder for each run.")
    folder: str | None = declared(None, "The folder of the data; none is $SSGD_DATA, or else a cache folder.")
    download: bool = declared(True, "Fetches data that are missing.")
    device: str = declared(
        "auto", "The device; auto is cuda where there is a GPU, else cpu.", choices=("auto", "cpu", "cuda")
    )
    compile: bool | None = declared(None, "Compiles the passes by torch.compile; none is yes on one GPU.")
    graph: bool | None = declared(None, "Runs a step as one CUDA graph; none is yes on one GPU.")
    pair: bool | None = declared(None, "Makes the two passes of S-SGD at the same time; none is yes on one GPU.")
    kernels: bool | None = declared(
        None, "Uses kernels of this package for small convolutions in bf16; none is yes on GPUs."
    )
    deterministic: bool = declared(False, "Uses only operations that give the same bits every time.")
    at_once: int = declared(12, "The number of runs side by side on one GPU.", least=1)
    workers: int | None = declared(
        None, "The number of processes that read images from a folder; none is as many as suit the machine.", least=0
    )
    keep: int = declared(2, "The number of checkpoints kept.", least=1)
    checkpoint_seconds: float = declared(
        60.0, "The seconds between checkpoints; there is always one at the end.", least=0
    )
    minutes: float | None = declared(
        None, "Stops after this many minutes with all saved: the same command goes on.", above=0
    )
    results: str | None = declared(None, "A file that gets a line of JSON for each run that is finished.")
    tensorboard: bool = declared(False, "Writes the metrics for TensorBoard too.")
    progress: bool = declared(True, "Shows a progress bar.")

    def __post_init__(self) -> None:
        fields.check(self)
        if self.results is not None and Path(self.results).is_dir():
            raise ValueError(f"results={self.results} is a folder: name a file in it, such as results.jsonl")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device=cuda, but torch sees no GPU here: use device=cpu, or a torch built for CUDA")
        if self.graph and self.kind == "cpu":
            raise ValueError("graph=true needs a GPU, and this would train on the CPU: leave it out")

    @cached_property
    def kind(self) -> str:
        """cpu or cuda."""
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return self.device

    def decided(self, alone: bool) -> Execution:
        """Returns the execution with compile, graph, pair and kernels decided; ``alone``: in a single process."""
        on_gpu = self.kind == "cuda"
        defaults: dict[str, Any] = {
            "compile": on_gpu and alone,
            "graph": on_gpu and alone,
            "pair": on_gpu and alone,
            "kernels": on_gpu,
        }
        return replace(self, **{key: value for key, value in defaults.items() if getattr(self, key) is None})

    def run_folder(self, recipe: Recipe, seed: int) -> Path:
        """The folder of one run."""
        return Path(self.out).expanduser() / recipe.name / f"seed-{seed}"

    def with_changes(self, changes: Iterable[str]) -> Execution:
        """A copy with ``key=value`` texts applied."""
        return replace(self, **fields.read_changes(self, changes))
