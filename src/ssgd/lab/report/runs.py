"""The rows of ``results/*.jsonl``, one a training run; a line that cannot be used is left out and told.

Test accuracies with batch-norm's statistics gathered again stand in the rows or, of trainings whose rows had none yet,
in ``results/recomputed-bn.json``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

ANEW = "test_accuracy_recomputed_bn"  # with batch-norm's statistics gathered again for the clean weights
RECOMPUTED = "recomputed-bn.json"
NEEDED = {"experiment": str, "model": str, "data": str, "method": str, "phases": str, "seed": int}


@dataclass(frozen=True)
class Run:
    """One row. ``recipe`` is empty where the row has none."""

    experiment: str
    model: str
    data: str
    method: str
    phases: str
    seed: int
    scale: str
    level: float | None
    distribution: str | None
    weight_decay: float
    row: Mapping[str, Any]
    recipe: Mapping[str, Any]
    curves: Mapping[str, tuple[float | None, ...]]  # after each epoch: ``test``, and ``loss``, ``valid_cer``, …

    @property
    def diverged(self) -> bool:
        """Whether its loss became nan or infinite; it has no figures then."""
        return "diverged" in self.row

    def metric(self, name: str) -> float | None:
        """``test_wer`` is also found as ``wer``."""
        found = self.row.get(name, self.row.get(name.removeprefix("test_")))
        return float(found) if is_number(found) else None

    def field(self, name: str, default: object = None) -> object:
        """A field of the row, else of its recipe."""
        return self.row[name] if name in self.row else self.recipe.get(name, default)


def read_runs(folder: Path) -> tuple[list[Run], list[str], int]:
    """Runs, a sentence for each line that was left out, and how many smoke tests were passed over."""
    runs: list[Run] = []
    complaints: list[str] = []
    smoke = 0
    for file in sorted(folder.glob("*.jsonl")):
        for number, line in enumerate(file.read_bytes().split(b"\n"), start=1):
            if not line.strip():
                continue
            try:
                run = as_run(json.loads(line, parse_int=_whole))
            except ValueError as problem:  # also json's and unicode's
                complaints.append(f"{file.name}, line {number}: {_why(problem)}")
                continue
            if run.scale == "smoke":
                smoke += 1
            else:
                runs.append(run)
    try:
        found = _recomputed(folder / RECOMPUTED)
    except (ValueError, KeyError, TypeError):
        complaints.append(f"{RECOMPUTED}: is torn, or its rows lack something")
        found = {}
    return [_with(run, found) for run in runs], complaints, smoke


def _recomputed(file: Path) -> dict[tuple[str, int, float], float]:
    """By experiment, seed and the accuracy that the run itself tells."""
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    return {(row["experiment"], row["seed"], float(row["test_accuracy"])): float(row["recomputed"]) for row in rows}


def _with(run: Run, found: Mapping[tuple[str, int, float], float]) -> Run:
    anew = found.get((run.experiment, run.seed, run.metric("test_accuracy") or 0.0))
    return run if anew is None or ANEW in run.row else replace(run, row={**run.row, ANEW: anew})


def as_run(row: object) -> Run:
    """Checked: a row that lacks what every run has, or whose figures are not numbers, is refused."""
    if not isinstance(row, dict):
        raise ValueError("is not an object")
    for name, kind in NEEDED.items():
        if not isinstance(row.get(name), kind) or isinstance(row[name], bool):
            raise ValueError(f"has no {name}")
    level, distribution, curves = row.get("level"), row.get("distribution"), row.get("curves") or {}
    recipe = row.get("recipe") or {}
    if not isinstance(recipe, dict):
        raise ValueError("has a recipe that is not an object")
    decay = row.get("weight_decay", recipe.get("weight_decay"))
    if not is_number(decay) or not (level is None or is_number(level)):
        raise ValueError("has a level or a weight decay that is not a number")
    curves = {"test": row.get("curve") or [], **curves} if isinstance(curves, dict) else {"test": None}
    if not all(isinstance(curve, list) and all(v is None or is_number(v) for v in curve) for curve in curves.values()):
        raise ValueError("has a curve that is not a list of numbers")
    figures = [value for name, value in row.items() if name.endswith(("accuracy", "perplexity", "wer", "cer"))]
    if not (figures or row.get("diverged")) or not all(is_number(value) for value in figures):
        raise ValueError("has no figure that is a number")
    return Run(
        experiment=row["experiment"],
        model=row["model"],
        data=row["data"],
        method=row["method"],
        phases=row["phases"],
        seed=row["seed"],
        scale=str(row.get("scale") or "paper"),
        level=None if level is None else float(level),
        distribution=None if distribution is None else str(distribution),
        weight_decay=float(decay),
        row=row,
        recipe=recipe,
        curves={name: tuple(curve) for name, curve in curves.items()},
    )


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e100  # nan is not


def _whole(text: str) -> int | float:
    return int(text) if len(text) < 19 else float(text)


def _why(problem: ValueError) -> str:
    return "is torn or not JSON" if isinstance(problem, json.JSONDecodeError | UnicodeDecodeError) else str(problem)
