"""Lines, planes and spectra of trained solutions: ``results/<experiment>/<label>.npz`` with its JSON beside it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...analysis import Spectrum, Surface
from ...analysis.results import load

Array = NDArray[np.float64]
SECTIONS = 29  # points of a line through a plane


@dataclass(frozen=True)
class Measured:
    """All that was found, by experiment and label, and a sentence for each file that was left out."""

    surfaces: dict[tuple[str, str], Surface] = field(default_factory=dict)
    spectra: dict[tuple[str, str], Spectrum] = field(default_factory=dict)
    complaints: list[str] = field(default_factory=list)

    def lines(self, part: str) -> list[Surface]:
        """Returns the lines between two solutions of a part."""
        return [s for (of, _), s in self.surfaces.items() if of == part and not s.y.size and len(s.names) == 2]

    def planes(self, part: str) -> dict[str, Surface]:
        """Returns the planes of a part by their labels."""
        return {label: s for (of, label), s in self.surfaces.items() if of == part and s.y.size}


def read_measured(folder: Path) -> Measured:
    """Reads all of a folder of results; what smoke tests left lies a folder deeper, and is not looked at."""
    found = Measured()
    for file in sorted(folder.glob("*/*.npz")):
        key = file.parent.name, file.stem
        try:
            kind = json.loads(file.with_name(f"{file.stem}.json").read_text())["kind"]
            if kind == "Surface":
                found.surfaces[key] = load(Surface, file)
            elif kind == "Spectrum":
                found.spectra[key] = load(Spectrum, file)
        except Exception as problem:  # whatever zip, json and numpy make of a damaged file
            found.complaints.append(f"{'/'.join(key)}.npz: cannot be read ({type(problem).__name__})")
    return found


def surface_of(label: str, surface: Surface) -> dict[str, Any]:
    """Returns a plane to be turned: heights by part of the data, loss and error, with the solutions as points on it."""
    heights = {}
    for place, task in enumerate(surface.tasks):
        for what, values in (("loss", surface.losses[place]), ("error, %", surface.errors[place])):
            if np.isfinite(values).any():
                heights[f"{task} {what}"] = digits(values.tolist())
    axes = {"x": digits(surface.x.tolist()), "y": digits(surface.y.tolist())}
    return {
        "name": label,
        **axes,
        "heights": heights,
        "names": surface.names,
        "points": digits(surface.anchors.tolist()),
    }


def section(plane: Surface) -> tuple[Array, dict[str, Array]] | None:
    """Returns the errors along the line from SGD_f to S-SGD and a fifth beyond either, by part of the data.

    They are read off between the plane's points: the paper's figure 2 is such a section.
    """
    if not {"SGD_f", "S-SGD"} <= set(plane.names):
        return None
    a, b = (plane.anchors[plane.names.index(name)] for name in ("SGD_f", "S-SGD"))
    at = np.linspace(-0.2, 1.2, SECTIONS).round(6)
    points = a + at[:, None] * (b - a)
    return at, {task: _between(plane, plane.errors[place], points) for place, task in enumerate(plane.tasks)}


def _between(plane: Surface, heights: Array, points: Array) -> Array:
    """Bilinear; nan outside of the plane."""
    lows, shares = [], []
    for axis, values in zip((plane.x, plane.y), points.T, strict=True):
        slack = 1e-9 * (axis[-1] - axis[0])
        low = np.clip(np.searchsorted(axis, values) - 1, 0, len(axis) - 2)
        outside = (values < axis[0] - slack) | (values > axis[-1] + slack)
        lows.append(low)
        shares.append(np.where(outside, np.nan, (values - axis[low]) / (axis[low + 1] - axis[low])))
    (i, j), (u, v) = lows, shares
    near = (1 - u) * heights[i, j] + u * heights[i + 1, j]
    far = (1 - u) * heights[i, j + 1] + u * heights[i + 1, j + 1]
    return np.asarray((1 - v) * near + v * far)


def digits(values: Any) -> Any:
    """Returns numbers with five digits, however deep they lie: the page stays small, and JSON has no nan."""
    if isinstance(values, Iterable):
        return [digits(value) for value in values]
    return None if values is None or not math.isfinite(values) else float(f"{values:.5g}")
