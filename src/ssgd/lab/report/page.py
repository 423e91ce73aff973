"""The page: every table and figure of the paper with ours beside it, then our own questions, in one HTML file."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...files import make_room, write_whole
from .answers import compared, counted
from .beyond import beyond
from .cells import NOT_RUN, RULE, Outcome, outcome, tally
from .charts import SPECTRA, Chart, charts_of, spectrum_outcomes, surface_of
from .measured import Measured, read_measured
from .paper import Part, parts, targets
from .questions import questions
from .runs import Run, read_runs
from .wording import number, signed, spread, subject


@dataclass(frozen=True)
class Shown:
    """A part of the paper as the page shows it."""

    part: Part
    outcomes: list[Outcome]
    charts: list[Chart]
    surfaces: list[dict[str, Any]]

    @property
    def counts(self) -> dict[str, int]:
        return tally(self.outcomes)

    @property
    def verdict(self) -> str:
        """In words, of the whole part."""
        if set(self.counts) == {NOT_RUN}:
            return NOT_RUN
        return ", ".join(f"{count} {name}" for name, count in self.counts.items())

    @property
    def run(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.verdict != NOT_RUN]

    @property
    def to_run(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.verdict == NOT_RUN]

    @property
    def command(self) -> str:
        return f"ssgd reproduce {self.part.name}"


def write(results: str | Path, out: str | Path) -> str:
    """The page of a folder of results, at ``out``; what was read, in a sentence."""
    results, out = Path(results), Path(out)
    if not results.is_dir():
        raise FileNotFoundError(f"there is no folder {results}: name the one that holds the rows, --results results")
    if out.is_dir():
        raise IsADirectoryError(f"{out} is a folder: name a file in it, --out {out / 'report.html'}")
    runs, complaints, smoke = read_runs(results)
    measured = read_measured(results)
    make_room(out)
    write_whole(out, render(runs, measured, complaints, smoke).encode())
    left = len(complaints) + len(measured.complaints)
    also = f", {left} unreadable lines or files left out" if left else ""
    also += f", {smoke} smoke tests left out" if smoke else ""
    return f"written: {out} ({len(runs)} runs{also})"


def render(runs: list[Run], measured: Measured, complaints: list[str] | None = None, smoke: int = 0) -> str:
    try:
        import jinja2
    except ImportError:
        raise ImportError("the page needs jinja2: pip install 'ssgd[report]'") from None
    shown = [show(part, runs, measured) for part in parts()]
    asked = [*questions(runs), beyond(runs)]
    outcomes = [outcome for s in shown for outcome in s.outcomes]
    summary = next((first_group(c) for q in asked if q.name == "price" for c in q.charts), None)
    drawn = [c for s in shown for c in s.charts] + [c for q in asked for c in q.charts]
    drawn += [summary] if summary else []
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # the order of heights is that of the choice
    environment.filters.update(number=number, spread=spread, signed=signed, subject=subject)
    page: str = environment.get_template("page.html").render(
        shown=shown,
        questions=asked,
        summary=summary,
        counted=counted(outcomes),
        compared=compared(outcomes),
        runs=len(runs),
        devices=sorted({device_name(run.row["device"]) for run in runs if run.row.get("device")}),
        rule=RULE,
        complaints=[*(complaints or []), *measured.complaints],
        smoke=smoke,
        data={"charts": drawn, "surfaces": {s.part.name: s.surfaces for s in shown if s.surfaces}},
        css=asset("page.css"),
        scripts=[asset(name) for name in ("charts.js", "intervals.js", "surface.js", "page.js")],
    )
    return page


def show(part: Part, runs: list[Run], measured: Measured) -> Shown:
    if part.name in SPECTRA:
        found = spectrum_outcomes(part.name, measured)
    else:
        found = [outcome(cell, part.name, runs) for cell in part.cells]
        found = [o for o in found if not (o.cell.ours and o.verdict == NOT_RUN)]
    surfaces = [surface_of(plane) for plane in measured.planes(part.name)]
    return Shown(part, found, charts_of(part, found, runs, measured, targets()), surfaces)


def first_group(chart: Chart) -> Chart:
    """What the whole chart begins with, for the top of the page."""
    return {**chart, "name": "summary", "groups": chart["groups"][:1]}


def device_name(device: object) -> str:
    return "a CPU" if device == "cpu" else str(device)


def asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
