"""Runs as tasks of a Ray cluster: each has a share of a GPU, or a core, and is tried again when its node dies."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from ..train.engine import Stopped, explain
from ..train.recipe import Execution, Recipe
from .running import Ended, train_here

TRIES = 4  # after the first
PATIENCE = 10.0  # seconds


def train_on_ray(
    recipes: Sequence[Recipe], stem: Recipe | None, execution: Execution, over: Callable[[Ended], None]
) -> None:
    """A task for each run; what comes back goes to ``over``, here and nowhere else.

    ``execution.out`` must be a folder that all nodes see: a run that is tried again goes on from its checkpoint there.
    """
    try:
        ray: Any = import_module("ray")
    except ImportError:
        raise ImportError("--on ray needs Ray: pip install 'ssgd[ray]'") from None
    started = not ray.is_initialized()
    if started:
        check_address(os.environ.get("RAY_ADDRESS", ""))
        ray.init(log_to_driver=False)
    waiting: list[Any] = []
    try:
        gpus = execution.device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
        if execution.device == "cuda" and not gpus:
            raise ValueError("--device cuda, but the Ray cluster has no GPU: leave it out, or start Ray where one is")
        share = {"num_gpus": 1 / execution.at_once, "num_cpus": 0} if gpus else {"num_cpus": 1}
        task = ray.remote(**share, max_retries=TRIES, retry_exceptions=[Stopped])(_train)
        at_once = execution.at_once if gpus else 1
        fields = {**asdict(execution), **_places(execution), "device": "cuda" if gpus else "cpu", "progress": False}
        tasks = {task.remote(recipe, stem, fields, at_once): recipe for recipe in recipes}
        waiting = list(tasks)
        while waiting:
            (ready,), waiting = ray.wait(waiting)
            try:
                ended = ray.get(ready)
            except ray.exceptions.RayError as problem:
                recipe = tasks[ready]
                ended = {"name": f"{recipe.name}/seed-{recipe.seeds[0]}", "failure": _why(problem)}
            over(ended)
    finally:
        _end(ray, waiting)  # in a cluster that stays they would train on, with nobody to write their rows
        if started:
            ray.shutdown()


def _end(ray: Any, tasks: list[Any]) -> None:
    """More than once where it must be: Ray may lose what it is told of a task that is just about to begin."""
    for _ in range(TRIES):
        for task in tasks:
            ray.cancel(task, force=True)
        if tasks:
            _, tasks = ray.wait(tasks, num_returns=len(tasks), timeout=PATIENCE / TRIES)


def check_address(address: str) -> None:
    """Ray itself tries for minutes to reach a cluster that is not there."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():  # none, or a word that Ray knows
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE).close()
    except OSError as problem:
        raise ConnectionError(
            f"RAY_ADDRESS={address}, where nothing answers ({problem}): start Ray there, or unset the variable"
        ) from None


def _places(execution: Execution) -> dict[str, str]:
    """Its folders in full, since a worker stands elsewhere."""
    given = {"out": execution.out, "folder": execution.folder, "results": execution.results}
    return {name: str(Path(path).expanduser().absolute()) for name, path in given.items() if path is not None}


def _train(recipe: Recipe, stem: Recipe | None, fields: dict[str, Any], at_once: int) -> Ended:
    """On the node: one run, in the folder that all see."""
    ended: list[Ended] = []
    train_here([recipe], stem, replace(Execution(), **fields), ended.append)
    return {**ended[0], "at_once": at_once}


def _why(problem: Exception) -> str:
    cause = getattr(problem, "cause", None)
    if isinstance(cause, BaseException):  # raised by the run itself
        return explain(cause)
    return f"Ray lost it {TRIES + 1} times ({type(problem).__name__}): see to the nodes, then give the command again"
