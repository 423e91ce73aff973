"""The result of a run as the analysis takes it: weights, and the data they were trained and tested on."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..core.checks import check_count
from . import models
from .data.preprocess import Preprocess, from_json
from .train.checkpoint import read_safetensors, weights
from .train.evaluating import tasks_of
from .train.job import Sources
from .train.recipe import Execution, Recipe
from .train.rundir import RunDir, check_unchanged, of_model, of_words

if TYPE_CHECKING:
    from ..analysis.task import Task


@dataclass(frozen=True)
class Solution:
    """The weights of a run, with the recipe that they come from."""

    name: str
    recipe: Recipe
    state: dict[str, Tensor]
    fingerprint: Mapping[str, Any]  # model and data as they were


def solution(path: str | Path) -> Solution:
    """From a run's folder (its last weights), one of its checkpoints, or its weights.safetensors."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(
            f"{path} is not there: name a run's folder, such as runs/digits/seed-0, or a file in it"
        )
    folders = [folder for folder in (path, *path.parents) if (folder / "recipe.json").is_file()]
    if not folders:
        raise ValueError(f"{path} belongs to no run: no recipe.json in it or above it says what net it is of")
    run = RunDir(folders[0])
    recipe = Recipe.from_json(run.recipe() or {})
    finished = path / "weights.safetensors"
    if path.suffix == ".safetensors" or finished.is_file():
        state = read_safetensors(path if path.suffix == ".safetensors" else finished)
    else:
        state = weights(path)
    if any(phase.method == "dropconnect" for phase in recipe.schedule.phases):
        state = {re.sub(r"\bparametrizations\.(\w+)\.original$", r"\1", name): t for name, t in state.items()}
    return Solution(str(path), recipe, state, run.fingerprint() or {})


def solutions(paths: Iterable[str | Path]) -> list[Solution]:
    """Returns the solution of each path; the folder of a training, such as runs/digits, stands for all its seeds."""
    return [solution(one) for path in paths for one in _seeds(Path(path)) or [Path(path)]]


def _seeds(folder: Path) -> list[Path]:
    found = [path.parent for path in folder.glob("seed-*/recipe.json")]
    return sorted(found, key=lambda run: (len(run.name), run.name))


def _net(found: Solution, classes: int, channels: int, vocabulary: Iterable[str] | None = None) -> nn.Module:
    """The net of a solution, with its weights; what it was trained with must not have changed since."""
    now = {**of_model(found.recipe, classes, channels), **of_words(vocabulary)}
    check_unchanged({**now, **found.fingerprint}, {**found.fingerprint, **now}, found.recipe, Path(found.name))
    net = models.build(found.recipe.model, classes, channels)
    try:
        net.load_state_dict(found.state)
    except RuntimeError as problem:
        raise ValueError(f"the weights of {found.name} do not fit {found.recipe.model}: {problem}") from problem
    return net


def load(path: str | Path) -> tuple[nn.Module, Preprocess | None]:
    """Returns the net of a run, in eval mode on the CPU, and the preprocessing that it learned with."""
    found = solution(path)
    kept = found.fingerprint
    if not {"classes", "channels", "preprocess"} <= kept.keys():
        raise ValueError(f"{found.name} has no fingerprint.json that says for what data its net is: train again")
    try:
        preprocess = None if kept["preprocess"] is None else from_json(kept["preprocess"])
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"the fingerprint.json of {found.name} is damaged ({problem!r}): train again") from problem
    return _net(found, kept["classes"], kept["channels"]).eval(), preprocess


def tasks(
    found: Solution, execution: Execution, limit: int | None = None, forward_only: bool = False, decode: bool = False
) -> dict[str, Task]:
    """Returns the net of a solution, with its weights, over its training and its test data; both tasks share it.

    Args:
        limit: take at most so many samples, which the net sees as it was trained to: normalised by all.
        forward_only, decode: see ``tasks_of``.
    """
    device = torch.device(execution.kind)
    recipe = replace(found.recipe, precision="fp32")
    source = Sources(execution).get(recipe, device)
    if limit is not None:
        check_count("limit", limit)
        source = source.first(limit)
    net = _net(found, source.classes, source.channels, getattr(source, "vocabulary", None))
    net.to(device=device, memory_format=torch.channels_last).eval()  # type: ignore[call-overload]
    return tasks_of(net, source, recipe, forward_only, decode)


def data_of(found: Solution, limit: int | None) -> dict[str, object]:
    """Which data tasks() would take, for what is kept of an evaluation."""
    given: dict[str, object] = {"data": found.recipe.data, "limit": limit, "held_out": found.recipe.held_out}
    if limit is not None:
        given["normalised"] = "as trained"
    return {**given, "statistics": "as trained"} if found.recipe.augment else given
