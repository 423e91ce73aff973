"""How a training is carried out: what may change without changing the result."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ...core.checks import check_choice, check_count
from ...methods import registry
from ..compilation import allow_many_compilations, start_compilers
from ..models.registry import MODELS
from .recipe import Recipe


@dataclass(frozen=True)
class Execution:
    """Where a training runs and what it leaves behind."""

    out: str = "runs"
    """The folder that gets a folder for each run."""
    folder: str | None = None
    """Where the data lie; else $SSGD_DATA, else a cache folder."""
    download: bool = True
    """Fetch data that are missing."""
    device: str = "auto"
    """cpu or cuda; auto: cuda where there is one."""
    compile: bool | None = None
    """torch.compile the passes; None: on one GPU."""
    graph: bool | None = None
    """The step as a CUDA graph; None: on one GPU."""
    pair: bool | None = None
    """S-SGD's two passes at the same time; None: on one GPU."""
    kernels: bool | None = None
    """Our own kernels for small convolutions in bf16; None: on GPUs."""
    deterministic: bool = False
    """Only operations that give the same bits every time."""
    at_once: int = 12
    """Runs side by side on one GPU."""
    workers: int | None = None
    """Processes that read images from a folder."""
    keep: int = 2
    """Checkpoints kept."""
    checkpoint_seconds: float = 60.0
    """Time between checkpoints; there is always one at the end."""
    minutes: float | None = None
    """Stop after so many, with all saved: the same command goes on."""
    results: str | None = None
    """A file that gets a line for each run finished."""
    tensorboard: bool = False
    """Also write the metrics for TensorBoard."""
    progress: bool = True
    """Show a bar."""

    def __post_init__(self) -> None:
        check_choice("device", self.device, ("auto", "cpu", "cuda"))
        check_count("at_once", self.at_once)
        check_count("keep", self.keep)
        if self.checkpoint_seconds < 0:
            raise ValueError(f"checkpoint_seconds must not be negative, not {self.checkpoint_seconds}")
        if self.minutes is not None and not self.minutes > 0:
            raise ValueError(f"minutes must be more than 0, not {self.minutes}")
        if self.results is not None and Path(self.results).is_dir():
            raise ValueError(f"results={self.results} is a folder: name a file in it, such as results.jsonl")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device=cuda, but torch sees no GPU here: use device=cpu, or a torch built for CUDA")
        if self.graph and self.kind == "cpu":
            raise ValueError("graph=true needs a GPU, and this would train on the CPU: leave it out")

    @property
    def kind(self) -> str:
        """cpu or cuda."""
        if self.device == "auto":
            return "cuda" if torch.cuda.is_available() else "cpu"
        return self.device

    def place(self, recipe: Recipe, seed: int) -> Path:
        """The run's folder."""
        return Path(self.out).expanduser() / recipe.name / f"seed-{seed}"


def settled(recipe: Recipe, device: str) -> Recipe:
    """The recipe with what was left to the machine decided, as it is kept with the run."""
    bf16 = device == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    precision = recipe.precision if recipe.precision != "auto" else "bf16" if bf16 else "fp32"
    level = registry.get(recipe.method).settled_level(recipe.level)
    return replace(recipe, precision=precision, level=level)


def set_up(recipe: Recipe, execution: Execution, *beside: Recipe) -> None:
    """Torch's own switches, for the whole process: for this recipe and those that are trained beside it."""
    tf32 = recipe.precision != "fp32"
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    models = (MODELS.get(one.model) for one in (recipe, *beside))
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
