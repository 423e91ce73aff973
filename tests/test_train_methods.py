"""Every method through the engine, with its settings."""

import math
from dataclasses import replace

import pytest
import torch

from ssgd.lab.train import RunDir, train
from ssgd.lab.train.checkpoint import read_safetensors
from ssgd.methods import METHODS

from .small_trainings import folder, fresh_net, of, run_of, small, trained


@pytest.mark.parametrize("method", [name for name in METHODS if name != "mirror"])
def test_every_method_trains(quiet, method):
    row = train(of(method), quiet)[0]
    metrics = RunDir(folder(quiet, of(method))).metrics()
    assert len(metrics) == row["epochs"] == 2 * METHODS[method].epochs
    assert row["passes"] == row["epochs"] * METHODS[method].passes and row["method"] == method
    for line in [row, *metrics]:
        assert all(math.isfinite(value) for value in line.values() if isinstance(value, float))
    before = fresh_net().state_dict()
    after = read_safetensors(folder(quiet, of(method)) / "weights.safetensors")
    assert not torch.equal(after["body.0.weight"], before["body.0.weight"])


def test_mirror_without_ranks_says_what_it_needs(quiet):
    with pytest.raises(ValueError, match="method=mirror needs an even number of processes, not 1"):
        train(of("mirror"), quiet)


def test_settings_reach_the_method():
    opt = run_of(small(method="m-arwp", level=0.02, settings={"share": 0.3, "eta": 2.0})).opt
    assert (opt.param_groups[0]["noise"], opt.rule.shares, opt.rule.eta) == (0.02, [0.7, 0.3], 2.0)
    opt = run_of(small(method="both", level=0.2, distribution="sign", perturb="dense", bn_stats="once")).opt
    assert (opt.distribution.name, len(opt.selected), opt.bn_stats) == ("sign", 1, "once")
    assert run_of(small(method="ema", level=0.9)).opt.averaged.multi_avg_fn.decay == 0.9
    opt = run_of(small(method="sam", level=0.2, perturb="dense", bn_stats="once")).opt
    assert (opt.param_groups[0]["rho"], len(opt.selected), opt.bn_stats) == (0.2, 1, "once")


def test_dropout_has_the_level_of_its_phase(quiet, tmp_path):
    elsewhere = replace(quiet, out=str(tmp_path / "elsewhere"))
    half = trained(small(method="dropout", level=0.5), quiet)[0]
    assert trained(small(phases="2(dropout:0.5)"), elsewhere)[0] == half
    assert trained(small(name="less", method="dropout", level=0.2), elsewhere)[0] != half
    for phases in ("1-1(dropout:0.5)", "1(dropout:0.2)-1(dropout:0.5)"):
        with pytest.raises(ValueError, match="dropout changes the model and so needs all phases for itself"):
            run_of(small(phases=phases))


@pytest.mark.parametrize("how", [{}, {"compile": True}, {"pair": True}], ids=["eager", "compiled", "pair"])
def test_one_pass_trains_as_split(quiet, tmp_path, how):
    recipes = [small(method=method, level=0.15) for method in ("split", "one-pass")]
    for recipe, execution in zip(recipes, (quiet, replace(quiet, out=str(tmp_path / "elsewhere"), **how)), strict=True):
        train(recipe, execution)
        weights = read_safetensors(folder(execution, recipe) / "weights.safetensors")
        expected = weights if recipe is recipes[0] else expected
    assert weights is not expected
    for name, weight in weights.items():
        torch.testing.assert_close(weight, expected[name], rtol=1e-3, atol=1e-4)
