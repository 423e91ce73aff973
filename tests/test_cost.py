"""What a step costs beside its passes, and what importing the library loads."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from ssgd import SSGD

from .problems import mlp, take_step, vectors

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
BASE = {"lr": 0.1, "momentum": 0.9, "foreach": True}


@pytest.fixture
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    import calls
    import memory
    import ways

    return calls, memory, ways


@pytest.mark.parametrize("distribution", ["sphere", "sign", "uniform"])
def test_points_and_split_call_at_most_20_operators_more_than_the_base(benchmarks, distribution):
    calls, _, ways = benchmarks
    device = torch.device("cpu")
    own = calls.count(partial(ways.sgd, **BASE), device, 1).total()
    for way in (ways.points, ways.split):
        assert calls.count(partial(way, distribution=distribution, **BASE), device, 1).total() - own <= 20


def test_a_pass_holds_one_copy_of_the_perturbed_weights_and_nothing_is_kept(benchmarks):
    _, memory, ways = benchmarks
    device = torch.device("cpu")
    own = memory.footprint(partial(ways.sgd, **BASE), device)
    used = memory.footprint(partial(ways.points, **BASE), device)
    assert used.kept == own.kept
    assert (used.held - own.held) / memory.selected_bytes(device) <= 1.0


def test_a_step_goes_through_the_models_layers_once(monkeypatch):
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(torch.optim.SGD(model.parameters(), lr=0.1), 0.2, model=model)
    take_step(opt, "points", model, x, y)
    found, modules = [], model.modules
    monkeypatch.setattr(model, "modules", lambda: found.append(1) or modules())
    take_step(opt, "points", model, x, y)
    assert len(found) == 1


@pytest.mark.parametrize(("way", "looks"), [("points", 1), ("closure", 1), ("split", 2)])
def test_a_walk_looks_for_its_weights_once(monkeypatch, way, looks):
    model = mlp()
    opt = SSGD(torch.optim.SGD(model.parameters(), lr=0.1), 0.2)
    found, look = [], opt._moving_weights
    monkeypatch.setattr(opt, "_moving_weights", lambda: found.append(1) or look())
    take_step(opt, way, model, *vectors())
    assert len(found) == looks  # split() asks first whether there is a batch to halve


def test_importing_the_optimizer_loads_torch_and_the_core_alone():
    code = "import sys, ssgd; print([m for m in sys.modules if m.split('.')[0] in ('ssgd', 'matplotlib')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [m for m in eval(done.stdout) if m not in ("ssgd", "ssgd.core", "ssgd.optimizer", "ssgd.schedules")]
    assert loaded and all(m.startswith("ssgd.core.") for m in loaded)
