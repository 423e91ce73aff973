"""Our own questions on CIFAR: which weight decay, which reading of the level, what split is worth, what a pass buys."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from . import answers
from .charts import Chart, chart, curve
from .matching import CIFAR, USUAL, first_of_each_seed, same, whole_phases
from .paper import DISTRIBUTION, PHASED_LEVEL, targets
from .runs import ANEW, Run, is_number
from .statistics import Difference, Sample, paired, sample
from .wording import NAMES

VARIANT = ("method", "level", "distribution", "settings", "perturb", "phases")
USUAL_PROTOCOL = {**CIFAR, "model": "", "data": ""}
DATA = ("cifar10", "cifar100")
SPLIT_LEVEL = 0.26  # the one that tuning chose
PROTOCOL = {name: usual for name, usual in USUAL_PROTOCOL.items() if name not in (*VARIANT, "epochs")}


@dataclass(frozen=True)
class Line:
    """One method under one protocol, and its difference to SGD, or another base, over common seeds."""

    protocol: str
    method: str
    passes: float | None
    test: Sample
    difference: Difference | None
    anew: Sample | None = None  # with batch-norm's statistics gathered again
    anew_difference: Difference | None = None
    noise: Difference | None = None  # of split to halves, which has all of it but the noise


@dataclass(frozen=True)
class Question:
    name: str
    title: str
    about: str
    command: str
    lines: list[Line] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    measured: str = "test, %"
    base: str = "SGD"
    answer: str = ""  # what came out, in a line
    diverged: tuple[str, ...] = ()  # runs whose loss became nan or infinite: they stand in no line

    @property
    def ran(self) -> bool:
        drawn = [series for chart in self.charts for series in chart["series"] if not series["paper"]]
        return bool(self.lines or self.diverged or drawn)

    @property
    def by_protocol(self) -> dict[str, list[Line]]:
        """In the order in which they come."""
        names = dict.fromkeys(line.protocol for line in self.lines)
        return {name: [line for line in self.lines if line.protocol == name] for name in names}

    @property
    def anew(self) -> bool:
        return any(line.anew for line in self.lines)

    @property
    def noise(self) -> bool:
        return any(line.noise for line in self.lines)

    @property
    def paired(self) -> bool:
        return any(line.difference for line in self.lines)


def questions(runs: list[Run]) -> list[Question]:
    return [baseline(runs), split(runs), level(runs), setting(runs), price(runs), tune(runs)]


def baseline(runs: list[Run]) -> Question:
    t = targets()["table2_cifar"]["ResNet20"]["SGD"]
    paper = dict(zip(DATA, t, strict=True))
    lines, series = [], []
    off: dict[str, dict[float, float]] = {}
    gone: tuple[str, ...] = ()
    for place, data in enumerate(paper):
        fits = [run for run in runs if run.method == "sgd" and run.data == data and is_plain_cifar(run)]
        gone += lost(fits)
        fits, points = measured(fits), []
        decays = sorted({run.weight_decay for run in fits})
        for decay in decays:
            mine = first_of_each_seed(run for run in fits if same(run.weight_decay, decay))
            found = sample(figures(mine).values())
            lines.append(Line(data, f"weight decay {decay:g}", None, found, None))
            points.append((decay, found.mean - paper[data], found.sd))
            off.setdefault(data, {})[decay] = found.mean - paper[data]
        series += [curve(data, points, False, place)] if points else []
    tried = [point[0] for one in series for point in one["points"]] or [1e-4, 5e-4]
    series.append(curve("the paper's SGD", [(x, 0.0) for x in (min(tried), max(tried))], True, 7))
    drawn = chart("baseline", "weight decay", "test accuracy minus the paper's, points", series, scale="log")
    about = (
        "The paper does not state its weight decay. Which one gives its SGD, "
        f"{paper['cifar10']} % on CIFAR-10 and {paper['cifar100']} % on CIFAR-100? ResNet20, shortcut A, 175 epochs."
    )
    answer = answers.nearest(off)
    return Question(
        "baseline", "The baseline", about, "ssgd reproduce baseline", lines, [drawn], answer=answer, diverged=gone
    )


def split(runs: list[Run]) -> Question:
    about = (
        "One pass instead of two: +n on one half of the batch, −n on the other (split), against SGD, and against SGD "
        "with batch-norm over half-batches and no noise (halves), on CIFAR. Seeds share initialisation and data order; "
        "differences are those of common seeds."
    )
    lines, gone = compared(runs, lambda run: run.method in ("split", "halves") and run.data in DATA)
    commands = "ssgd reproduce price; ssgd reproduce setting"
    old = (
        "ssgd compare cifar100 --vary method=sgd,halves,split:0.15 distribution=sphere weight_decay=1e-4 seeds=0,1,2,3"
    )
    answer = answers.gains(lines)
    return Question("split", "Split", about, f"{commands}; {old}", lines, answer=answer, diverged=gone)


def level(runs: list[Run]) -> Question:
    lines, series = [], []
    curves: dict[str, dict[float, float]] = {}
    gone: tuple[str, ...] = ()
    theirs = targets()["fig3_noise_level"]["curves"]["S-SGD"]
    usual = [
        r for r in runs if r.data == "cifar100" and is_plain_cifar(r) and same(r.weight_decay, CIFAR["weight_decay"])
    ]
    sgd = first_of_each_seed(measured(run for run in usual if run.method == "sgd"))
    series.append(curve("S-SGD", [(p["level"], p["mean"], p["half_width"]) for p in theirs], True, 0))
    for colour, distribution in enumerate(("uniform", "sphere", "sign")):
        fits = [r for r in usual if r.method == "ssgd" and r.distribution == distribution and r.level is not None]
        gone += lost(fits)
        fits, points, again = measured(fits), [], []
        for at in sorted({run.level for run in fits if run.level is not None}):
            found = line(first_of_each_seed(r for r in fits if r.level == at), sgd or None, [])
            points.append((at, found.test.mean, found.test.sd))
            curves.setdefault(distribution, {})[at] = found.test.mean
            again.append((at, found.anew.mean, found.anew.sd) if found.anew else (at, None))
            lines.append(replace(found, protocol=distribution, method=f"level {at:g}"))
        series += [curve(distribution, points, False, colour)] if points else []
        told = any(point[1] is not None for point in again)
        series += [curve(f"{distribution}, batch-norm anew", again, False, (3, 6, 5)[colour])] if told else []
    about = (
        "Which reading of the paper's noise level a lies on its figure 3: the peak of uniform noise in units of the "
        "layer's rms (uniform), or the ratio of norms ‖n‖ / ‖w‖ (sphere)? ResNet20, CIFAR-100. Batch-norm anew: its "
        "statistics gathered again for the clean weights, where a run tells it."
    )
    drawn = chart("level", "noise level a", "test accuracy, %", series)
    answer = answers.off(curves, {point["level"]: point["mean"] for point in theirs})
    return Question("level", "The level", about, "ssgd reproduce level", lines, [drawn], answer=answer, diverged=gone)


def setting(runs: list[Run]) -> Question:
    about = (
        "The paper states neither its weight decay, nor what that is on, nor its shortcut (A pads with zeros, B "
        "projects), nor how fast batch-norm's statistics move (tf: as in TensorFlow, with which the paper trained), "
        "nor on how many devices, each with batch-norm of its own, a batch of 128 lay. Does what S-SGD brings over SGD "
        "hang on them? "
        "ResNet20, CIFAR-100. Seed 0, which tuning used, is left out."
    )
    nets = ("resnet20", "resnet20-B", "resnet20-tf")
    asked = [run for run in runs if run.seed != 0 and run.data == "cifar100" and run.model in nets]
    tried = (("ssgd", PHASED_LEVEL), ("split", SPLIT_LEVEL))

    def chosen(run: Run) -> bool:
        everywhere = (
            run.distribution == DISTRIBUTION
            and run.field("perturb") == "all"
            and whole_phases(run.phases) == CIFAR["phases"]
        )
        return (run.method, run.level) in tried and everywhere

    lines, gone = compared(asked, chosen)
    if len({line.protocol for line in lines}) < 2:  # one setting alone answers nothing
        lines = []
    answer = answers.ranges(lines)
    return Question("setting", "The setting", about, "ssgd reproduce setting", lines, answer=answer, diverged=gone)


def price(runs: list[Run]) -> Question:
    unseen = [run for run in runs if run.seed != 0]
    asked = {(protocol_of(run), variant(run)) for run in unseen if run.experiment.split("/")[0] == "price"}
    places = {protocol for protocol, _ in asked}
    papers = {(protocol_of(run), variant(run)) for run in unseen if is_the_papers(run)}  # also under table 1 or 2
    asked |= {(protocol, what) for protocol, what in papers if protocol in places}
    about = (
        "What a method costs, in passes over the data, and what it brings over SGD on the same seeds: mean of the "
        "differences, 95 % interval of Student's t, and how many seeds gained. In brackets is the level of noise, "
        f"{DISTRIBUTION} unless another is named, or ρ. Seed 0, which tuning used, is left out."
    )
    lines, gone = compared(unseen, lambda run: (protocol_of(run), variant(run)) in asked)
    drawn = [price_chart(lines)] if any(line.difference for line in lines) else []
    commands = "ssgd reproduce price; ssgd reproduce table1"
    answer = answers.by_cost(lines)
    return Question("price", "The price", about, commands, lines, drawn, answer=answer, diverged=gone)


def tune(runs: list[Run]) -> Question:
    held_out = [run for run in runs if run.field("held_out", 0)]
    about = "Noise level, and the ρ of SAM and ASAM alike, tried on training images held out."
    lines, gone = compared(held_out, lambda run: True, held_out=True)
    return Question(
        "tune",
        "Tuning",
        about,
        "ssgd reproduce tune",
        lines,
        measured="held out, %",
        answer=answers.best(lines),
        diverged=gone,
    )


def compared(
    runs: list[Run], chosen: Callable[[Run], bool], held_out: bool = False
) -> tuple[list[Line], tuple[str, ...]]:
    """The chosen runs, after the SGD that each is compared with: the same protocol, and the cost nearest to its own.

    And the names of those chosen that diverged.
    """
    lines = []
    asked = [run for run in runs if bool(run.field("held_out", 0)) == held_out]
    runs = measured(asked)
    for protocol in dict.fromkeys(protocol_of(run) for run in runs if chosen(run) and not is_sgd(run)):
        here = [run for run in runs if protocol_of(run) == protocol]
        plain = by_variant(run for run in here if is_sgd(run))
        others = by_variant(run for run in here if not is_sgd(run) and chosen(run))
        bases = [nearest(group[0], plain) for group in others]
        lines += [line(base, None, []) for base in plain if any(base is used for used in bases)]
        halves = next((group for group in others if group[0].method == "halves"), [])
        lines += [line(group, base, halves) for group, base in zip(others, bases, strict=True)]
    return lines, lost(run for run in asked if chosen(run))


def measured(runs: Iterable[Run]) -> list[Run]:
    return [run for run in runs if run.metric("test_accuracy") is not None]


def lost(runs: Iterable[Run]) -> tuple[str, ...]:
    return tuple(f"{told(run)} ({spoken(run)}, seed {run.seed})" for run in runs if run.diverged)


def by_variant(runs: Iterable[Run]) -> list[list[Run]]:
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(variant(run), []).append(run)
    return [first_of_each_seed(group) for group in found.values()]


def nearest(run: Run, plain: list[list[Run]]) -> list[Run] | None:
    cost = passes(run) or 1.0
    return min(plain, key=lambda group: abs(math.log((passes(group[0]) or 1.0) / cost)), default=None)


def line(group: list[Run], base: list[Run] | None, halves: list[Run]) -> Line:
    ours, first = figures(group), group[0]
    difference = paired(ours, figures(base)) if base else None
    again = figures(group, ANEW)
    return Line(
        spoken(first),
        told(first),
        passes(first),
        sample(ours.values()),
        difference,
        sample(again.values()) if again else None,
        paired(again, figures(base, ANEW)) if base else None,
        paired(ours, figures(halves)) if first.method == "split" and alike(first, halves) else None,
    )


def alike(run: Run, others: list[Run]) -> bool:
    """Halved in the same phases."""
    return any(whole_phases(run.phases) == whole_phases(other.phases) for other in others)


def price_chart(lines: list[Line]) -> Chart:
    """Gains, so that nets and data sets of any accuracy share one axis."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for line in lines:
        if drawn := interval(line):
            rows.setdefault(line.protocol, []).append(drawn)
    groups = [{"name": protocol, "rows": mine} for protocol, mine in rows.items()]
    return chart("price", "test accuracy minus SGD's, points, and its 95 % interval", "", [], groups=groups)


def interval(line: Line, less_is_better: bool = False) -> dict[str, Any] | None:
    """The gain, above 0 where it is better. Of one seed there is no interval: its ends are null."""
    found = line.difference
    if found is None or line.passes is None:
        return None
    sign = -1 if less_is_better else 1
    low, high = sorted((sign * found.low, sign * found.high)) if found.count > 1 else (None, None)
    ends = {"mean": sign * found.mean, "low": low, "high": high}
    return {"name": line.method, "passes": line.passes, **ends, "seeds": found.count}


def is_plain_cifar(run: Run) -> bool:
    """ResNet20 under the paper's protocol, whatever the method, its distribution and the weight decay."""
    free = ("weight_decay", "phases", "epochs")
    usual = all(same(run.field(name, value), value) for name, value in CIFAR.items() if name not in free)
    return bool(run.recipe) and run.model == "resnet20" and whole_phases(run.phases) == CIFAR["phases"] and usual


def is_sgd(run: Run) -> bool:
    """In all phases: one in brackets, 75-50(split:0.15)-50, has a method of its own."""
    return run.method == "sgd" and "(" not in run.phases


def is_the_papers(run: Run) -> bool:
    noise = (
        run.method == "ssgd"
        and run.distribution == DISTRIBUTION
        and run.level == PHASED_LEVEL
        and run.field("perturb") == "all"
    )
    return noise and whole_phases(run.phases) in map(whole_phases, targets()["table1_equal_compute"]["rows"])


def protocol_of(run: Run) -> str:
    """All that decides a result but the method, in one text."""
    return json.dumps({name: run.field(name, usual) for name, usual in PROTOCOL.items()}, sort_keys=True)


def variant(run: Run) -> str:
    """The method with all that belongs to it, in one text."""
    fields: dict[str, Any] = {name: run.field(name, USUAL.get(name)) for name in VARIANT}
    return json.dumps({**fields, "phases": whole_phases(run.phases)}, sort_keys=True)


def spoken(run: Run) -> str:
    fields = {name: run.field(name, USUAL[name]) for name in ("batch", "devices", "decayed")}
    unusual = [f"{name} {value}" for name, value in fields.items() if value != USUAL[name]]
    return ", ".join([run.model, run.data, f"weight decay {run.weight_decay:g}", *unusual])


def told(run: Run) -> str:
    """The method, its level and phases; the distribution where it is another than the paper's."""
    perturb = run.field("perturb", "all")
    of = (
        []
        if run.level is None
        else [f"{run.level:g}", *([run.distribution] if run.distribution not in (None, DISTRIBUTION) else [])]
    )
    of += [] if perturb == "all" else [f"{perturb} only"]
    name = NAMES.get(run.method, run.method)
    name += f" ({', '.join(of)})" if of else ""
    return f"{name}, {run.phases}" if "S" in run.phases or "(" in run.phases else name


def passes(run: Run) -> float | None:
    """Over the whole training; older rows have those of a step."""
    found, epochs = run.field("passes"), run.field("epochs")
    if not is_number(found) or not is_number(epochs) or found <= 0 or epochs <= 0:
        return None
    return float(found if found >= epochs else found * epochs)


def figures(runs: Iterable[Run], metric: str = "test_accuracy") -> dict[int, float]:
    """By seed."""
    found = {run.seed: run.metric(metric) for run in runs}
    return {seed: value for seed, value in found.items() if value is not None}
