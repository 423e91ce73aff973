"""How a training is carried out: what may change without changing the result."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from ...methods import registry
from ..compilation import allow_many_compilations, start_compilers
from ..models.registry import MODELS
from . import fields
from .fields import declared
from .recipe import Recipe


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

    def run_folder(self, recipe: Recipe, seed: int) -> Path:
        """The folder of one run."""
        return Path(self.out).expanduser() / recipe.name / f"seed-{seed}"

    def with_changes(self, changes: Iterable[str]) -> Execution:
        """A copy with ``key=value`` texts applied."""
        return replace(self, **fields.read_changes(self, changes))


def resolved(recipe: Recipe, device: str) -> Recipe:
    """The recipe with what it leaves to the machine decided, as it is kept with the run."""
    bf16 = device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    precision = recipe.precision if recipe.precision != "auto" else "bf16" if bf16 else "fp32"
    level = registry.get(recipe.method).settled_level(recipe.level)
    return replace(recipe, precision=precision, level=level)


def set_up(recipe: Recipe, execution: Execution, *others: Recipe) -> None:
    """Sets torch's switches for the whole process, for this recipe and the others that are trained in it."""
    tf32 = recipe.precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    models = (MODELS.get(one.model) for one in (recipe, *others))
    kinds = {"images" if model is None else model.kind for model in models}  # a user's own are for images
    # batches of speech have many lengths
    torch.backends.cudnn.benchmark = not execution.deterministic and "speech" not in kinds
    if execution.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(execution.deterministic)
    on_one_gpu = execution.kind == "cuda" and os.environ.get("WORLD_SIZE", "1") == "1"
    if "images" in kinds and (on_one_gpu if execution.compile is None else execution.compile):
        allow_many_compilations()
        if execution.kind == "cuda":
            start_compilers()
