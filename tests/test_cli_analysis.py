"""The commands that look at what a training has left."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from ssgd.cli import main as main_module
from ssgd.cli.main import main
from ssgd.core.batchnorm import tracking_layers
from ssgd.lab.experiments import get
from ssgd.lab.solutions import solution, tasks
from ssgd.lab.train import Execution, train
from ssgd.lab.train.job import Sources

FEW = ["--limit", "40", "--device", "cpu", "--quiet"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Three finished runs, and their results."""
    folder = tmp_path_factory.mktemp("runs")
    found = {}
    for name, words in {"a": [], "b": ["seeds=1"], "c": ["method=split"]}.items():
        recipe = get("digits").with_changes([f"name={name}", "phases=1", "lr=0.1", "train_limit=200", *words])
        (result,) = train(recipe, Execution(out=str(folder), progress=False))
        found[str(folder / name / f"seed-{recipe.seeds[0]}")] = result
    return found


def test_a_line_has_the_runs_own_metrics_at_its_ends(runs, tmp_path, capsys):
    (a, first), (b, second), _ = runs.items()
    out = tmp_path / "deep" / "line"
    words = ["line", a, b, "--points", "3", "--batchnorm", "keep", "--out", str(out), "--device", "cpu", "--quiet"]
    assert main(words) == 0
    with np.load(out / "line.npz") as arrays:
        losses, errors = arrays["anchor_losses"], arrays["anchor_errors"]
    tasks = json.loads((out / "line.json").read_text())["tasks"]
    for place, result in enumerate((first, second)):
        for task in ("train", "test"):
            row = tasks.index(task)
            assert losses[row, place] == pytest.approx(result[f"{task}_loss"], rel=1e-6)
            assert errors[row, place] == pytest.approx(100 - result[f"{task}_accuracy"])
    assert (out / "line.png").stat().st_size and "error" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["line", "plane"])
def test_points_of_other_data_are_not_taken_up(runs, tmp_path, monkeypatch, capsys, kind):
    monkeypatch.chdir(tmp_path)
    words = [kind, *list(runs)[: 2 if kind == "line" else 3], "--points", "2", "--device", "cpu", "--quiet"]
    assert main([*words, "--limit", "40"]) == 0 == main([*words, "--limit", "40"])
    found = Path("analysis", kind, f"{kind}.npz")
    before = found.read_bytes()
    assert main([*words, "--limit", "50"]) == 2
    assert f"{kind}.jsonl holds another evaluation (other data): choose another name" in capsys.readouterr().err
    assert found.read_bytes() == before


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--points", "0"], "points must be a whole number of at least 1"), (["--margin", "nan"], "give a finite margin")],
)
def test_grids_without_points_are_refused(runs, tmp_path, capsys, words, sentence):
    for kind, count in (("line", 2), ("plane", 3)):
        assert main([kind, *list(runs)[:count], *words, "--out", str(tmp_path / kind), *FEW]) == 2
        assert sentence in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_all_files_lie_in_one_folder_named_by_their_runs(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(Path(next(iter(runs))).parent, "runs/split-0.15")
    run = "runs/split-0.15/seed-0"
    some = {"line": [run, list(runs)[1]], "plane": [run, *list(runs)[1:]], "spectrum": [run]}
    grid = {"line": ["--points", "2"], "plane": ["--points", "2"], "spectrum": ["--steps", "2", "--probes", "1"]}
    for command, paths in some.items():
        assert main([command, *paths, *grid[command], *FEW]) == 0
        assert capsys.readouterr().out.splitlines()[-1].endswith(f"in analysis/{command}")
    assert {str(path) for path in Path("analysis").rglob("*.*")} == {
        *(f"analysis/line/line{ending}" for ending in (".jsonl", ".npz", ".json", ".png")),
        *(f"analysis/plane/plane{ending}" for ending in (".jsonl", ".npz", ".json")),
        *(f"analysis/plane/plane-{part}.png" for part in ("train", "test")),
        *(f"analysis/spectrum/runs-split-0.15-seed-0{ending}" for ending in (".npz", ".json")),
        "analysis/spectrum/spectrum.png",
    }
    assert sorted(path.name for path in Path().iterdir()) == ["analysis", "runs"]


def test_the_folder_of_a_training_stands_for_its_seeds(runs, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for number, run in zip((0, 2, 10), runs, strict=True):
        shutil.copytree(run, f"runs/x/seed-{number}")
    assert main(["plane", "runs/x", "--points", "2", *FEW]) == 0
    assert json.loads(Path("analysis/plane/plane.json").read_text())["names"] == ["seed-0", "seed-2", "seed-10"]
    assert main(["line", "runs/x", "--points", "2", *FEW]) == 2
    assert "a line goes through 2 solutions: name 2 runs, not 3" in capsys.readouterr().err


def test_a_plane_is_drawn(runs, tmp_path):
    out = tmp_path / "plane"
    assert main(["plane", *runs, "--points", "3", "--out", str(out), *FEW]) == 0
    for ending in ("-train.png", "-test.png", ".npz", ".json"):
        assert (out / f"plane{ending}").stat().st_size


def test_a_plane_in_less_precision(runs, tmp_path):
    out = tmp_path / "plane"
    words = ["plane", *runs, "--points", "2", "--precision", "bf16", "--out", str(out), *FEW]
    assert main(words) == 0
    assert json.loads((out / "plane.json").read_text())["precision"] == "bf16"


def test_loss_and_errors_come_from_one_pass(runs):
    task = tasks(solution(next(iter(runs))), Execution(progress=False, device="cpu"), limit=40)["train"]
    calls = []
    task.model.register_forward_hook(lambda *_: calls.append(1))
    loss, error = task.measure()
    assert len(calls) == len(list(task.batches)) and loss > 0 and 0 <= error <= 100


def test_statistics_are_those_of_images_as_they_were_trained_on(tmp_path):
    """Moved images have other statistics than those they are of, and a net gets used to them."""
    execution = Execution(out=str(tmp_path), device="cpu", progress=False)
    words = ["phases=5-5", "lr=0.1,0.0001", "train_limit=300", "test_limit=200", "batch=50"]
    train(get("digits").with_changes([*words, "model=small-cnn"]), execution)
    found = solution(tmp_path / "digits" / "seed-0")
    task = tasks(found, execution)["train"]
    source = Sources(execution).get(found.recipe, torch.device("cpu"))
    first, *others = task.inputs_for_batchnorm()
    assert torch.equal(first, source.epoch(0, 0).batch(0, 50)[0]) and len(others) == 5
    running = [layer.running_var.clone() for layer in tracking_layers(task.model)]

    def distance(task):
        task.recompute_batchnorm()
        found = [layer.running_var for layer in tracking_layers(task.model)]
        return sum((a / b).log().abs().mean().item() for a, b in zip(found, running, strict=True))

    assert distance(task) < distance(replace(task, as_trained=None)) / 2
    plain = replace(found, recipe=replace(found.recipe, augment=False))
    assert tasks(plain, execution)["train"].as_trained is None


def test_a_limit_takes_fewer_samples_as_they_were(tmp_path):
    """Normalised by what the net was trained on, and never others than those."""
    execution = Execution(out=str(tmp_path), device="cpu", progress=False)
    changes = {
        "digits": ["lr=0.1", "train_limit=100", "test_limit=60"],
        "words": ["lr=1.0"],
        "utterances": ["lr=0.003"],
    }
    for name, words in changes.items():
        train(get(name).with_changes(["phases=1", *words]), execution)
        found = solution(tmp_path / name / "seed-0")
        whole, few, all_of_it = (tasks(found, execution, limit) for limit in (None, 5, 10**6))
        for part in ("train", "test"):
            given = [sample for batch in few[part].batches for sample in batch[0]]
            assert sum(few[part].size(batch) for batch in few[part].batches) == 5
            assert all_of_it[part].measure() == whole[part].measure()
            if name == "words":
                continue
            known = [sample for batch in whole[part].batches for sample in batch[0]]
            same = [any(a[:, :n].equal(b[:, :n]) for b in known if (n := min(a.shape[1], b.shape[1]))) for a in given]
            assert all(same), (name, part)
    with pytest.raises(ValueError, match="limit must be a whole number of at least 1, not 0"):
        tasks(found, execution, 0)


def test_a_language_model_is_judged_from_the_beginning_of_every_batch(tmp_path):
    execution = Execution(out=str(tmp_path), device="cpu", progress=False)
    train(get("words").with_changes(["phases=1", "lr=1.0"]), execution)
    task = tasks(solution(tmp_path / "words" / "seed-0"), execution)["test"]
    batch = next(iter(task.batches))
    first, again = (float(task.loss(task.model, batch)) for _ in range(2))
    assert first == again and np.isfinite(first)
    losses, wrong, words = 0.0, 0, 0
    for x, y in task.batches:
        task.model.reset(len(x))
        with torch.no_grad():
            logits = task.model(x).flatten(0, 1)
        losses += float(nn.functional.cross_entropy(logits, y.flatten(), reduction="sum"))
        wrong, words = wrong + int((logits.argmax(1) != y.flatten()).sum()), words + y.numel()
    assert len({x.shape for x, _ in task.batches}) == 2  # the last is shorter
    assert task.measure() == pytest.approx((losses / words, 100 * wrong / words), rel=1e-5)


def test_utterances_have_a_loss_and_no_error(tmp_path, capsys):
    recipe = get("utterances").with_changes(["phases=1", "lr=0.003", "seeds=0,1"])
    results = train(recipe, Execution(out=str(tmp_path), device="cpu", progress=False))
    a, b = (str(tmp_path / "utterances" / f"seed-{seed}") for seed in (0, 1))
    words = ["line", a, b, "--points", "2", "--batchnorm", "keep", "--out", str(tmp_path / "line")]
    assert main([*words, "--device", "cpu", "--quiet"]) == 0
    (test,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("test:"))
    assert test == f"test: seed-0: loss {results[0]['test_loss']:.4f}, seed-1: loss {results[1]['test_loss']:.4f}"
    with np.load(tmp_path / "line" / "line.npz") as arrays:
        assert np.isnan(arrays["errors"]).all() and np.isfinite(arrays["losses"]).all()


@pytest.mark.parametrize("perturb", ["all", "conv"])
def test_a_run_of_dropconnect_can_be_looked_at(tmp_path, perturb):
    execution = Execution(out=str(tmp_path), device="cpu", progress=False)
    changes = ["phases=1", "lr=0.1", "train_limit=100", "test_limit=50", "method=dropconnect", f"perturb={perturb}"]
    (result,) = train(get("digits").with_changes(changes), execution)
    (saved,) = (tmp_path / "digits" / "seed-0" / "checkpoints").glob("*.pt")
    for path in (tmp_path / "digits" / "seed-0", saved):
        loss, error = tasks(solution(path), execution)["test"].measure()
        assert loss == pytest.approx(result["test_loss"], rel=1e-5)
        assert error == pytest.approx(100 - result["test_accuracy"])


def test_probes_together(runs, tmp_path, capsys):
    out = tmp_path / "spectrum"
    for together, passes in ((1, 4 * 18), (2, 4 * 15)):
        words = ["spectrum", next(iter(runs)), "--steps", "4", "--probes", "2", "--precision", "tf32"]
        assert main([*words, "--together", str(together), "--out", str(out), *FEW]) == 0
        assert f"(forward products, batch-norm in eval mode, {passes} passes" in capsys.readouterr().out


def test_spectra_of_several(runs, tmp_path, capsys):
    out = tmp_path / "spectrum"
    words = ["spectrum", *list(runs)[:2], "--steps", "4", "--probes", "2", "--out", str(out), *FEW]
    assert main(words) == 0
    assert capsys.readouterr().out.count("largest") == 2
    assert len(list(out.glob("*-a-seed-0.npz"))) == 1 == len(list(out.glob("*-b-seed-1.json")))
    assert (out / "spectrum.png").stat().st_size


def test_sharpness_in_three_ways_and_a_level(runs, tmp_path, capsys):
    pytest.importorskip("scipy")
    out = tmp_path / "sharpness"
    words = ["sharpness", next(iter(runs)), "--pairs", "2", "--subspace", "3", "--find-level", "--out", str(out), *FEW]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "symmetric excess at level 0.1 (sphere)" in shown and "SAM's" in shown and "Keskar's" in shown
    (picture,) = out.glob("*-level.png")
    assert picture.stat().st_size


def test_one_pair_of_noises_has_no_spread(runs, tmp_path, capsys):
    pytest.importorskip("scipy")
    rows = tmp_path / "rows.jsonl"
    words = ["sharpness", next(iter(runs)), "--pairs", "1", "--subspace", "3", "--find-level", "--results", str(rows)]
    assert main([*words, "--out", str(tmp_path / "sharpness"), *FEW]) == 0
    assert "±" not in capsys.readouterr().out.splitlines()[0]
    row = json.loads(rows.read_text(), parse_constant=pytest.fail)
    assert (row["excess_sd"], row["pairs"]) == (None, 1)
    (file,) = (tmp_path / "sharpness").glob("*-level.npz")
    with np.load(file) as curve:
        assert curve["plus"].shape[-1] == 1


def test_sharpness_of_several_runs_leaves_a_row_each(runs, tmp_path, capsys):
    pytest.importorskip("scipy")
    out, rows = tmp_path / "sharpness", tmp_path / "rows.jsonl"
    words = ["sharpness", *runs, "--pairs", "2", "--subspace", "3", "--out", str(out), "--results", str(rows), *FEW]
    assert main(words) == 0 and main(words) == 0
    shown = capsys.readouterr().out
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert len(found) == 2 * len(runs) and found[: len(runs)] == found[len(runs) :]
    for folder, row in zip(runs, found, strict=False):
        assert f"{folder}:\nsymmetric excess" in shown
        assert f"level 0.1 (sphere): {row['excess']:.5f} ± {row['excess_sd']:.5f}" in shown
        assert f"rho 0.05: {row['sam']:.5f}" in shown and f"subspace of 3: {row['keskar']:.3f}" in shown
        assert folder.endswith(f"{row['experiment']}/seed-{row['seed']}")
        saved = json.loads((out / f"{'-'.join(Path(folder).parts[1:])}-sam.json").read_text())
        assert saved["climbed"] - saved["clean"] == pytest.approx(row["sam"]) and saved["clean"] == row["loss"]
    assert found[0]["excess"] != found[1]["excess"]


def test_noise_has_the_distribution_of_the_run(tmp_path, capsys):
    pytest.importorskip("scipy")
    changes = ["phases=5", "lr=0.1", "train_limit=200", "method=both:0.3", "distribution=uniform"]
    train(get("digits").with_changes(changes), Execution(out=str(tmp_path), progress=False))
    out, folder = tmp_path / "s-0.1", str(tmp_path / "digits" / "seed-0")
    words = ["sharpness", folder, "--pairs", "2", "--subspace", "3", "--find-level", "--out", str(out)]
    assert main([*words, *FEW]) == 0
    shown = capsys.readouterr().out
    assert "symmetric excess at level 0.1 (uniform): " in shown
    assert re.search(r"^suggested level \S+ \(uniform\): ", shown, re.MULTILINE)
    for what in ("excess", "level"):
        (file,) = out.glob(f"*-{what}.json")
        assert json.loads(file.read_text())["distribution"] == "uniform"


def test_weights_come_from_the_folder_a_checkpoint_or_the_file(runs):
    folder = next(iter(runs))
    whole = solution(folder).state
    (saved,) = Path(folder, "checkpoints").glob("*.pt")
    for path in (f"{folder}/weights.safetensors", saved):
        again = solution(path).state
        assert all((again[key] == value).all() for key, value in whole.items())


@pytest.mark.parametrize(
    ("make", "sentence"), [(False, "is not there: name a run's folder"), (True, "belongs to no run")]
)
def test_what_is_no_run_says_so(tmp_path, capsys, make, sentence):
    path = tmp_path / "nothing"
    if make:
        path.mkdir()
    assert main(["spectrum", str(path), "--out", str(tmp_path / "s"), *FEW]) != 0
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["line", "spectrum"])
def test_graphs_are_asked_for_and_not_needed(runs, tmp_path, capsys, kind):
    few = ["--points", "2"] if kind == "line" else ["--steps", "2", "--probes", "1"]
    words = [kind, *list(runs)[: 2 if kind == "line" else 1], *few, *FEW]
    assert main([*words, "--out", str(tmp_path / "plain")]) == 0
    assert main([*words, "--graph", "--out", str(tmp_path / "graph")]) == 0
    (first,), (second,) = ((tmp_path / name).glob("*.npz") for name in ("plain", "graph"))
    with np.load(first) as plain, np.load(second) as graph:
        assert all(np.array_equal(plain[key], graph[key]) for key in plain if key != "seconds")
    assert "CUDA" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["sharpness", "spectrum"])
def test_what_shares_nothing_out_is_refused_under_torchrun(runs, tmp_path, monkeypatch, capsys, kind):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main([kind, next(iter(runs)), "--out", str(tmp_path / "x"), "--quiet"]) == 2
    assert f"ssgd {kind} works in one process: start it without torchrun" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_sharpness_of_weights_that_are_not_finite_is_refused(runs, tmp_path, capsys):
    spoilt = shutil.copytree(next(iter(runs)), tmp_path / "spoilt")
    weights = (spoilt / "weights.safetensors").read_bytes()
    (spoilt / "weights.safetensors").write_bytes(weights[:-100] + b"\xff" * 100)
    rows = tmp_path / "rows.jsonl"
    words = ["--out", str(tmp_path / "x"), "--results", str(rows), "--limit", "50", "--quiet"]
    assert main(["sharpness", str(spoilt), *words]) == 2
    assert "weights that are not finite, or its loss is not: nan" in capsys.readouterr().err
    assert not rows.exists()


@pytest.mark.parametrize(
    ("kind", "said"),
    [("sharpness", "interrupted\n"), ("line", "interrupted, going back to the points that are done. The same command")],
)
@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("KeyboardInterrupt: <EMPTY MESSAGE>")])
def test_an_interrupt_tells_what_is_kept(runs, tmp_path, monkeypatch, capsys, kind, said, error):
    def interrupted(*_, **__):
        raise error

    monkeypatch.setattr("ssgd.lab.solutions.tasks", interrupted)
    several = list(runs)[: 2 if kind == "line" else 1]
    assert main([kind, *several, "--out", str(tmp_path / "x"), "--quiet"]) == 130
    assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize("command", ["line", "plane", "spectrum", "sharpness", "tolerance"])
def test_a_package_that_is_missing_is_named_before_any_work(command, monkeypatch, capsys):
    monkeypatch.setattr(main_module, "find_spec", lambda name: None)
    assert main([command, "runs/none"]) == 1
    told = capsys.readouterr().err
    assert "matplotlib" in told and "pip install 'ssgd[analysis]'" in told
