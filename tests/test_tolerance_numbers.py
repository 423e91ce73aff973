"""scripts/tolerance_numbers.py: what is compared at equal clean loss, and which differences stay after Holm."""

import math
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

import tolerance_numbers as script

from ssgd.lab.experiments.statistics import Difference


class Made:
    """Rows of tolerance-text whose loss is a function of method, level and damage, in bits."""

    def __init__(self, bits):
        self.bits = bits

    def of(self, cell):
        method, level = cell.unnamed.method, cell.unnamed.level

        def row(seed):
            damages = [script.CLEAN, *script.TEXT.damages]
            found = {name: {} for name, _ in damages}
            for name, strength in damages:
                loss = self.bits(method, level or 0.0, name == "none") + seed / 100
                found[name][strength] = {"loss": [loss * math.log(2)]}
            return {"tolerance": found}

        return {seed: row(seed) for seed in (1, 2, 3)}


def test_the_pair_is_taken_where_its_clean_loss_is_the_rivals():
    def bits(method, level, clean):
        cost = {"base": 0.0, "split": 2.0, "one-sided": 2.25, "one-sided-halves": 2.0}[method] * level
        return 2 + cost if clean else 3 - level

    found = script.advantages(script.TEXT, Made(bits))
    assert found["one-sided", script.CLEAN].mean == pytest.approx(0)
    assert found["one-sided", ("noise", "0.3")].mean == pytest.approx(0.18 - 0.16)  # the pair's level of equal loss
    assert found["one-sided-halves", ("noise", "0.3")].mean == pytest.approx(0)
    assert script.adds(Made(bits), "text/one-sided", "noise/0.3", interval=False) == "+0.020"
    assert script.adds(Made(bits), "text/one-sided", "noise/0.3", interval=True) == "+0.020 to +0.020"


def test_beyond_its_highest_level_the_pair_is_taken_there():
    def bits(method, level, clean):
        return 2 + level * (1 + (method != "split")) if clean else 3 - level

    found = script.advantages(script.TEXT, Made(bits))
    assert found["one-sided-halves", script.CLEAN].mean == pytest.approx(2 * 0.19 - 0.2)
    assert found["one-sided-halves", ("pruning", "0.5")].mean == pytest.approx(0.2 - 0.19)


def test_holm_stops_at_the_first_that_is_too_likely():
    def difference(t):
        return Difference(t, math.sqrt(5), 5, 0.0, 0.0, 5)  # of five seeds, so t is mean ÷ (sd ÷ √5)

    likely, less, least = difference(2.132), difference(3.747), difference(8.61)  # by chance: 0.1, 0.02, 0.001
    assert script.holm({"a": likely, "b": less, "c": least}) == {"b", "c"}  # 0.02 against 0.05 / 2
    assert script.holm({"a": likely, "b": less, "c": less}) == set()  # 0.02 against 0.05 / 3
