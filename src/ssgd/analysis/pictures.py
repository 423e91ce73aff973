"""Pictures of results, for a paper (matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..files import make_room, write_whole
from .damage import DAMAGES
from .surface import Surface

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from .eigenvalues import Spectrum
    from .tolerance import Tolerance

Array = NDArray[np.float64]

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")  # Okabe and Ito's
ON_THE_MAP = ("#D55E00", "#CC79A7", "#000000")  # those of them that stand out against viridis
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^")
LETTERS = "ABC"  # of the solutions in a picture
LABELS = {
    "loss": "loss",
    "error": "error, %",
    "accuracy": "accuracy, %",
    "perplexity": "perplexity",
    "ece": "calibration error, %",
}
LEVELS = 14  # of a contour picture


def draw_line(surface: Surface, path: str | Path | None = None) -> Figure:
    """Draws loss, and error where there is one, of every task along a line or a single direction."""
    if surface.y.size:
        raise ValueError("this surface has two coordinates: draw it with draw_plane()")
    shown = ["loss", "error"] if np.isfinite(surface.errors).any() else ["loss"]
    figure = empty_figure(4.5 * len(shown), 3.8)
    from matplotlib.lines import Line2D

    panels = figure.subplots(1, len(shown), squeeze=False)[0]
    for panel, what in zip(panels, shown, strict=True):
        for i, task in enumerate(surface.tasks):
            colour = COLOURS[i % len(COLOURS)]
            panel.plot(surface.x, surface.values(task, what), DASHES[i % len(DASHES)], color=colour, label=task)
            for at, value, marker in zip(surface.anchors, surface.at_anchors(task, what), MARKERS, strict=False):
                panel.plot(at, value, marker, color=colour, markeredgecolor="white")
        for letter, (at,) in zip(LETTERS, surface.anchors, strict=False):
            panel.axvline(at, color="0.7", linewidth=0.8, zorder=0)
            panel.annotate(letter, (at, 1.02), xycoords=("data", "axes fraction"), ha="center")
        panel.set(xlabel=_axis_labels(surface)[0], ylabel=LABELS[what])
        panel.locator_params(axis="x", nbins=6)
    curves, tasks = panels[0].get_legend_handles_labels()
    ends = [Line2D([], [], marker=marker, color="0.5", linestyle="") for marker in MARKERS[: len(surface.names)]]
    _legend_below(figure, [*curves, *ends], [*tasks, *_named(surface)])
    return saved(figure, path)


def draw_plane(surface: Surface, of: str = "train", what: str = "loss", path: str | Path | None = None) -> Figure:
    """Draws contours of one task's ``"loss"`` or ``"error"`` over a plane or two directions, the solutions marked."""
    values = _on_a_plane(surface, of, what)
    ratio = np.ptp(surface.y) / np.ptp(surface.x)
    to_scale = 1 / 3 <= ratio <= 3
    width, height = np.clip((4.5 / max(ratio, 1), 4.5 * min(ratio, 1)), 2, None) if to_scale else (4.5, 4.5)
    figure = empty_figure(float(width + 1.8), float(height + 1.2))
    from matplotlib.colors import BoundaryNorm
    from matplotlib.patheffects import withStroke

    levels = spread_levels(values)
    panel = figure.subplots()
    known = np.ma.masked_invalid(values).T
    filled = panel.contourf(surface.x, surface.y, known, levels, cmap="viridis", norm=BoundaryNorm(levels, 256))
    panel.contour(surface.x, surface.y, known, levels[1:-1], colors="white", linewidths=0.4)
    for letter, (x, y), marker, colour in zip(LETTERS, surface.anchors, MARKERS, ON_THE_MAP, strict=False):
        panel.plot(x, y, marker, color=colour, markeredgecolor="white", markersize=9)
        outline = [withStroke(linewidth=2.5, foreground="white")]
        panel.annotate(letter, (x, y), xytext=(7, 7), textcoords="offset points", path_effects=outline)
    along, across = _axis_labels(surface)
    panel.set(xlabel=along, ylabel=across, aspect="equal" if to_scale else "auto", title=f"{of} {LABELS[what]}")
    _legend_below(figure, list(panel.lines), _named(surface))
    bar = figure.colorbar(filled, ticks=levels, ax=panel)
    bar.ax.set_yticklabels([f"{level:.3g}" for level in levels])
    return saved(figure, path)


def draw_spectrum(spectra: Mapping[str, Spectrum], path: str | Path | None = None) -> Figure:
    """Draws the densities of eigenvalues on a logarithmic scale, ± error between probes.

    Each eigenvalue is a bell, of one width for all, a hundredth of the widest range, so that heights compare.
    """
    figure = empty_figure(6, 4)
    panel = figure.subplots()
    low = min(spectrum.smallest for spectrum in spectra.values())
    high = max(spectrum.largest for spectrum in spectra.values())
    span = (high - low) or 1.0
    grid = np.linspace(low - span / 20, high + span / 20, 1001)
    highest = 0.0
    for i, (name, spectrum) in enumerate(spectra.items()):
        colour = COLOURS[i % len(COLOURS)]
        _, density, error = spectrum.density(grid, span / 100)
        panel.plot(grid, density, DASHES[i % len(DASHES)], color=colour, label=name)
        panel.fill_between(grid, density - error, density + error, color=colour, alpha=0.2, linewidth=0)
        highest = max(highest, float(density.max()))
    panel.axvline(0, color="0.7", linewidth=0.8, zorder=0)
    panel.set(xlabel="eigenvalue of the Hessian", ylabel="density", yscale="log", ylim=(1e-7 * highest, 3 * highest))
    _legend_below(figure, *panel.get_legend_handles_labels())
    return saved(figure, path)


def draw_tolerance(
    runs: Mapping[str, Sequence[Tolerance]], what: str | None = None, path: str | Path | None = None
) -> Figure:
    """Draws a panel for each damage and a curve for each name: solid as it is, dashed recalibrated.

    A name has the results of one seed or several; its band is ± a standard deviation between seeds, or between draws
    where there is one seed. ``what`` is the accuracy where answers are counted, else the loss.
    """
    first = next(iter(runs.values()))[0]
    what = what or ("accuracy" if np.isfinite(first.errors[0, 0]).all() else "loss")
    damages = list(dict.fromkeys(first.damages[1:]))
    width = min(len(damages), 4)
    height = -(-len(damages) // width)
    figure = empty_figure(max(3.2 * width, 4.5), 2.8 * height + 0.5)
    panels = figure.subplots(height, width, squeeze=False, sharey=True).flat
    for damage, panel in zip(damages, panels, strict=False):
        for i, (name, results) in enumerate(runs.items()):
            for column, dashes in zip(first.columns, DASHES, strict=False):
                curves = [result.curve(damage, what, column) for result in results]
                strengths, means = curves[0][0], np.array([mean for _, mean, _ in curves])
                middle = means.mean(0)
                spread = np.nan_to_num(curves[0][2] if len(curves) == 1 else means.std(0, ddof=1))
                colour, label = COLOURS[i % len(COLOURS)], name if column == first.columns[0] else f"{name}, {column}"
                panel.plot(strengths, middle, dashes, color=colour, marker=".", label=label)
                panel.fill_between(strengths, middle - spread, middle + spread, color=colour, alpha=0.2, linewidth=0)
        panel.set(title=damage, xlabel=DAMAGES[damage].axis)
        panel.title.set_fontsize("medium")
        if damage.endswith("bits"):
            panel.invert_xaxis()
    for panel in panels:  # those that are left over
        panel.set_axis_off()
    for row in figure.axes[::width]:
        row.set_ylabel(LABELS[what])
    _legend_below(figure, *figure.axes[0].get_legend_handles_labels())
    return saved(figure, path)


def _on_a_plane(surface: Surface, of: str, what: str) -> Array:
    """Returns the values over a grid of two coordinates, or raises a sentence on what is missing."""
    if not surface.y.size:
        raise ValueError("this surface has one coordinate: draw it with draw_line()")
    if min(surface.x.size, surface.y.size) < 2:
        raise ValueError("a plane is drawn from two points or more on each axis: take a larger grid")
    values = surface.values(of, what)
    if not np.isfinite(values).any():
        raise ValueError(f"there is no {what} of {of!r} to draw: no point is done, or the task counts no wrong answers")
    return values


def _axis_labels(surface: Surface) -> tuple[str, str]:
    if surface.geometry == "Directions":
        return "along the first direction", "along the second direction"
    if surface.geometry == "Line":
        return "from A (0) to B (1)", ""
    return "distance from A towards B", "distance towards C"


def _named(surface: Surface) -> list[str]:
    """Returns what the letters in a picture stand for."""
    return [f"{letter}: {name}" for letter, name in zip(LETTERS, surface.names, strict=False)]


def _legend_below(figure: Figure, handles: list[Any], labels: list[str]) -> None:
    """Explains the curves under the panels, in as many columns as their names leave room for."""
    room = int(12 * figure.get_figwidth())  # characters
    lines = [fill(label, max(room - 6, 10)) for label in labels]
    columns = max(1, min(len(labels), room // (6 + max(map(len, lines), default=1))))
    figure.legend(handles, lines, loc="outside lower center", ncols=columns, fontsize="small", frameon=False)


def spread_levels(values: Array) -> Array:
    """Returns levels whose height above the lowest grows geometrically; the first holds 2 % of the points."""
    known = values[np.isfinite(values)]
    lowest = known.min()
    heights = known[known > lowest] - lowest
    if not heights.size:
        return np.array([lowest, lowest + 1])
    first, last = np.quantile(heights, 0.02), heights.max()
    steps = np.geomspace(first, last, LEVELS) if first < last else np.array([last])
    return np.unique(np.append(lowest, lowest + steps))


def empty_figure(width: float, height: float) -> Figure:
    """Returns a figure of that size in inches; nothing is shown, and nothing set for the process."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("pictures need matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would choose a backend for the whole process
    return figure


def saved(figure: Figure, path: str | Path | None) -> Figure:
    """Returns the figure, and writes it as a .png, .pdf or .svg file where a path is given."""
    if path is not None:
        kind = check_ending(path)
        make_room(Path(path))
        write_whole(path, lambda file: figure.savefig(file, format=kind, dpi=200))
    return figure


def check_ending(path: str | Path) -> str:
    """Returns the kind of picture that a file's name asks for: png, pdf or svg."""
    kind = Path(path).suffix[1:]
    if kind not in ("png", "pdf", "svg"):
        raise ValueError(f"a picture can be .png, .pdf or .svg, not {str(path)!r}")
    return kind
