"""What the page draws, as plain data: panels of curves for curves.js, gains and their intervals for forest.js."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np

from ...analysis import Spectrum
from ..experiments.cells import Cell, Experiment
from ..experiments.questions import targets_of_sgd
from ..experiments.rows import Results
from ..experiments.statistics import Sample
from ..experiments.tables import targets
from .outcomes import Outcome, Reading, compared
from .surfaces import Array, Measured, digits, section
from .verdicts import BELOW, NOT_RUN, OURS_ALONE, REPRODUCED, UNDECIDED

Chart = dict[str, Any]
Series = dict[str, Any]
Point = tuple[Any, ...]  # x, y, and if they are known the standard deviation and the single seeds
SPECTRA = {"figA4": ("base",), "figA5": ("both",), "figA6": ("base", "both")}  # the labels that each shows
SOLUTIONS = {"base": "SGD", "both": "S-SGD"}
WHOLE_SPECTRUM = (10_000, 90, 5)  # images, steps and probes; one of less is small
UNITS = {"accuracy": "points of accuracy", "wer": "points of word error rate", "bits": "bits per character"}
BESIDE = (
    "Grey, hollow, dashed: the paper. In colour: ours, mean ± standard deviation, hollow where it is of one seed; "
    "small dots are single seeds."
)
GAINS = (
    "To the right is better. Blue: as many passes as {base}; orange: more. Bars are 95 % intervals by the spread of "
    "all differences from that base, small dots single seeds. Hollow diamonds: the paper's gain."
)


def charts_of(part: Experiment, outcomes: Sequence[Outcome], results: Results, measured: Measured) -> list[Chart]:
    """Returns the charts of a figure or a question, and none for a table."""
    if part.name == "fig2":
        drawn = [line_chart(part, measured)]
    elif part.name == "fig4":
        drawn = [curves(part, convergence(part, results))]
    elif part.name == "fig6":
        losses = learning_curves(part, results, "loss", spread=False)  # mean − sd may be below 0, where no logarithm is
        drawn = [curves(part, learning_curves(part, results, "valid_cer"))]
        drawn += [curves(part, losses, name="fig6-loss", y="training loss", log=True)] if losses else []
    elif part.name in SPECTRA:
        drawn = [curves(part, densities(chosen_spectra(part.name, measured)), log=True)]
    elif part.name == "baseline":
        drawn = [baseline_chart(part, outcomes)]
    elif part.x:
        drawn = [curves(part, cell_panels(part, outcomes), scale=part.x_scale, names=_names(part))]
    elif part.part:
        return []
    else:
        drawn = forests(part, compared(outcomes))
        return drawn + ([passes_chart(compared(outcomes))] if part.name == "equal_cost" and drawn else [])
    for one in drawn:
        if not any(series["who"] != "paper" for panel in one["panels"] for series in panel["series"]):
            one["missing"] = NOT_RUN if not any(o.ours.sample for o in outcomes) else "ours is not computed yet"
    return drawn


def curves(part: Experiment, panels: list[Chart], **more: Any) -> Chart:
    """Panels side by side, on the same axes."""
    chart = {"name": part.name, "x": part.x, "y": part.y, "caption": BESIDE, "panels": panels, **more}
    what, by = (chart[axis].partition(",")[0] for axis in "yx")
    return {"title": f"{what[:1].upper()}{what[1:]} {'by' if chart.get('names') else 'against'} {by}", **chart}


def panel(name: str, *series: Series | None) -> Chart:
    return {"name": name, "series": [one for one in series if one]}


def series(label: str, points: Iterable[Point], who: str = "ours", **more: Any) -> Series | None:
    """``who`` is paper, ours, or own: ours with the training's own statistics of batch-norm. A y of None is a gap."""
    found = digits(points)
    return {"label": label, "who": who, "points": found, **more} if found else None


def ours(found: Reading | None, x: float | None) -> list[Point]:
    """Returns the point of a mean, with its spread and its seeds."""
    if found is None or found.sample is None:
        return []
    return [(x, found.sample.mean, found.sample.sd, list(found.values.values()))]


def cell_panels(part: Experiment, outcomes: Sequence[Outcome]) -> list[Chart]:
    """A panel for each row of the part, or each column where the x are names: the paper's curve and our points."""
    placed = [o for o in outcomes if o.cell.x is not None and not o.cell.ours]
    papers = targets()["fig3_noise_level"]["curves"]["S-SGD"] if part.name == "noise_units" else []
    xs = sorted({o.cell.x for o in placed if o.cell.x is not None})
    found = []
    for name in dict.fromkeys(_panel_of(part, o.cell) for o in placed):
        mine = [o for o in placed if _panel_of(part, o.cell) == name]
        if part.from_zero:  # every curve over levels begins at the base
            if (base := mine[0].cell.base) is None:
                continue
            mine = [o for o in placed if o.cell is base] + mine
        theirs = [(o.cell.x, o.cell.paper, o.cell.spread) for o in mine if o.cell.paper is not None]
        theirs = _with_gaps(theirs, xs)
        theirs += [(point["level"], point["mean"], point["half_width"]) for point in papers]
        means, own = (
            [at for o in mine for at in ours(which(o), o.cell.x)] for which in (attrgetter("ours"), attrgetter("own"))
        )
        second = series("the training's own statistics", own, "own") if papers else None
        found.append(panel(name, series("paper", theirs, "paper", line=True), series("ours", means), second))
    return found


def convergence(part: Experiment, results: Results) -> list[Chart]:
    paper = targets()["fig4_convergence"]["curves"]
    found = []
    for cell in part.cells:
        early, late = (np.array(paper[key][cell.row]) for key in ("epochs_0_90", "epochs_100_175"))
        points: list[Point] = [(i + 1, m, s) for i, (m, s) in enumerate(_mean_sd(early))]
        points += [(95.0, None), *((100 + i, m, s) for i, (m, s) in enumerate(_mean_sd(late)))]
        theirs = series("paper", points, "paper", line=True, band=True)
        found.append(panel(cell.row, theirs, learning_curve(cell, results, "test")))
    return found


def learning_curves(part: Experiment, results: Results, name: str, spread: bool = True) -> list[Chart]:
    """A panel for each column of cells whose rows kept their curve."""
    found: dict[str, list[Series]] = {}
    for cell in part.cells:
        if drawn := learning_curve(cell, results, name, cell.row):
            drawn["points"] = drawn["points"] if spread else [point[:2] for point in drawn["points"]]
            found.setdefault(cell.column, []).append(drawn)
    return [panel(column, *drawn) for column, drawn in found.items()]


def learning_curve(cell: Cell, results: Results, name: str, label: str = "ours") -> Series | None:
    """The mean over seeds after each epoch: of the whole curves, if any are."""
    every = results.of(cell).values()
    drawn = [row.curve(name) for row in every if row.curve(name) and not row.diverged]
    kept = [one for one in drawn if None not in one] or drawn
    if not kept:
        return None
    length = min(map(len, kept))
    values = np.array([one[:length] for one in kept], dtype=np.float64)
    points = [(i + 1, m, s) for i, (m, s) in enumerate(_mean_sd(values)) if math.isfinite(m)]
    label += f", {len(kept)} of {len(every)} seeds" if len(kept) < len(every) else ""
    return series(label, points, line=True, band=True)


def line_chart(part: Experiment, measured: Measured) -> Chart:
    """The paper's source has both ends alone, of the test error, from SGD at 0 to S-SGD at 1."""
    ends = [(float(x), 100 - (cell.paper or 0)) for x, cell in enumerate(part.cells[:2])]
    first, second, read_off = "SGD", "S-SGD", ""
    errors: dict[str, Array] = {}
    x = np.zeros(0)
    if lines := measured.lines(part.name):
        (first, second), x = lines[0].names, lines[0].x
        errors = {task: lines[0].errors[place] for place, task in enumerate(lines[0].tasks)}
        ends = [(1 - at, error) for at, error in ends] if first == "S-SGD" else ends
    elif found := next(filter(None, map(section, measured.planes("fig7").values())), None):
        (x, errors), first, read_off = found, "SGD_f", ", read off figure 7's plane"
    mine = [
        series(task, [(a, e) for a, e in zip(x.tolist(), error.tolist(), strict=True) if math.isfinite(e)], line=True)
        for task, error in errors.items()
    ]
    drawn = panel("", series("test, the paper's ends", ends, "paper"), *mine)
    return curves(
        part, [drawn], title="Error along the line", x=f"from {first} at 0 to {second} at 1{read_off}", y="error, %"
    )


def chosen_spectra(name: str, measured: Measured) -> dict[str, Spectrum]:
    return {label: s for (of, label), s in measured.spectra.items() if of in SPECTRA and label in SPECTRA[name]}


def is_small(spectrum: Spectrum) -> bool:
    probes, steps = spectrum.values.shape
    return any(mine < whole for mine, whole in zip((spectrum.samples, steps, probes), WHOLE_SPECTRUM, strict=True))


def densities(spectra: dict[str, Spectrum]) -> list[Chart]:
    """Bells of one width, a hundredth of the widest range, so that heights compare; below 1e-8 nothing is drawn."""
    if not spectra:
        return [panel("")]
    low, high = min(s.smallest for s in spectra.values()), max(s.largest for s in spectra.values())
    span = (high - low) or 1.0
    grid = np.linspace(low - span / 20, high + span / 20, 241)
    drawn = []
    for label, spectrum in spectra.items():
        _, density, _ = spectrum.density(grid, span / 100)
        points = [(x, d if d > 1e-8 else None) for x, d in zip(grid.tolist(), density.tolist(), strict=True)]
        size = f" (small: {spectrum.samples:,} images)" if is_small(spectrum) else ""
        drawn.append(series(SOLUTIONS[label] + size, points, line=True))
    return [panel("", *drawn)]


def spectrum_outcomes(name: str, measured: Measured) -> list[Outcome]:
    """The largest eigenvalue; in figure A6 whether SGD's is the larger, which is what the paper claims."""
    found = chosen_spectra(name, measured)
    if name != "figA6":
        shown = [_measured_once(SOLUTIONS[label], s.largest, OURS_ALONE) for label, s in found.items()]
        return shown or [_measured_once("–", None, NOT_RUN)]
    what = "above 0 in the paper", ", SGD minus S-SGD"
    if len(found) < 2:
        return [_measured_once(what[0], None, NOT_RUN, what[1])]
    difference = found["base"].largest - found["both"].largest
    small = any(map(is_small, found.values()))
    verdict = UNDECIDED if small else REPRODUCED if difference > 0 else BELOW
    return [_measured_once(what[0], difference, verdict, what[1], small)]


def _measured_once(column: str, value: float | None, verdict: str, what: str = "", small: bool = False) -> Outcome:
    cell = Cell("figA6", None, f"largest eigenvalue{what}", column)
    once = Reading({}) if value is None else Reading({0: value}, Sample(value, math.nan, 1))
    return Outcome(cell, verdict, once, small=small)


def baseline_chart(part: Experiment, outcomes: Sequence[Outcome]) -> Chart:
    tried = [cell.x for cell in part.cells if cell.x]
    panels = []
    for data, paper in targets_of_sgd().items():
        mine = [point for o in outcomes if o.cell.column == data for point in ours(o.ours, o.cell.x)]
        off = [(x, mean - paper, sd, [value - paper for value in seeds]) for x, mean, sd, seeds in mine]
        theirs = series("the paper's SGD", [(x, 0.0) for x in (min(tried), max(tried))], "paper", line=True)
        panels.append(panel(data, theirs, series("ours", off)))
    y = "test accuracy minus the paper's, points"
    return curves(part, panels, title="SGD's accuracy by weight decay", x="weight decay", y=y, scale="log")


def forests(part: Experiment, found: Sequence[Outcome]) -> list[Chart]:
    """Gains, which nets and data sets of any accuracy can show on one axis: a chart for each kind of figure.

    Their groups are what the lines share, and of the settings the methods, so that each is one row of its method.
    """
    settings = part.name == "ablations"
    rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
    line: dict[str, Any] = {}
    for one in found:
        if not one.ours.differences or one.cost is None:
            continue
        group, name = (one.cell.row, one.cell.column) if settings else (one.cell.column, one.cell.row)
        rows.setdefault(one.cell.metric.rpartition("_")[2], {}).setdefault(group, []).append(gain_of(one, name))
        if settings and one.paper_gain is not None:
            line = {"line": {"at": one.paper_gain, "label": f"the paper's both signs, +{one.paper_gain:.2f}"}}
    held_out = " on data held out" if part.held_out else ""
    return [
        {
            "name": part.name if len(rows) == 1 else f"{part.name}-{kind}",
            "title": f"What each method gains over {part.base}{held_out}",
            "x": f"gain, {UNITS.get(kind, kind)}",
            "caption": GAINS.format(base=part.base),
            "groups": [{"name": name, "rows": mine} for name, mine in groups.items()],
            **line,
        }
        for kind, groups in rows.items()
    ]


def gain_of(one: Outcome, name: str) -> dict[str, Any]:
    """A row of a forest: the gain, above 0 where it is better."""
    gain = one.ours.gain
    assert gain is not None
    low, high = sorted((one.sign * gain.low, one.sign * gain.high))
    seeds = [one.sign * value for value in one.ours.differences.values()]
    theirs = None if one.paper_gain is None else one.sign * one.paper_gain
    numbers = {"mean": one.sign * gain.middle, "low": low, "high": high, "paper": theirs, "cost": one.cost}
    return {"name": name, "count": len(seeds), "seeds": digits(seeds)} | {key: digits(v) for key, v in numbers.items()}


def passes_chart(found: Sequence[Outcome]) -> Chart:
    """Test accuracy against passes, where most was run: a panel for each cost, in it a point for each method."""
    column = found[0].cell.column
    panels: dict[float, list[Series | None]] = {}
    for one in sorted(found, key=lambda one: one.passes or 0.0):
        if one.cell.column == column and one.passes and len(one.ours.values) > 1:
            panels.setdefault(one.passes, []).append(series(one.cell.row, ours(one.ours, -0.47), beside=True))
    return {
        "name": "passes",
        "title": f"Test accuracy against passes over the data: {column}",
        "x": "",
        "y": "test accuracy, %",
        "scale": "names",
        "names": [""],
        "caption": "Means ± standard deviations of the methods with several seeds.",
        "panels": [panel(f"{passes:g} passes", *drawn) for passes, drawn in panels.items()],
    }


def _with_gaps(points: list[Point], xs: list[float]) -> list[Point]:
    """No line is drawn between points that have another x of the chart between them."""
    found: list[Point] = []
    for point in points:
        if found and xs.index(point[0]) - xs.index(found[-1][0]) > 1:
            found.append((point[0], None))
        found.append(point)
    return found


def _panel_of(part: Experiment, cell: Cell) -> str:
    return cell.column if part.x_scale == "names" or not part.part else cell.row


def _names(part: Experiment) -> list[str]:
    return list(dict.fromkeys(cell.row for cell in part.cells)) if part.x_scale == "names" else []


def _mean_sd(values: Array) -> list[tuple[float, float]]:
    spread = values.std(0, ddof=1) if len(values) > 1 else np.full(values.shape[1], np.nan)
    return list(zip(values.mean(0).tolist(), spread.tolist(), strict=True))
