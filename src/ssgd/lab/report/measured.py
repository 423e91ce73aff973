"""Lines, planes and spectra of trained solutions: ``results/<experiment>/<label>.npz`` with its JSON beside it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SURFACE = ("x", "y", "losses", "errors", "anchors")
SPECTRUM = ("values", "weights")


@dataclass(frozen=True)
class Surface:
    """Loss and error in percent over a line (``y`` empty) or a plane; the first axis is the part of the data."""

    experiment: str
    label: str
    names: list[str]
    tasks: list[str]
    arrays: dict[str, Array]


@dataclass(frozen=True)
class Spectrum:
    """Ritz values and their weights, a row a probe."""

    experiment: str
    label: str
    values: Array
    weights: Array
    samples: int = 0

    @property
    def size(self) -> tuple[int, int, int]:
        """Of the data that the Hessian is of, Lanczos' steps, and probes."""
        probes, steps = self.values.shape
        return self.samples, steps, probes

    @property
    def largest(self) -> float:
        return float(self.values[self.weights > 0].max())

    @property
    def smallest(self) -> float:
        return float(self.values[self.weights > 0].min())

    def density(self, grid: Array, width: float) -> Array:
        """Each Ritz value a bell of that width, the mean over probes."""
        bells = np.exp(-0.5 * ((grid - self.values[..., None]) / width) ** 2) / (width * math.sqrt(2 * math.pi))
        return np.asarray(np.einsum("ps,psg->pg", self.weights, bells).mean(0))


@dataclass(frozen=True)
class Measured:
    """All that was found, and a sentence for each file that was left out."""

    surfaces: list[Surface] = field(default_factory=list)
    spectra: list[Spectrum] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def lines(self, part: str) -> list[Surface]:
        found = [s for s in self.surfaces if s.experiment == part and not s.arrays["y"].size]
        return [s for s in found if len(s.names) == 2]

    def planes(self, part: str) -> list[Surface]:
        return [s for s in self.surfaces if s.experiment == part and s.arrays["y"].size]


def read_measured(folder: Path) -> Measured:
    """What smoke tests left lies a folder deeper, and is not looked at."""
    found = Measured()
    for file in sorted(folder.glob("*/*.npz")):
        try:
            facts = json.loads(file.with_name(file.name.removesuffix(".npz") + ".json").read_text())
            with np.load(file, allow_pickle=False) as opened:
                arrays = {name: np.asarray(opened[name], dtype=np.float64) for name in opened.files}
            _add(found, facts, arrays, file.parent.name, file.stem)
        except (OSError, ValueError, KeyError, AttributeError, TypeError, EOFError) as problem:
            found.complaints.append(f"{file.parent.name}/{file.name}: cannot be read ({type(problem).__name__})")
    return found


def plain(name: str) -> str:
    """``S-SGD`` and ``ssgd-0.5`` are one name, and so are ``SGD_m`` and ``sgd-m``."""
    return "".join(c for c in name.lower() if c.isalpha())


def _add(found: Measured, facts: dict[str, Any], arrays: dict[str, Array], experiment: str, label: str) -> None:
    if facts["kind"] == "Surface":
        names, tasks = [str(n) for n in facts["names"]], [str(t) for t in facts["tasks"]]
        taken = {name: arrays[name] for name in SURFACE}
        axes = [taken[axis].size for axis in ("x", "y") if taken[axis].size]
        for name, shape in {
            "losses": (len(tasks), *axes),
            "errors": (len(tasks), *axes),
            "anchors": (len(names), len(axes)),
        }.items():
            if taken[name].shape != shape:
                raise ValueError(f"{name} does not fit the rest")
        if not np.isfinite(taken["losses"]).any():
            raise ValueError("no point of it is done")
        found.surfaces.append(Surface(experiment, label, names, tasks, taken))
    elif facts["kind"] == "Spectrum":
        values, weights = (arrays[name] for name in SPECTRUM)
        fit = values.shape == weights.shape and values.ndim == 2 and (weights > 0).any()
        if not fit or not np.isfinite(values).all() or not np.isfinite(weights).all():
            raise ValueError("its values and weights do not fit each other")
        found.spectra.append(Spectrum(experiment, label, values, weights, int(facts["samples"])))
