"""The commands that look at what a training has left."""

import json
from pathlib import Path

import numpy as np
import pytest

from ssgd.cli.main import main
from ssgd.recipes import get
from ssgd.solutions import solution, tasks
from ssgd.train import Execution, train

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
    with np.load(out.with_suffix(".npz")) as arrays:
        losses, errors = arrays["anchor_losses"], arrays["anchor_errors"]
    tasks = json.loads(out.with_suffix(".json").read_text())["tasks"]
    for place, result in enumerate((first, second)):
        for task in ("train", "test"):
            row = tasks.index(task)
            assert losses[row, place] == pytest.approx(result[f"{task}_loss"], rel=1e-6)
            assert errors[row, place] == pytest.approx(100 - result[f"{task}_accuracy"])
    assert out.with_suffix(".png").stat().st_size and "error" in capsys.readouterr().out


def test_a_plane_is_drawn_and_can_be_turned(runs, tmp_path):
    out = tmp_path / "plane"
    assert main(["plane", *runs, "--points", "3", "--out", str(out), *FEW]) == 0
    for ending in ("-train.png", "-test.png", "-train.html", "-test.html", ".npz", ".json"):
        assert (tmp_path / f"plane{ending}").stat().st_size


def test_a_plane_in_less_precision_several_points_at_once(runs, tmp_path):
    out = tmp_path / "plane"
    words = ["plane", *runs, "--points", "2", "--precision", "bf16", "--together", "4", "--out", str(out), *FEW]
    assert main(words) == 0
    assert json.loads(out.with_suffix(".json").read_text())["precision"] == "bf16"


def test_loss_and_errors_come_from_one_pass(runs):
    task = tasks(solution(next(iter(runs))), Execution(progress=False, device="cpu"), limit=40)["train"]
    calls = []
    task.model.register_forward_hook(lambda *_: calls.append(1))
    loss, error = task.measure()
    assert len(calls) == len(list(task.batches)) and loss > 0 and 0 <= error <= 100


def test_a_language_model_is_judged_from_the_beginning_of_every_batch(tmp_path):
    execution = Execution(out=str(tmp_path), device="cpu", progress=False)
    train(get("words").with_changes(["phases=1", "lr=1.0"]), execution)
    task = tasks(solution(tmp_path / "words" / "seed-0"), execution)["test"]
    batch = next(iter(task.batches))
    first, again = (float(task.loss(task.model, batch)) for _ in range(2))
    assert first == again and np.isfinite(first)


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
    assert (tmp_path / "spectrum-0.npz").exists() and (tmp_path / "spectrum-1.json").exists()
    assert (tmp_path / "spectrum.png").stat().st_size


def test_sharpness_in_three_ways_and_a_level(runs, tmp_path, capsys):
    pytest.importorskip("scipy")
    out = tmp_path / "sharpness"
    words = ["sharpness", next(iter(runs)), "--pairs", "2", "--subspace", "3", "--find-level", "--out", str(out), *FEW]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "symmetric excess" in shown and "SAM's" in shown and "Keskar's" in shown
    assert (tmp_path / "sharpness-level.png").stat().st_size


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
