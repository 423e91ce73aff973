"""Plans and outcomes in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev

from ..columns import in_columns
from ..train.kinds import figure
from ..train.recipe import Execution
from .catalogue import experiments
from .cells import OURS
from .planning import Plan, Planned, device_name, expected_seconds, missing, plan
from .rows import Results


def listing(scale: str, results: Results, out: str | Path) -> str:
    """Every experiment on a line, with how many of its runs are done."""
    rows = [("name", "where", f"runs done ({scale})", "what it shows")]
    for experiment in experiments():
        found = plan(experiment, scale, results, out)
        done = sum(run.row is not None for run in found.runs)
        rows.append((experiment.name, experiment.part or OURS, f"{done} of {len(found.runs)}", experiment.subject))
    return in_columns(rows)


def of_plans(plans: Sequence[Plan], results: Results, execution: Execution, limit: int | None = None) -> str:
    """What there is to do, and what all of it costs."""
    runs = [run for _, run in missing(plans).values()]
    line = f"in all: {len(runs)} to do, each training once"
    if limit is not None and limit < len(runs):
        runs = runs[:limit]
        line += f", {limit} of them now"
    if cut := sum(run.begun > 0 for run in runs):
        line += f" ({cut} of which go on where they were cut)"
    lines = (
        [
            line,
            f"cost: {sum(run.left for run in runs):,.0f} passes over the data",
            f"expected time: {_time(runs, results, execution)}",
        ]
        if runs
        else [line]
    )
    if results.skipped:
        lines.append(f"note: {len(results.skipped)} lines of the results cannot be read ({results.skipped[0]} first)")
    return "\n\n".join([*map(_of_plan, plans), "\n".join(lines)])


def _of_plan(plan: Plan) -> str:
    experiment, recipes = plan.experiment, plan.experiment.recipes(plan.scale)
    counts = {len(recipes)}, {len(one.seeds) for one in recipes}, {one.schedule.epochs for one in recipes}
    extent = ", ".join(map(_counted, counts, ("recipe", "seed", "epoch")))
    if plan.scale == "smoke":
        extent = "embedded data, tiny nets, an epoch a phase; no figure of it means anything"
    done = len(plan.runs) - len(plan.to_do)
    lines = [
        f"{experiment.name} ({experiment.part or OURS}): {experiment.subject}",
        f"scale {plan.scale}: {extent}",
        *([f"note: {experiment.before}"] if experiment.before else []),
        f"{len(plan.runs)} runs, {done} done, {len(plan.to_do)} to do",
    ]
    if experiment.picture and plan.pictures:
        files = ", ".join(f"{path}.npz" for path in plan.pictures.values())
        lines.append(f"then the {experiment.picture.kind} from the solutions: {files}")
    return "\n".join(lines)


def to_do(plans: Sequence[Plan], limit: int | None = None) -> str:
    """The missing runs by recipe, for ``--only`` to choose from."""
    rows: list[tuple[str, ...]] = [("to do", "seeds", "passes each")]
    runs = [run for _, run in missing(plans).values()][:limit]
    for name in dict.fromkeys(run.recipe.name for run in runs):
        mine = [run for run in runs if run.recipe.name == name]
        passes = dict.fromkeys(f"{run.left:g}" for run in mine)
        rows.append((name, ", ".join(str(run.seed) for run in mine), ", ".join(passes)))
    return in_columns(rows)


def outcome(plan: Plan, results: Results) -> str:
    """The last epoch's test figure over the seeds of each recipe that has rows."""
    head = ("recipe", "seeds", "test", "passes")
    rows: list[tuple[str, ...]] = [head]
    for name in dict.fromkeys(run.recipe.name for run in plan.runs):
        mine = [run for run in plan.runs if run.recipe.name == name]
        values = [value for run in mine if run.row is not None and (value := figure(run.row)) is not None]
        spread = f" ± {stdev(values):.2f}" if len(values) > 1 else ""
        test = f"{mean(values):.2f}{spread}" if values else "–"
        if diverged := sum(run.row is not None and "diverged" in run.row for run in mine):
            test = f"{test}, {diverged} diverged" if values else f"{diverged} diverged"
        rows.append((name, f"{len(values)} of {len(mine)}", test, f"{mine[0].passes:g}"))
    kept = results.folder / f"{plan.experiment.name}.jsonl"
    lacking = [f"runs: {len(plan.to_do)}"] if plan.to_do else []
    lacking += [f"{path}.npz" for path in plan.pictures.values()]
    missing = f"still missing: {', '.join(lacking)}" if lacking else "nothing is missing"
    return f"{in_columns(rows)}\n{missing}; new rows go to {kept}"


def _counted(numbers: set[int], what: str) -> str:
    low, high = min(numbers), max(numbers)
    many = "s" if high > 1 else ""
    return f"{low} {what}{many}" if low == high else f"{low} to {high} {what}{many}"


def _time(runs: Sequence[Planned], results: Results, execution: Execution) -> str:
    device = device_name(execution)
    at_once = min(execution.at_once, len(runs)) if execution.kind == "cuda" else 1
    seconds, unknown = expected_seconds(runs, results.rows, device, at_once)
    where = f"on {device}" + (f", {at_once} side by side" if at_once > 1 else "")
    if not seconds:
        return f"not known: no finished row {where} is of {' or '.join(sorted(unknown))}"
    rest = f"; not known for {', '.join(sorted(unknown))}, of which there is no row {where}" if unknown else ""
    return f"about {_duration(seconds)} {where}, by the rows there are{rest}"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"
