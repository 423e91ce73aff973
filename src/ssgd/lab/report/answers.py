"""What came out, in a sentence: of the whole, of the paper's numbers, and of each question of our own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..experiments.catalogue import experiment
from ..experiments.questions import targets_of_sgd
from ..experiments.tables import targets
from .outcomes import Judge, Outcome, compared, tally
from .verdicts import ABOVE, BELOW, CALIBRATED, FAILED, NOT_RUN, REPRODUCED, UNDECIDED
from .wording import gained, signed

FIRST = "equal_cost/cifar100/resnet20"
GROUPS = {  # of the bar, and of the filter of the tables
    "reproduced": (REPRODUCED,),
    "calibrated": (CALIBRATED,),
    "undecided": (UNDECIDED,),
    "not reproduced": (BELOW, ABOVE, FAILED),
    "not run": (NOT_RUN,),
}


def headline(judge: Judge) -> str:
    """Says what S-SGD gained at SGD's cost and at twice that, as far as it was run."""
    cells = {cell.name: cell for cell in experiment("equal_cost").cells}
    split, both = (judge.outcome(cells[f"{FIRST}/{label}"], unseen=True) for label in ("split-0.15", "both-0.29"))
    said = [
        f"at {cost} {gained(one.ours.gain)} points ({name}, {_seeds(one)})"
        for one, cost, name in ((split, "SGD's cost", "split"), (both, "twice the cost", "both signs"))
        if one.ours.differences
    ]
    if not said:
        return ""
    theirs = f", where the paper says {signed(both.paper_gain)}" if both.ours.differences else ""
    return f"ResNet20 on CIFAR-100, test accuracy over SGD's: {'; '.join(said)}{theirs}."


def _seeds(one: Outcome) -> str:
    count = len(one.ours.differences)
    return f"{count} seeds" if count > 1 else "one seed"


def counted(found: Iterable[Outcome]) -> str:
    """Counts the paper's numbers, each where it stands first."""
    first = first_of_each(found)
    run = [one for one in first if one.verdict != NOT_RUN]
    if not run:
        return f"None of the paper's {len(first)} numbers has been run."
    single = sum(len(one.ours.values) == 1 for one in run)
    said = _said("Confirmed", [one.verdict for one in run])
    return f"We ran {len(run)} of the paper's {len(first)} numbers, {single} of them with a single seed. {said}"


def gains_of_the_paper(found: Iterable[Outcome]) -> str:
    """Counts the verdicts of the gains, of the numbers that the paper compares with SGD's."""
    return _said("Gains over SGD confirmed", [one.gain_verdict for one in first_of_each(found) if one.gain_verdict])


def bars(found: Iterable[Outcome]) -> dict[str, dict[str, int]]:
    """Counts the groups of verdicts, of accuracies and of gains."""
    first = first_of_each(found)
    said = {"accuracy": [one.verdict for one in first], "gain": [one.gain_verdict for one in first if one.gain_verdict]}
    said["gain"] += [NOT_RUN for one in first if one.cell.gain is not None and not one.gain_verdict]
    return {
        what: {group: sum(map(verdicts.count, names)) for group, names in GROUPS.items()}
        for what, verdicts in said.items()
    }


WORDS = {  # for what was not reproduced
    BELOW: "below the paper",
    ABOVE: "above the paper",
    UNDECIDED: "too uncertain",
    CALIBRATED: "used to choose settings, which proves nothing",
    FAILED: "failed",
}


def _said(what: str, verdicts: Sequence[str | None]) -> str:
    """Says how many are confirmed, and what became of the others."""
    counts = tally([one for one in verdicts if one != NOT_RUN])
    if not counts:
        return ""
    others = ", ".join(f"{counts[name]} {told}" for name, told in WORDS.items() if counts.get(name))
    return f"{what}: {counts.get(REPRODUCED, 0)}{f'; {others}' if others else ''}."


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
    if name == "baseline":
        return nearest(shown)
    if name == "noise_units":
        return apart(shown)
    column = shown[0].cell.column
    told = by_cost([one for one in shown if one.cell.column == column])
    return f"{column}, over the base: {told}" if told else ""


def by_cost(found: Sequence[Outcome]) -> str:
    """Names the largest gain at the base's cost, and the largest at more."""
    judged = [one for one in found if one.ours.gain and one.cost]
    said = []
    for where, mine in (
        ("at its cost", [one for one in judged if one.cost and one.cost < 1.1]),
        ("at a higher cost", [one for one in judged if one.cost and one.cost >= 1.1]),
    ):
        if mine:
            best = max(mine, key=lambda one: one.sign * one.ours.gain.middle if one.ours.gain else 0.0)
            said.append(f"{where} {best.cell.row} {gained(best.ours.gain)}")
    return "; ".join(said)


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


def _mean(one: Outcome) -> float:
    assert one.ours.sample is not None
    return one.ours.sample.mean
