"""The rows under results/ say what was run, and the baseline told in docs is that of its rows."""

import json
from pathlib import Path
from statistics import mean, stdev

import pytest

ROOT = Path(__file__).parent.parent
NEEDED = {
    "experiment",
    "model",
    "data",
    "method",
    "mode",
    "level",
    "distribution",
    "phases",
    "weight_decay",
    "seed",
    "epochs",
}
NEEDED |= {"passes", "seconds", "device", "versions", "commit"}
FIGURES = ({"train_accuracy", "test_accuracy"}, {"test_perplexity"}, {"test_wer", "test_cer"})  # of what is learnt


def rows(name):
    return [json.loads(line) for line in (ROOT / "results" / name).read_text().splitlines()]


@pytest.mark.parametrize("file", sorted(path.name for path in (ROOT / "results").glob("*.jsonl")))
def test_every_row_says_what_was_run(file):
    for row in rows(file):
        assert set(row) >= NEEDED and row["commit"]
        assert any(set(row) >= figures for figures in FIGURES)


@pytest.mark.parametrize("decay", [1e-4, 2e-4, 5e-4])
def test_the_baseline_is_told_as_its_rows_have_it(decay):
    cells = [f"{decay:.0e}".replace("e-0", "e-")]
    for data in ("cifar10", "cifar100"):
        found = [row for row in rows("baseline.jsonl") if row["data"] == data and row["weight_decay"] == decay]
        test = [row["test_accuracy"] for row in sorted(found, key=lambda row: row["seed"])]
        assert len(test) == 3
        cells += [", ".join(f"{x:.2f}" for x in test), f"{mean(test):.2f} ± {stdev(test):.2f}"]
    assert f"| {' | '.join(cells)} |" in (ROOT / "docs" / "price.md").read_text()
