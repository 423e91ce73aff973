"""The page: every table and figure of the paper with ours beside it, then our own questions, in one HTML file."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from ...files import make_room, write_whole
from ..experiments.catalogue import experiments
from ..experiments.cells import Experiment
from ..experiments.rows import Results
from .answers import GROUPS, answer, bars, counted, gains_of_the_paper, headline
from .charts import SPECTRA, Chart, charts_of, spectrum_outcomes
from .outcomes import Judge, Outcome, compared, tally
from .own import own_runs
from .surfaces import Measured, read_measured, surface_of
from .verdicts import NOT_RUN, RULE, rates
from .wording import gained, number, signed, spread

GROUP_OF = {name: group for group, names in GROUPS.items() for name in names}


@dataclass(frozen=True)
class Shown:
    """A part of the paper, a question of our own, or runs of one's own, as the page shows it."""

    part: Experiment
    outcomes: list[Outcome]
    charts: list[Chart]
    surfaces: list[dict[str, Any]]

    @property
    def counts(self) -> dict[str, int]:
        return tally([one.verdict for one in self.outcomes])

    @property
    def verdict(self) -> str:
        """The verdicts of the whole part in words."""
        if set(self.counts) == {NOT_RUN}:
            return NOT_RUN
        told = ", ".join(f"{count} {name}" for name, count in self.counts.items())
        gains = tally([one.gain_verdict for one in self.outcomes])
        return "; gains: ".join(filter(None, (told, ", ".join(f"{count} {name}" for name, count in gains.items()))))

    @property
    def run(self) -> dict[str, list[Outcome]]:
        """The lines of what was run, by what they share."""
        asked = not self.part.part and self.part.name != "own"
        return self._grouped(compared(self.outcomes) if asked else [o for o in self.outcomes if o.verdict != NOT_RUN])

    @property
    def to_run(self) -> dict[str, list[Outcome]]:
        """The lines of the paper's numbers that were not."""
        return self._grouped([one for one in self.outcomes if self.part.part and one.verdict == NOT_RUN])

    def _grouped(self, outcomes: list[Outcome]) -> dict[str, list[Outcome]]:
        found: dict[str, list[Outcome]] = {}
        for one in outcomes:
            found.setdefault(one.cell.row if self.along_rows else one.cell.column, []).append(one)
        return found

    @property
    def along_rows(self) -> bool:
        """Whether lines belong together by their row, as along a curve of a figure of the paper."""
        return bool(self.part.part) and self.part.x_scale != "names" and any(c.x is not None for c in self.part.cells)

    @property
    def answer(self) -> str:
        return answer(self.part.name, self.outcomes)

    @property
    def diverged(self) -> list[str]:
        return [f"{o.cell.row} ({o.cell.column}, seed {seed})" for o in self.outcomes for seed in o.diverged]

    def has(self, figure: str) -> bool:
        """Whether a line has such a figure."""
        return any(getattr(one, figure) for one in self.outcomes if one.ours.sample)

    @property
    def has_gains(self) -> bool:
        return any(one.ours.gain or one.cell.gain is not None for one in self.outcomes)

    @property
    def ours_called(self) -> str:
        """What the column of our figures is called."""
        return "ours" if self.part.part else "held out" if self.part.held_out else "test"


def write(results: str | Path, out: str | Path) -> str:
    """The page of a folder of results, or of one file of rows, at ``out``; what was read, in a sentence."""
    results, out = Path(results), Path(out)
    if not results.exists():
        raise FileNotFoundError(f"there is no {results}: name a folder or a file that holds rows, --results results")
    if out.is_dir():
        raise IsADirectoryError(f"{out} is a folder: name a file in it, --out {out / 'report.html'}")
    rows = Results(results)
    measured = read_measured(results)
    make_room(out)
    write_whole(out, render(rows, measured).encode())
    left = len(rows.skipped) + len(measured.complaints)
    also = f", {left} unreadable lines or files left out" if left else ""
    count = sum(row.get("scale") != "smoke" for row in rows.rows)
    smoke = len(rows.rows) - count
    also += f", {smoke} smoke tests left out" if smoke else ""
    return f"written: {out} ({count} runs{also})"


def render(results: Results, measured: Measured) -> str:
    try:
        import jinja2
    except ImportError:
        raise ImportError("the page needs jinja2: pip install 'ssgd[report]'") from None
    judge = Judge(results)
    every = [show(one, judge, measured) for one in experiments()]
    shown, asked = [s for s in every if s.part.part], [s for s in every if not s.part.part]
    found = [one for s in shown for one in s.outcomes]
    any_of_cells = any(one.verdict != NOT_RUN for s in every for one in s.outcomes)
    own = show(replace(own_runs(results), title="Other runs" if any_of_cells else "Your runs"), judge, measured)
    first = next((first_group(chart) for s in asked if s.part.name == "equal_cost" for chart in s.charts[:1]), None)
    rows = [row for row in results.rows if row.get("scale") != "smoke"]
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(asset), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    environment.policies["json.dumps_kwargs"] = {"sort_keys": False}  # the order of heights is that of the choice
    environment.filters.update(
        number=number, spread=spread, signed=signed, gained=gained, group=lambda verdict: GROUP_OF.get(verdict, "")
    )
    page: str = environment.get_template("page.html").render(
        shown=shown,
        questions=asked,
        own=own if own.outcomes else None,
        any_of_cells=any_of_cells,
        headline=headline(judge),
        first=first,
        bars=bars(found),
        counted=counted(found),
        compared=gains_of_the_paper(found),
        runs=len(rows),
        devices=sorted({device_name(row["device"]) for row in rows if row.get("device")}),
        rule=RULE,
        rates=rates(),
        complaints=[*results.skipped, *measured.complaints],
        smoke=len(results.rows) - len(rows),
        data={
            "charts": [*(c for s in [*every, own] for c in s.charts), *([first] if first else [])],
            "surfaces": {s.part.name: s.surfaces for s in shown if s.surfaces},
        },
        css=asset("page.css"),
        scripts=[asset(name) for name in ("curves.js", "forest.js", "surface.js", "page.js")],
    )
    return page


def show(part: Experiment, judge: Judge, measured: Measured) -> Shown:
    found = spectrum_outcomes(part.name, measured) if part.name in SPECTRA else judge.outcomes(part)
    surfaces = [surface_of(label, plane) for label, plane in measured.planes(part.name).items()]
    return Shown(part, found, charts_of(part, found, judge.results, measured), surfaces)


def first_group(chart: Chart) -> Chart:
    """What the whole chart begins with, for the top of the page."""
    return {**chart, "name": "first", "groups": chart["groups"][:1]}


def device_name(device: object) -> str:
    return "a CPU" if device == "cpu" else str(device)


def asset(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")
