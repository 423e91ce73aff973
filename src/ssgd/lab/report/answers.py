"""What came out, in a line: of the paper's numbers, and of each question of our own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..experiments.questions import targets_of_sgd
from ..experiments.tables import targets
from .outcomes import Outcome, compared, tally
from .verdicts import CALIBRATED, NOT_RUN
from .wording import signed


def counted(found: Iterable[Outcome]) -> str:
    """Counts the paper's numbers, each where it stands first."""
    first = first_of_each(found)
    run = [one for one in first if one.verdict != NOT_RUN]
    if not run:
        return f"None of the paper's {len(first)} numbers has been run."
    fitted = sum(one.verdict == CALIBRATED for one in run)
    single = sum(one.sample is not None and one.sample.count == 1 for one in run)
    judged = [one for one in run if one.verdict != CALIBRATED]
    return (
        f"Of the paper's {len(first)} numbers, each counted once, {len(run)} {'was' if len(run) == 1 else 'were'} run, "
        f"{single} of them on a single seed. {fitted} are calibrated and not counted. "
        f"{_said('Accuracy', [one.verdict for one in judged])}"
    ).strip()


def gains_of_the_paper(found: Iterable[Outcome]) -> str:
    """Counts the verdicts of the gains, of the numbers that the paper compares with SGD's."""
    return _said("Gain over SGD", [o.gain_verdict for o in first_of_each(found) if o.gain_verdict != CALIBRATED])


def _said(what: str, verdicts: Sequence[str | None]) -> str:
    counts = {name: count for name, count in tally(verdicts).items() if name not in (NOT_RUN, CALIBRATED)}
    return f"{what}: {', '.join(f'{count} {name}' for name, count in counts.items())}." if counts else ""


def first_of_each(found: Iterable[Outcome]) -> list[Outcome]:
    """Returns the outcomes of the paper's numbers, that of a training where it stands first."""
    first: dict[tuple[str, str], Outcome] = {}
    for one in found:
        if one.cell.paper is not None:
            first.setdefault((one.cell.identity, one.cell.metric), one)
    return list(first.values())


def answer(name: str, found: Sequence[Outcome]) -> str:
    """Returns what came out of a question of our own."""
    shown = compared(found)
    if not shown:
        return ""
    column = shown[0].cell.column
    mine = [one for one in shown if one.cell.column == column]
    gained = [one for one in mine if one.difference]
    if name == "baseline":
        return nearest(shown)
    if name == "noise_units":
        return apart(shown)
    if name in ("tune", "front"):
        best: dict[str, Outcome] = {}
        for one in mine:
            method = one.cell.row.partition(" (")[0]
            best[method] = max(best.get(method, one), one, key=_mean)
        return f"{column}, the best: {', '.join(one.cell.row for one in best.values())}"
    if name == "ablations":
        return ranges(shown)
    if name == "equal_cost":
        return by_cost(mine)
    if name == "other_tasks":
        both = [one for one in shown if one.difference and one.cell.name.endswith("/both")]
        return f"both signs over the base: {'; '.join(f'{o.cell.column} {gain(o)}' for o in both)}" if both else ""
    return f"{column}, over SGD: {'; '.join(f'{o.cell.row} {gain(o)}' for o in gained)}" if gained else ""


def gain(one: Outcome) -> str:
    found = one.difference
    assert found is not None
    reach = f"{signed(found.low)} to {signed(found.high)}" if found.count > 1 else "one seed"
    return f"{signed(found.mean)} ({reach})"


def by_cost(found: Sequence[Outcome]) -> str:
    """Lists the gains at SGD's cost and at more, of what has more than one seed, largest first."""
    plain = min((one.passes for one in found if one.cell.base is None and one.passes), default=None)
    judged = [one for one in found if plain and one.passes and one.difference and one.difference.count > 1]
    cheap = [one for one in judged if plain and one.passes and one.passes < 1.1 * plain]
    dear = [one for one in judged if one not in cheap]
    said = [
        f"at {cost} {', '.join(f'{o.cell.row} {signed(_gain(o))}' for o in sorted(of, key=_gain, reverse=True))}"
        for cost, of in (("SGD's cost", cheap), ("a higher cost", dear))
        if of
    ]
    return f"{found[0].cell.column}, points over SGD: {'; '.join(said)}" if said else ""


def ranges(found: Sequence[Outcome]) -> str:
    """Gives the least and the largest gain of each method over the settings."""
    gains: dict[str, list[float]] = {}
    for one in found:
        if one.difference:
            gains.setdefault(one.cell.row, []).append(_gain(one))
    said = [f"{name} {signed(min(mine))} to {signed(max(mine))}" for name, mine in gains.items()]
    return f"over SGD, by setting: {'; '.join(said)}" if said else ""


def nearest(found: Sequence[Outcome]) -> str:
    """Names, for each data set, the weight decay whose accuracy lies nearest to the paper's."""
    said = []
    for data, paper in targets_of_sgd().items():
        off = {one.cell.x: _mean(one) - paper for one in found if one.cell.column == data}
        if off:
            decay = min(off, key=lambda decay: abs(off[decay]))
            said.append(f"{decay:g} on {data} ({signed(off[decay])})")
    return f"nearest to the paper's: {', '.join(said)}" if said else ""


def apart(found: Sequence[Outcome]) -> str:
    """Says how far each reading of the level lies from the paper's curve, on average."""
    paper = {point["level"]: point["mean"] for point in targets()["fig3_noise_level"]["curves"]["S-SGD"]}
    off: dict[str, list[float]] = {}
    for one in found:
        off.setdefault(one.cell.column, []).append(abs(_mean(one) - paper[one.cell.x]))
    said = [f"{distribution} {sum(mine) / len(mine):.2f}" for distribution, mine in off.items()]
    return f"points off figure 3, on average: {', '.join(said)}" if said else ""


def _gain(one: Outcome) -> float:
    assert one.difference is not None
    return one.difference.mean


def _mean(one: Outcome) -> float:
    assert one.sample is not None
    return one.sample.mean
