"""What a run leaves: its row, its files, and nothing to train again."""

import json
from dataclasses import replace

from ssgd.lab.train import Recipe, RunDir, train
from ssgd.lab.train.running import Run

from .small_trainings import folder, small


def test_a_result_says_all_about_its_run(quiet, tmp_path):
    recipe = small(method="both", level=0.3, seeds=(3, 4))
    rows = train(recipe, replace(quiet, results=str(tmp_path / "new" / "results.jsonl")))
    assert " ".join(rows[0]) == (
        "experiment model data method mode level distribution noise_stream phases weight_decay devices seed epochs"
        " passes seconds train_loss train_accuracy train_top5_accuracy test_loss test_accuracy test_top5_accuracy"
        " test_accuracy_recomputed_bn skipped device versions commit recipe curve curves"
    )
    expected = {
        "experiment": "small",
        "method": "both",
        "mode": "both",
        "level": 0.3,
        "distribution": "sphere",
        "noise_stream": "torch",
        "passes": 4.0,
    }
    assert {key: rows[0][key] for key in expected} == expected
    assert [row["seed"] for row in rows] == [3, 4] and rows[0]["device"] == "cpu"
    assert [json.loads(line) for line in (tmp_path / "new" / "results.jsonl").open()] == rows
    for seed, row in zip((3, 4), rows, strict=True):
        assert RunDir(folder(quiet, seed=seed)).result() == row
        assert Recipe.from_json(row["recipe"]) == replace(recipe, seeds=(seed,), precision="fp32")
    names = {path.name for path in folder(quiet, seed=3).iterdir()}
    assert names == {
        "recipe.json", "environment.json", "metrics.jsonl", "timings.jsonl", "checkpoints", "weights.safetensors",
        "result.json", "lock", "fingerprint.json",
    }  # fmt: skip


def test_a_row_that_a_kill_has_swallowed_is_added_by_the_next_call(quiet, tmp_path):
    file = tmp_path / "results.jsonl"
    told = replace(quiet, results=str(file))
    rows = train(small(seeds=(3, 4)), told)
    whole = file.read_bytes()
    assert train(small(seeds=(3, 4)), told) == rows and file.read_bytes() == whole
    file.write_bytes(whole.splitlines(keepends=True)[1])
    assert train(small(seeds=(3, 4)), told) == rows
    assert sorted(file.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_the_result_is_that_of_the_last_epoch_not_of_the_best(quiet):
    row = train(small(phases="6-1", lr=(0.1, 30.0)), quiet)[0]
    metrics = RunDir(folder(quiet)).metrics()
    accuracies = [line["test_accuracy"] for line in metrics]
    assert row["test_accuracy"] == accuracies[-1] < max(accuracies) - 10
    assert row["test_loss"] == metrics[-1]["test_loss"]


def test_a_finished_run_is_read_and_not_trained_again(quiet, monkeypatch):
    first = train(small(), quiet)
    before = {path: path.stat().st_mtime_ns for path in folder(quiet).rglob("*")}
    monkeypatch.setattr(Run, "__init__", None)
    assert train(small(), quiet) == first
    assert {path: path.stat().st_mtime_ns for path in folder(quiet).rglob("*")} == before


def test_more_seeds_train_only_what_is_new(quiet):
    first = train(small(), quiet)
    assert train(small(seeds=(0, 1)), quiet)[:1] == first
