"""What the page draws, as plain data: curves for charts.js, surfaces for surface.js."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..experiments.cells import Cell, Experiment
from ..experiments.questions import targets_of_sgd
from ..experiments.rows import Results
from ..experiments.statistics import Sample
from ..experiments.tables import targets
from .measured import Array, Measured, Spectrum, Surface, plain
from .outcomes import Outcome, compared
from .verdicts import BELOW, NOT_RUN, OURS_ALONE, REPRODUCED, UNDECIDED

Chart = dict[str, Any]
Point = tuple[float | None, ...]
SPECTRA = ("figA4", "figA5", "figA6")
POINTS = 241  # of a density's curve
SECTIONS = 29  # points of a line through a plane
HEIGHTS = ("losses", "errors")
WHOLE_SPECTRUM = (10_000, 90, 5)  # images, steps and probes; one of less is small


def charts_of(part: Experiment, outcomes: Sequence[Outcome], results: Results, measured: Measured) -> list[Chart]:
    """Returns the charts of a figure or a question, and none for a table."""
    also: list[Chart] = []
    if part.name in QUESTIONS:
        return QUESTIONS[part.name](part, compared(outcomes))
    if part.name == "fig2":
        drawn = line_chart(part, measured)
    elif part.name == "fig4":
        drawn = convergence(part, results)
    elif part.name == "fig6":
        drawn = chart(part.name, part.x, part.y, learning_curves(part, results, "valid_cer"))
        losses = learning_curves(part, results, "loss")
        # without spreads: mean − sd can be below 0, where there is no logarithm
        losses = [{**one, "points": [point[:2] for point in one["points"]]} for one in losses]
        also = [chart("fig6-loss", part.x, "training loss", losses, logarithmic=True)] if losses else []
    elif part.name in SPECTRA:
        drawn = density_chart(part, chosen_spectra(part.name, measured))
    elif part.x:
        drawn = cell_chart(part, outcomes)
    else:
        return []
    if all(series["paper"] for series in drawn["series"]):
        lacking = "our line is not computed yet" if part.name == "fig2" else "our runs kept no curve"
        drawn["missing"] = lacking if any(o.sample for o in outcomes) else NOT_RUN
    return [drawn, *also]


def chart(name: str, x: str, y: str, series: list[dict[str, Any]], **more: Any) -> Chart:
    return {"name": name, "x": x, "y": y, "series": series, **more}


def curve(name: str, points: Iterable[Sequence[float | None]], paper: bool, colour: int, **more: Any) -> dict[str, Any]:
    """Points are (x, y) or (x, y, spread); a y of None makes a gap."""
    return {"name": name, "paper": paper, "colour": colour, "points": [_short(p) for p in points], **more}


def cell_chart(part: Experiment, outcomes: Sequence[Outcome]) -> Chart:
    """A curve for each row of the part, the paper's and ours in one colour."""
    placed = [o for o in outcomes if o.cell.x is not None and not o.cell.ours]
    by_column = part.x_scale == "names"
    groups = list(dict.fromkeys(_curve_name(o.cell, by_column) for o in placed))
    last = max((o.cell.x or 0 for o in placed), default=0)
    series = []
    for colour, name in enumerate(groups):
        mine = [o for o in placed if _curve_name(o.cell, by_column) == name]
        theirs: list[Point] = [(o.cell.x, o.cell.paper, o.cell.spread) for o in mine if o.cell.paper is not None]
        ours: list[Point] = [(o.cell.x, o.sample.mean, o.sample.sd) for o in mine if o.sample]
        start = _start(part, mine, placed)  # SGD is where every curve over levels begins
        if part.from_zero and len(mine) == 1 and mine[0].cell.base is None:  # and what all of it is measured by
            theirs, ours = ([(x, *one[1:2]) for one in found for x in (one[0], last)] for found in (theirs, ours))
        if start and theirs:
            theirs.insert(0, (start.cell.x, start.cell.paper, start.cell.spread))
        if start and start.sample and ours:
            ours.insert(0, (start.cell.x, start.sample.mean, start.sample.sd))
        series += [curve(name, theirs, True, colour)] if theirs else []
        series += [curve(name, ours, False, colour)] if ours else []
    for o in outcomes:  # a method without a level: a line across
        if o.cell.x is None and o.cell.paper is not None and placed:
            ends = [min(p.cell.x or 0 for p in placed), max(p.cell.x or 0 for p in placed)]
            series.append(curve(o.cell.row, [(x, o.cell.paper) for x in ends], True, len(groups)))
            if o.sample:
                series.append(curve(o.cell.row, [(x, o.sample.mean) for x in ends], False, len(groups)))
    names = list(dict.fromkeys(o.cell.row for o in placed)) if by_column else []
    return chart(part.name, part.x, part.y, series, scale=part.x_scale, names=names)


def convergence(part: Experiment, results: Results) -> Chart:
    series = []
    paper = targets()["fig4_convergence"]["curves"]
    for colour, cell in enumerate(part.cells):
        early, late = (np.array(paper[key][cell.row]) for key in ("epochs_0_90", "epochs_100_175"))
        points: list[tuple[float, ...]] = [(i + 1, m, s) for i, (m, s) in enumerate(_mean_sd(early))]
        gap: tuple[float | None, ...] = (95.0, None)
        late_points = [(100 + i, m, s) for i, (m, s) in enumerate(_mean_sd(late))]
        series.append(curve(cell.row, [*points, gap, *late_points], True, colour, band=True))
    return chart(part.name, part.x, part.y, [*series, *learning_curves(part, results, "test")])


def learning_curves(part: Experiment, results: Results, name: str) -> list[dict[str, Any]]:
    """The mean over seeds after each epoch, for every cell whose rows kept their curve: the whole ones, if any are."""
    series = []
    for colour, cell in enumerate(part.cells):
        every = results.of(cell).values()
        drawn = [row.curve(name) for row in every if row.curve(name) and not row.diverged]
        kept = [one for one in drawn if None not in one] or drawn
        if not kept:
            continue
        length = min(map(len, kept))
        values = np.array([one[:length] for one in kept], dtype=np.float64)
        points = [(i + 1, m, s) for i, (m, s) in enumerate(_mean_sd(values)) if math.isfinite(m)]
        label = cell.row if cell.paper is not None else f"{cell.row}, {cell.column}"
        label += f", {len(kept)} of {len(every)} seeds" if len(kept) < len(every) else ""
        series.append(curve(label, points, False, colour, band=True))
    return series


def line_chart(part: Experiment, measured: Measured) -> Chart:
    theirs = [(0.0, 100 - (part.cells[0].paper or 0)), (1.0, 100 - (part.cells[1].paper or 0))]
    series = [curve("test, at both ends", theirs, True, 0, loose=True)]
    lines = measured.lines(part.name) or [found for plane in measured.planes("fig7") if (found := section(plane))]
    for line in lines[:1]:
        for colour, task in sorted(enumerate(line.tasks), key=lambda pair: pair[1] != "test"):
            errors = line.arrays["errors"][colour]
            series.append(curve(task, finite(line.arrays["x"], errors), False, 0 if task == "test" else 1))
    first, second = lines[0].names if lines else ("SGD", "S-SGD")
    if plain(first) == "ssgd":  # ours runs the other way
        series[0]["points"] = [[1 - x, y] for x, y in series[0]["points"]]
    read_off = ", read off figure 7's plane" if lines and lines[0].experiment != part.name else ""
    return chart(part.name, f"from {first} at 0 to {second} at 1{read_off}", "error, %", series)


def section(plane: Surface) -> Surface | None:
    """From SGD_f to S-SGD and a fifth beyond either, between the plane's points: the paper's figure 2 is such a one."""
    names = [plain(name) for name in plane.names]
    if not {"sgdf", "ssgd"} <= set(names):
        return None
    a, b = (plane.arrays["anchors"][names.index(name)] for name in ("sgdf", "ssgd"))
    at = np.linspace(-0.2, 1.2, SECTIONS).round(6)
    heights = {
        name: np.stack([_between(plane, h, a + at[:, None] * (b - a)) for h in plane.arrays[name]]) for name in HEIGHTS
    }
    ends = np.array([[0.0], [1.0]])
    arrays = {"x": at, "y": np.zeros(0), **heights, "anchors": ends}
    return Surface(plane.experiment, plane.label, ["SGD_f", "S-SGD"], plane.tasks, arrays)


def _between(plane: Surface, heights: Array, points: Array) -> Array:
    """Bilinear; nan outside of the plane."""
    axes = [plane.arrays[axis] for axis in ("x", "y")]
    lows, shares = [], []
    for axis, values in zip(axes, points.T, strict=True):
        slack = 1e-9 * (axis[-1] - axis[0])
        low = np.clip(np.searchsorted(axis, values) - 1, 0, len(axis) - 2)
        outside = (values < axis[0] - slack) | (values > axis[-1] + slack)
        lows.append(low)
        shares.append(np.where(outside, np.nan, (values - axis[low]) / (axis[low + 1] - axis[low])))
    (i, j), (u, v) = lows, shares
    near = (1 - u) * heights[i, j] + u * heights[i + 1, j]
    far = (1 - u) * heights[i, j + 1] + u * heights[i + 1, j + 1]
    return np.asarray((1 - v) * near + v * far)


def chosen_spectra(name: str, measured: Measured) -> list[Spectrum]:
    found = [s for s in measured.spectra if s.experiment in SPECTRA]
    noisy = {"figA4": (False,), "figA5": (True,), "figA6": (False, True)}[name]
    return [s for s in found if is_noisy(s) in noisy]


def is_noisy(spectrum: Spectrum) -> bool:
    """Whether it is of both signs, by the name of its file."""
    return spectrum.label == "both"


def solution(spectrum: Spectrum) -> str:
    return "S-SGD" if is_noisy(spectrum) else "SGD"


def is_small(spectrum: Spectrum) -> bool:
    return any(mine < whole for mine, whole in zip(spectrum.size, WHOLE_SPECTRUM, strict=True))


def density_chart(part: Experiment, spectra: list[Spectrum]) -> Chart:
    """Bells of one width, a hundredth of the widest range, so that heights compare; below 1e-8 nothing is drawn."""
    series = []
    if spectra:
        low, high = min(s.smallest for s in spectra), max(s.largest for s in spectra)
        span = (high - low) or 1.0
        grid = np.linspace(low - span / 20, high + span / 20, POINTS)
        for spectrum in spectra:
            density = spectrum.density(grid, span / 100)
            points = [(x, d if d > 1e-8 else None) for x, d in zip(grid.tolist(), density.tolist(), strict=True)]
            samples, steps, probes = spectrum.size
            size = f" (small: {samples:,} images, {steps} steps, {probes} probes)" if is_small(spectrum) else ""
            series.append(curve(f"{solution(spectrum)}{size}", points, False, int(is_noisy(spectrum))))
    return chart(part.name, part.x, part.y, series, logarithmic=True)


def spectrum_outcomes(name: str, measured: Measured) -> list[Outcome]:
    """The largest eigenvalue; in figure A6 whether SGD's is the larger, which is what the paper claims."""
    found = chosen_spectra(name, measured)
    if name != "figA6":
        shown = [_measured_once(_eigenvalue(solution(s)), s.largest, OURS_ALONE) for s in found]
        return shown or [Outcome(_eigenvalue("–"), NOT_RUN, {})]
    cell = _eigenvalue("above 0 in the paper", ", SGD minus S-SGD")
    largest = [[s.largest for s in found if is_noisy(s) is noisy] for noisy in (False, True)]
    if not all(largest):
        return [Outcome(cell, NOT_RUN, {})]
    difference = float(np.mean(largest[0]) - np.mean(largest[1]))
    if any(map(is_small, found)):
        return [_measured_once(cell, difference, UNDECIDED, small=True)]
    return [_measured_once(cell, difference, REPRODUCED if difference > 0 else BELOW)]


def baseline_chart(part: Experiment, found: Sequence[Outcome]) -> list[Chart]:
    series = []
    for place, (data, paper) in enumerate(targets_of_sgd().items()):
        mine = [(o.cell.x, o.sample.mean - paper, o.sample.sd) for o in found if o.cell.column == data and o.sample]
        series += [curve(data, mine, False, place)] if mine else []
    tried = [cell.x for cell in part.cells if cell.x]
    series.append(curve("the paper's SGD", [(x, 0.0) for x in (min(tried), max(tried))], True, 7))
    axes = "weight decay", "test accuracy minus the paper's, points"
    return [chart("baseline", *axes, series, scale="log")]


def units_chart(part: Experiment, found: Sequence[Outcome]) -> list[Chart]:
    theirs = targets()["fig3_noise_level"]["curves"]["S-SGD"]
    series = [curve("S-SGD", [(p["level"], p["mean"], p["half_width"]) for p in theirs], True, 0)]
    for place, distribution in enumerate(dict.fromkeys(cell.column for cell in part.cells)):
        mine = [o for o in found if o.cell.column == distribution]
        points = [(o.cell.x, o.sample.mean, o.sample.sd) for o in mine if o.sample]
        series += [curve(distribution, points, False, place)] if points else []
        own = [(o.cell.x, o.own.mean, o.own.sd) if o.own else (o.cell.x, None) for o in mine]
        name = f"{distribution}, statistics of the training"
        series += [curve(name, own, False, (3, 6)[place])] if any(o.own for o in mine) else []
    return [chart(part.name, part.x, part.y, series)]


def price_chart(part: Experiment, found: Sequence[Outcome]) -> list[Chart]:
    """Gains, so that nets and data sets of any accuracy share one axis."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for one in found:
        if drawn := interval(one):
            rows.setdefault(one.cell.column, []).append(drawn)
    groups = [{"name": name, "rows": mine} for name, mine in rows.items()]
    title = "test accuracy minus SGD's, points, and its 95 % interval"
    return [chart(part.name, title, "", [], groups=groups)] if groups else []


def task_charts(part: Experiment, found: Sequence[Outcome]) -> list[Chart]:
    """A chart for each task: they have nothing in common but the base's being at 0."""
    drawn = []
    for column in dict.fromkeys(one.cell.column for one in found):
        task, _, figure = column.partition(", ")
        rows = [row for one in found if one.cell.column == column and (row := interval(one))]
        title, groups = f"gain over the base: {figure}", [{"name": task, "rows": rows}]
        drawn += [chart(f"{part.name}-{task}", title, "", [], groups=groups)] if rows else []
    return drawn


QUESTIONS = {
    "baseline": baseline_chart,
    "noise_units": units_chart,
    "equal_cost": price_chart,
    "other_tasks": task_charts,
}


def interval(one: Outcome) -> dict[str, Any] | None:
    """The gain, above 0 where it is better. Of one seed there is no interval: its ends are null."""
    found = one.difference
    if found is None or one.passes is None:
        return None
    sign = 1 if one.cell.metric.endswith("accuracy") else -1
    low, high = sorted((sign * found.low, sign * found.high)) if found.count > 1 else (None, None)
    ends = {"mean": sign * found.mean, "low": low, "high": high}
    return {"name": one.cell.row, "passes": one.passes, **ends, "seeds": found.count}


def surface_of(surface: Surface) -> dict[str, Any]:
    """A plane to be turned: heights by part of the data, loss and error, with the solutions as points on it."""
    a = surface.arrays
    heights = {}
    for i, task in enumerate(surface.tasks):
        for what, values in (("loss", a["losses"][i]), ("error, %", a["errors"][i])):
            if np.isfinite(values).any():
                heights[f"{task} {what}"] = [[_digits(v) for v in row] for row in values.tolist()]
    points = [[_digits(v) for v in at] for at in a["anchors"].tolist()]
    x, y = ([_digits(v) for v in a[axis].tolist()] for axis in ("x", "y"))
    return {"name": surface.label, "x": x, "y": y, "heights": heights, "names": surface.names, "points": points}


def finite(x: Array, y: Array) -> list[tuple[float, float]]:
    return [(float(a), float(b)) for a, b in zip(x, y, strict=True) if math.isfinite(b)]


def _measured_once(cell: Cell, value: float, verdict: str, small: bool = False) -> Outcome:
    return Outcome(cell, verdict, {0: value}, Sample(value, math.nan, 1), small=small)


def _eigenvalue(column: str, what: str = "") -> Cell:
    return Cell("figA6", None, f"largest eigenvalue{what}", column)


def _start(part: Experiment, mine: Sequence[Outcome], placed: Sequence[Outcome]) -> Outcome | None:
    base = mine[0].cell.base
    return next((o for o in placed if o.cell is base), None) if part.from_zero else None


def _curve_name(cell: Cell, by_column: bool) -> str:
    return cell.column if by_column else cell.row


def _mean_sd(values: Array) -> list[tuple[float, float]]:
    spread = values.std(0, ddof=1) if len(values) > 1 else np.full(values.shape[1], np.nan)
    return list(zip(values.mean(0).tolist(), spread.tolist(), strict=True))


def _short(point: Sequence[float | None]) -> list[float | None]:
    x, y, *spread = (_digits(value) for value in point)
    return [x, y, *(s for s in spread if s is not None)]


def _digits(value: float | None) -> float | None:
    """Five of them: the page stays small, and JSON has no nan."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")
