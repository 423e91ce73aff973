"""Lines, planes and spectra of an experiment's own solutions, as data beside its rows."""

from __future__ import annotations

from pathlib import Path

from ..solutions import Solution, data_of, solution, tasks
from ..train.recipe import Execution
from .planning import Plan

SIZES: dict[
    str, dict[str, tuple[int, float]]
] = {  # points on an axis, and how far they go beyond the solutions; Lanczos steps and probes
    "line": {"smoke": (5, 0.25), "paper": (61, 0.25)},
    "plane": {"smoke": (3, 0.2), "paper": (21, 0.2)},
    "spectrum": {"smoke": (6, 2), "paper": (90, 5)},
}


def draw(plan: Plan, execution: Execution) -> None:
    """Computes the pictures that are missing, once all runs they are of are there."""
    picture = plan.experiment.picture
    paths = {label: path for label, path in plan.pictures.items() if not path.with_name(f"{path.name}.npz").exists()}
    if picture is None or not paths:
        return
    places = {run.label: run.folder for run in plan.runs if run.seed == plan.pictured}
    if any(label not in places or not (places[label] / "weights.safetensors").exists() for label in picture.of):
        return
    solutions = {label: solution(places[label]) for label in picture.of}
    points, beyond = SIZES[picture.kind]["smoke" if plan.scale == "smoke" else "paper"]
    if picture.kind == "spectrum":
        for label, path in paths.items():
            _spectrum(solutions[label], execution, picture.samples, points, int(beyond), path)
        return
    (path,) = paths.values()
    names = list(picture.of.values())
    _surface(list(solutions.values()), names, execution, picture.samples, points, beyond, path)


def _surface(
    solutions: list[Solution],
    names: list[str],
    execution: Execution,
    samples: int | None,
    points: int,
    margin: float,
    path: Path,
) -> None:
    from ...analysis import Line, Plane, evaluate

    found = tasks(solutions[0], execution, samples, forward_only=True)
    net = found["train"].model
    a, b, *more = (one.state for one in solutions)
    through = Plane(a, b, more[0], net, names=names) if more else Line(a, b, net, names=names)
    grid, data = through.grid(points, margin), data_of(solutions[0], samples)
    evaluate(through, found, grid, out=path, progress=execution.progress, data=data)


def _spectrum(found: Solution, execution: Execution, samples: int | None, steps: int, probes: int, path: Path) -> None:
    from ...analysis import Hessian, save, spectrum

    matrix = Hessian(tasks(found, execution, samples)["train"], graph=execution.kind == "cuda")
    path.parent.mkdir(parents=True, exist_ok=True)
    save(spectrum(matrix, steps, probes, progress=execution.progress), path)
