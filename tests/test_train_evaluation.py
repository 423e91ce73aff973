"""Evaluations: what they are made of, how often, and that they leave the training alone."""

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch

from ssgd.lab import models
from ssgd.lab.train import RunDir, train
from ssgd.lab.train.checkpoint import read_safetensors
from ssgd.lab.train.kinds import Images

from .small_trainings import folder, run_of, small


def test_recomputed_statistics_leave_the_training_alone(quiet, tmp_path):
    as_usual, again = small(phases="3"), small(phases="3", recompute_bn=True)
    train(as_usual, quiet)
    elsewhere = replace(quiet, out=str(tmp_path / "again"))
    train(again, elsewhere)
    one, other = (read_safetensors(folder(where) / "weights.safetensors") for where in (quiet, elsewhere))
    statistics = {name for name in one if "running" in name}
    assert all(torch.equal(one[name], other[name]) for name in one.keys() - statistics if "tracked" not in name)
    assert statistics and not any(torch.equal(one[name], other[name]) for name in statistics)
    for mine, theirs in zip(*(RunDir(folder(where)).metrics() for where in (quiet, elsewhere)), strict=True):
        assert (mine["loss"], mine["accuracy"]) == (theirs["loss"], theirs["accuracy"])
        assert mine["test_loss"] != theirs["test_loss"]


@pytest.mark.parametrize("changes", [{"recompute_bn": True}, {"method": "both"}, {"method": "swa"}])
def test_an_evaluation_leaves_no_trace(changes):
    run = run_of(small(**changes))
    for _ in range(3):
        run.step()
    before = {name: tensor.clone() for name, tensor in run.net.state_dict().items()}
    assert run.evaluate("test") == run.evaluate("test") and run.net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.net.state_dict().items())


def test_a_result_tells_what_statistics_gathered_again_would_bring(quiet):
    noisy = small(method="both", level=0.5)
    (asked,) = train(replace(noisy, name="asked", recompute_bn=True), quiet)
    (row,) = train(noisy, quiet)
    assert row["test_accuracy_recomputed_bn"] == asked["test_accuracy"] != row["test_accuracy"]
    assert "test_accuracy_recomputed_bn" not in asked
    weights = read_safetensors(
        folder(quiet) / "weights.safetensors"
    )  # what was judged: with the statistics of the training
    again = read_safetensors(folder(quiet, replace(noisy, name="asked")) / "weights.safetensors")
    learned = [name for name in weights if name.endswith((".weight", ".bias"))]
    assert all(torch.equal(weights[name], again[name]) == (name in learned) for name in weights)


def test_evaluations_are_as_rare_as_asked_and_the_last_is_made(quiet):
    train(small(phases="5", evaluate_every=2), quiet)
    assert [line["epoch"] for line in RunDir(folder(quiet)).metrics() if "test_loss" in line] == [2, 4, 5]


def test_held_out_images_stand_in_for_the_test_set(quiet):
    row = train(small(train_limit=None, held_out=800, phases="1"), quiet)[0]
    steps = len(RunDir(folder(quiet)).metrics()) * 4  # 200 of 1,000 are left to train on
    assert (folder(quiet) / "checkpoints" / f"step-{steps:08d}.pt").exists()
    assert row["test_accuracy"] * 8 % 1 == pytest.approx(0, abs=1e-6)


def test_more_than_five_classes_have_the_first_five_too():
    run = run_of(small())
    found = run.evaluate("test")
    assert list(found) == ["test_loss", "test_accuracy", "test_top5_accuracy"]
    assert 100 > found["test_top5_accuracy"] > found["test_accuracy"]
    run.source.classes = 5
    assert list(run.evaluate("test")) == ["test_loss", "test_accuracy"]


def test_evaluation_leaves_every_module_in_its_mode():
    net = models.build("small-cnn", 10, 1)
    frozen = next(module for module in net.modules() if isinstance(module, torch.nn.BatchNorm2d))
    frozen.eval()
    seen = []
    frozen.register_forward_hook(lambda *_: seen.append(net.training))
    batch = torch.randn(4, 1, 8, 8), torch.randint(10, (4,))
    Images().count(net, [batch], nullcontext, torch.device("cpu"))
    assert seen == [False] and net.training and not frozen.training
