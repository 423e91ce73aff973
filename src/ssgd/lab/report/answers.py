"""What came out, in a line: of the paper's numbers, and of each question of our own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from .cells import NOT_RUN, REPRODUCED, Outcome, tally
from .wording import NAMES, signed

if TYPE_CHECKING:
    from .questions import Line


def counted(outcomes: Iterable[Outcome]) -> str:
    """Of the paper's numbers, a training's where it stands first."""
    first = _first_of_each(outcomes)
    counts = tally(list(first.values()))
    ran = len(first) - counts.get(NOT_RUN, 0)
    if not ran:
        return f"None of the paper's {len(first)} numbers has been run."
    said = ", ".join(f"{count} {name}" for name, count in counts.items() if name != NOT_RUN)
    return f"Of the paper's {len(first)} numbers, each counted once, {ran} {'was' if ran == 1 else 'were'} run: {said}."


def compared(outcomes: Iterable[Outcome]) -> str:
    """Of the numbers that the paper compares with SGD's: how many are reproduced, and how our gains compare."""
    run = [o for o in _first_of_each(outcomes).values() if o.cell.gain is not None and o.gain is not None]
    same = [o for o in run if o.verdict == REPRODUCED]
    if not same:
        return ""
    single = sum(o.sample is not None and o.sample.count == 1 for o in same)
    less = sum(abs(o.gain or 0.0) < abs(o.cell.gain or 0.0) for o in same)
    told = (
        f"Of those, {len(run)} have a gain or a loss over SGD: {len(same)} are reproduced, {single} of them by a "
        f"single seed, and in {less} of the {len(same)} ours is smaller than the paper's."
    )
    again = [o for o in run if o.anew_verdict is not None]
    if not again:
        return told
    before, after = sum(o.verdict == REPRODUCED for o in again), sum(o.anew_verdict == REPRODUCED for o in again)
    return (
        f"{told} {len(again)} tell their accuracy with batch-norm's statistics gathered again for the clean weights "
        f"too: by that {after} of them are reproduced, by their own {before}."
    )


def gain(line: Line) -> str:
    found = line.difference
    if found is None:
        return line.method
    reach = f"{signed(found.low)} to {signed(found.high)}" if found.count > 1 else "one seed"
    return f"{line.method} {signed(found.mean)} ({reach})"


def gains(lines: Sequence[Line]) -> str:
    """Those of the first protocol, each over SGD."""
    mine = [line for line in lines if line.protocol == lines[0].protocol and line.difference]
    return f"{lines[0].protocol}, over SGD: {'; '.join(map(gain, mine))}" if mine else ""


def by_cost(lines: Sequence[Line]) -> str:
    """The gains of the first protocol, at SGD's cost and at more, of what has more than one seed, largest first."""
    mine = [line for line in lines if line.protocol == lines[0].protocol] if lines else []
    plain = min((line.passes for line in mine if line.difference is None and line.passes), default=None)
    judged = [line for line in mine if plain and line.passes and line.difference and line.difference.count > 1]
    cheap = [line for line in judged if plain and line.passes and line.passes < 1.1 * plain]
    dear = [line for line in judged if line not in cheap]
    said = [
        f"at {cost} {', '.join(f'{line.method} {signed(_mean(line))}' for line in sorted(of, key=_mean, reverse=True))}"
        for cost, of in (("SGD's cost", cheap), ("a higher cost", dear))
        if of
    ]
    return f"{mine[0].protocol}, points over SGD: {'; '.join(said)}" if said else ""


def ranges(lines: Sequence[Line]) -> str:
    """The least and the largest gain of each method over the protocols."""
    names = dict.fromkeys(line.method for line in lines if line.difference)
    found = {name: [_mean(line) for line in lines if line.method == name and line.difference] for name in names}
    said = [f"{name} {signed(min(mine))} to {signed(max(mine))}" for name, mine in found.items()]
    return f"over SGD, by setting: {'; '.join(said)}" if said else ""


def best(lines: Sequence[Line]) -> str:
    """Of each method the setting with the highest figure, under the first protocol."""
    found: dict[str, Line] = {}
    for line in (line for line in lines if line.protocol == lines[0].protocol):
        name = line.method.partition(" (")[0]
        found[name] = max(found.get(name, line), line, key=lambda one: one.test.mean)
    return f"{lines[0].protocol}, the best: {', '.join(line.method for line in found.values())}" if found else ""


def by_task(lines: Sequence[Line], name: str = NAMES["ssgd"]) -> str:
    """One method beside the base, task by task."""
    mine = [line for line in lines if line.difference and line.method.startswith(f"{name} (")]
    said = [f"{line.protocol} {gain(line).removeprefix(line.method + ' ')}" for line in mine]
    return f"{name} over the base: {'; '.join(said)}" if said else ""


def nearest(differences: dict[str, dict[float, float]]) -> str:
    """Of each data set the weight decay whose accuracy lies nearest to the paper's, and by how much it is off."""
    chosen = {data: min(found, key=lambda decay: abs(found[decay])) for data, found in differences.items() if found}
    said = [f"{decay:g} on {data} ({signed(differences[data][decay])})" for data, decay in chosen.items()]
    return f"nearest to the paper's: {', '.join(said)}" if said else ""


def off(ours: dict[str, dict[float, float]], paper: dict[float, float]) -> str:
    """How far each reading lies from the paper's curve, on average over the levels that both have."""
    apart = {
        distribution: [abs(y - paper[x]) for x, y in found.items() if x in paper]
        for distribution, found in ours.items()
    }
    said = [f"{distribution} {sum(found) / len(found):.2f}" for distribution, found in apart.items() if found]
    return f"points off figure 3, on average: {', '.join(said)}" if said else ""


def _first_of_each(outcomes: Iterable[Outcome]) -> dict[str, Outcome]:
    first: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.cell.paper is not None and outcome.cell.wanted is not None:
            first.setdefault(json.dumps([outcome.cell.wanted, outcome.cell.metric], sort_keys=True), outcome)
    return first


def _mean(line: Line) -> float:
    assert line.difference is not None
    return line.difference.mean
