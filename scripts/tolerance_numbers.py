"""The tables of docs/tolerance.md: nets without batch-norm under damage, and the noise of their gradients."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from ssgd.lab.experiments import Results, experiment
from ssgd.lab.experiments.rows import Row
from ssgd.lab.experiments.statistics import Difference, paired, sample

ROOT = Path(__file__).parent.parent
METHODS = {  # as the tables call them
    "base": "no noise",
    "split": "pair on halves (`split`)",
    "one-sided-halves": "two independent draws on halves",
    "one-sided": "one sign, whole batch",
    "both": "both signs, two passes",
    "sam": "SAM, two passes",
}
RIVALS = ("one-sided", "one-sided-halves")  # of which the question is what the pair adds to them
WAYS = {"one-sided": "one-sided", "independent": "one-sided-halves", "pair": "split", "both": "both"}
CLEAN = ("none", "0")
FEW_BITS = (("channel-bits", "4"), ("channel-bits", "3"))
Damage = tuple[str, str]
Arm = tuple[str, float | None]  # a method and its level
Arms = Mapping[Arm, Mapping[int, Row]]
BASE: Arm = ("base", None)


@dataclass(frozen=True)
class Net:
    """An experiment, the damages of its tables, and the figure that is read from a row for each.

    Methods are compared at the clean figure of an arm that is ``fixed``: a rival's own, or the pair's for all. What the
    other has there is interpolated between its levels, seed by seed.
    """

    name: str
    fixed: tuple[Arm, ...]
    damages: tuple[Damage, ...]
    figure: Callable[[Mapping[str, Any]], float]
    less_is_better: bool
    decimals: int

    def arms(self, results: Results) -> dict[Arm, dict[int, Row]]:
        """Returns the rows of each arm by seed."""
        cells = experiment(self.name).cells
        return {(cell.unnamed.method, cell.unnamed.level): results.of(cell) for cell in cells}

    def values(self, rows: Mapping[int, Row], damage: Damage) -> dict[int, float]:
        """Returns the figure under a damage by seed; of random damage it is the mean over the draws."""
        name, strength = damage
        return {seed: self.figure(row["tolerance"][name][strength]) for seed, row in rows.items()}

    def compared(self, results: Results, method: str, damage: Damage) -> tuple[dict[int, float], dict[int, float]]:
        """Returns the pair's figure and another method's by seed, at the clean figure of the arm that is fixed."""
        arms = self.arms(results)
        fixed = next((arm for arm in self.fixed if arm[0] == method), self.fixed[0])
        clean = self.values(arms[fixed], CLEAN)
        pair, other = (self._at(arms, clean, one, damage) for one in ("split", method))
        return pair, other

    def _at(self, arms: Arms, clean: Mapping[int, float], method: str, damage: Damage) -> dict[int, float]:
        """Returns a method's figure by seed where its clean figure is ``clean``.

        Between the two levels whose mean clean figures lie around that of ``clean``, the line through the means is
        followed from each seed's own figures: the choice of the level so has no part in the spread over seeds, and what
        is left of a difference in clean figures has. Beyond the last level, that level's figures are taken.
        """
        mine = [rows for arm, rows in arms.items() if arm[0] in ("base", method)]
        known = sorted(((self.values(rows, CLEAN), self.values(rows, damage)) for rows in mine), key=_mean_of_clean)
        at = mean(clean.values())
        above = next((number for number, one in enumerate(known) if _mean_of_clean(one) >= at), len(known))
        if above in (0, len(known)):
            return known[min(above, len(known) - 1)][1]
        (clean_a, a), (clean_b, b) = known[above - 1], known[above]
        seeds = sorted(clean.keys() & clean_a.keys() & clean_b.keys())
        from_a, to_b, wanted = (mean(one[seed] for seed in seeds) for one in (clean_a, clean_b, clean))
        share = (wanted - from_a) / (to_b - from_a)
        slope = mean(b[seed] - a[seed] for seed in seeds) / (to_b - from_a)
        found = {}
        for seed in seeds:
            reached = (1 - share) * clean_a[seed] + share * clean_b[seed]
            found[seed] = (1 - share) * a[seed] + share * b[seed] + slope * (clean[seed] - reached)
        return found


def _mean_of_clean(one: tuple[dict[int, float], dict[int, float]]) -> float:
    return mean(one[0].values())


def _noise(*strengths: str) -> tuple[Damage, ...]:
    return tuple(("noise", strength) for strength in strengths)


TEXT = Net(
    "tolerance-text",
    (("one-sided", 0.16), ("one-sided-halves", 0.19)),
    (*_noise("0.2", "0.3", "0.4"), ("pruning", "0.5"), *FEW_BITS),
    lambda found: found["loss"][0] / math.log(2),
    less_is_better=True,
    decimals=3,
)
DIGITS = Net(
    "tolerance-digits",
    (("split", 0.3),),
    (*_noise("0.3", "0.4", "0.5"), ("pruning", "0.5"), *FEW_BITS),
    lambda found: 100 - found["error"][0],
    less_is_better=False,
    decimals=1,
)


def damaged(net: Net, results: Results) -> list[list[str]]:
    """Returns the figure of each arm, mean and standard deviation over seeds, without and under each damage."""
    found = []
    for (method, level), rows in net.arms(results).items():
        samples = [sample(net.values(rows, damage).values()) for damage in (CLEAN, *net.damages)]
        head = METHODS[method] + ("" if level is None else f", {level:g}")
        found.append([head, *(f"{one.mean:.{net.decimals}f} ± {one.sd:.{net.decimals}f}" for one in samples)])
    return found


def advantages(net: Net, results: Results) -> dict[tuple[str, Damage], Difference]:
    """Returns how much better the pair is than each rival at equal clean loss, seed by seed, under each damage."""
    found = {}
    for method in RIVALS:
        for damage in (CLEAN, *net.damages):
            pair, other = net.compared(results, method, damage)
            one = paired(other, pair) if net.less_is_better else paired(pair, other)
            if one is not None:
                found[method, damage] = one
    return found


def pair_over(net: Net, results: Results) -> list[list[str]]:
    """Returns a row for each rival; bold where Holm's correction over all damages of both leaves a difference."""
    found = advantages(net, results)
    kept = holm({key: one for key, one in found.items() if key[1] != CLEAN})
    table: dict[str, list[str]] = {}
    for key, one in found.items():
        words = told(one, net.decimals)
        table.setdefault(key[0], [METHODS[key[0]]]).append(f"**{words}**" if key in kept else words)
    return list(table.values())


def holm(found: Mapping[Any, Difference], share: float = 0.05) -> set[Any]:
    """Returns which of several differences are other than 0 after Holm's correction for their number."""
    from scipy.stats import t

    chances = {
        key: 2 * t.sf(abs(one.mean) / one.sd * math.sqrt(one.count), one.count - 1) for key, one in found.items()
    }
    kept: set[Any] = set()
    for key in sorted(chances, key=chances.__getitem__):
        if chances[key] > share / (len(found) - len(kept)):
            break
        kept.add(key)
    return kept


def front(results: Results) -> list[list[str]]:
    """Returns bits per character of each arm in each size of batch, and what they are above those without noise."""
    cells = {(c.unnamed.batch, c.unnamed.method, c.unnamed.level): c for c in experiment("front-text").cells}
    bits = {key: results.of(cell)[0]["test_bits"] for key, cell in cells.items()}
    sizes = sorted({size for size, *_ in cells})
    table = []
    for method, level in dict.fromkeys((method, level) for _, method, level in cells):
        row = [METHODS[method] + ("" if level is None else f", {level:g}")]
        for size in sizes:
            value, base = bits.get((size, method, level)), bits[size, "base", None]
            row += ["", ""] if value is None else [f"{value:.3f}", f"{value - base:+.3f}".replace("-", "−")]
        table.append(row)
    return table


def gradients() -> list[dict[str, Any]]:
    """Returns the rows of scripts/gradient_noise.py."""
    found: list[dict[str, Any]] = json.loads((ROOT / "results" / "gradient-noise.json").read_text("utf-8"))["rows"]
    return found


def gradient_noise(results: Results) -> list[list[str]]:
    """Returns the variance of each way at each level, mean over the steps: linear and quadratic, by size of batch."""
    rows = gradients()
    sizes, levels = (sorted({one[what] for one in rows}) for what in ("batch", "level"))

    def average(size: int, level: float, way: str, part: str) -> str:
        return f"{mean(one['of'][way][part] for one in rows if (one['batch'], one['level']) == (size, level)):.3f}"

    table = []
    for level in levels:
        for way, method in WAYS.items():
            values = (average(size, level, way, part) for size in sizes for part in ("odd", "even"))
            table.append([f"{METHODS[method]}, {level:g}", *values])
    return [
        *table,
        ["the choice of the batch", *(f for s in sizes for f in (average(s, levels[0], "batch", "all"), ""))],
    ]


def adds(results: Results, method: str, damage: str, interval: bool) -> str:
    """Returns what the pair adds to ``text/one-sided`` under ``noise/0.3``, or the interval of it."""
    name, _, method = method.partition("/")
    net = {"text": TEXT, "digits": DIGITS}[name]
    strength = damage.partition("/")
    middle, _, rest = told(advantages(net, results)[method, (strength[0], strength[2])], net.decimals).partition(" (")
    return rest.removesuffix(")") if interval else middle


def told(one: Difference, decimals: int) -> str:
    middle, low, high = (f"{value:+.{decimals}f}".replace("-", "−") for value in (one.mean, one.low, one.high))
    return f"{middle} ({low} to {high})"


TABLES: dict[str, Callable[[Results], list[list[str]]]] = {
    "text_front": front,
    "text": partial(damaged, TEXT),
    "text_pair": partial(pair_over, TEXT),
    "small_digits": partial(damaged, DIGITS),
    "small_digits_pair": partial(pair_over, DIGITS),
    "gradient_noise": gradient_noise,
}
