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
def test_points_and_split_call_few_operators_more_than_the_base(benchmarks, distribution):
    """Some for all tensors at once; and for each that gets noise its draw, so that it depends on no other tensor."""
    calls, memory, ways = benchmarks
    device = torch.device("cpu")
    own = calls.count(partial(ways.sgd, **BASE), device, 1).total()
    drawn = len(ways.points(list(memory.resnet18().parameters()), lr=0.1).optimizer.selected)
    draws = 4 if distribution == "sign" else 2
    for way in (ways.points, ways.split):
        used = calls.count(partial(way, distribution=distribution, **BASE), device, 1).total() - own
        assert used <= 22 + draws * drawn


@pytest.mark.parametrize("way", ["points", "split", "closure"])
def test_a_step_holds_two_copies_of_the_perturbed_weights_and_keeps_nothing(benchmarks, way):
    """w and n at the first point; w and the first point's gradient at the second, whose own gradient is the base's."""
    _, memory, ways = benchmarks
    device = torch.device("cpu")
    own = memory.footprint(partial(ways.sgd, **BASE), device)
    used = memory.footprint(partial(getattr(ways, way), **BASE), device)
    assert used.kept <= own.kept + 8  # a closure's losses
    assert (used.peak - own.peak) / memory.selected_bytes(device) <= 2.01  # biases have gradients too


def test_a_step_goes_through_the_models_layers_once(monkeypatch):
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(torch.optim.SGD(model.parameters(), lr=0.1), 0.2, model=model)
    take_step(opt, "points", model, x, y)
    found, modules = [], model.modules
    monkeypatch.setattr(model, "modules", lambda: found.append(1) or modules())
    take_step(opt, "points", model, x, y)
    assert len(found) == 1


def test_importing_the_optimizer_loads_torch_and_the_core_alone():
    code = "import sys, ssgd; print([m for m in sys.modules if m.split('.')[0] in ('ssgd', 'matplotlib')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [m for m in eval(done.stdout) if m not in ("ssgd", "ssgd.core", "ssgd.optimizer", "ssgd.schedules")]
    assert loaded and all(m.startswith("ssgd.core.") for m in loaded)
