"""How runs are executed: precision, fused steps, torch's switches, compilation."""

import math
from dataclasses import replace

import torch

from ssgd.cli import progress
from ssgd.lab.experiments import get
from ssgd.lab.train import compare, train
from ssgd.lab.train.checkpoint import read_safetensors
from ssgd.lab.train.running import Run

from .small_trainings import folder, fresh_net, run_of, small


def test_bfloat16_trains_over_weights_of_full_precision(quiet):
    row = train(small(precision="bf16", recompute_bn=True), quiet)[0]
    assert math.isfinite(row["test_loss"]) and row["recipe"]["precision"] == "bf16"
    found = read_safetensors(folder(quiet) / "weights.safetensors")
    assert found["head.weight"].dtype == torch.float32 and not torch.equal(
        found["head.weight"], fresh_net().head.weight
    )


def test_what_was_cut_in_another_way_is_stepped_as_this_run_steps():
    """Under FSDP Adam is not fused; its counters must go where the weights are, which the saved groups decide."""
    recipe = small(optimizer="adam", lr=(1e-3,))
    cut, run = run_of(recipe), run_of(recipe)
    cut.step()
    state = cut.state()
    state["optimizer"]["param_groups"] = [{**group, "fused": False} for group in state["optimizer"]["param_groups"]]
    for entry in state["optimizer"]["state"].values():
        entry["step"] = entry["step"].double()  # loaded as it is, or as float32 beside the weights
    run.load(state)
    assert all(group["fused"] and not group["capturable"] for group in run.opt.param_groups)
    assert {entry["step"].dtype for entry in run.opt.state.values()} == {torch.float32}


def test_torchs_switches_suit_all_recipes(quiet, monkeypatch):
    """Where every batch has a length of its own, trying all algorithms for each would cost more than it saves."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr("ssgd.lab.train.engine.drive", lambda *_: None)
    speech = replace(get("utterances"), precision="fp32")
    for recipes, tried in (([small()], True), ([small(), speech], False), ([speech, small()], False)):
        compare(recipes, quiet)
        assert torch.backends.cudnn.benchmark is tried


def test_compilation_is_told(quiet, monkeypatch, capsys):
    monkeypatch.setattr(progress, "LONG", 0.0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(Run, "compiles_next", property(lambda run: run.position == 0))
    compare([small(phases="1")], quiet, listener=progress.Progress())
    told = capsys.readouterr().err
    assert "compiling, a minute at most" in told and told.count("compiled in 0 s") == 1
