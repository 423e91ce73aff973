"""scripts/gradient_noise.py against a loss whose gradient is known, and along a training."""

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "scripts"))

import gradient_noise as script

SIZE, LEVEL = 12, 0.3


@pytest.fixture
def net():
    torch.manual_seed(0)
    return nn.Linear(SIZE, 1, bias=False)


def halves(curved=0.0):
    """Two curvatures, and for ``curved`` a cubic term."""
    return tuple((torch.randn(SIZE, SIZE), curved) for _ in range(2))


def loss_of(net):
    def loss(half):
        matrix, curved = half
        w = net.weight[0]
        return w @ (matrix + matrix.T) @ w / 4 + curved * w.pow(3).sum() / 6

    return loss


def test_of_a_quadratic_loss_all_noise_is_linear_and_has_its_closed_form(net):
    batch = halves()
    before = net.weight.detach().clone()
    found = script.gradient_noise(net, loss_of(net), batch, LEVEL, draws=4000)
    a, b = ((matrix + matrix.T) / 2 for matrix, _ in batch)
    w = before[0]
    unit = LEVEL**2 * w.square().sum() / SIZE / ((a + b) / 2 @ w).square().sum()  # the mean of n nᵀ is the unit matrix
    expected = {
        "one-sided": ((a + b) / 2).square().sum(),
        "independent": (a.square().sum() + b.square().sum()) / 4,
        "pair": ((a - b) / 2).square().sum(),
    }
    for way, value in expected.items():
        assert found[way]["odd"] == pytest.approx(float(unit * value), rel=0.05)
        assert found[way]["even"] == pytest.approx(0, abs=1e-9)
    assert found["both"]["odd"] == 0
    assert found["batch"]["all"] == pytest.approx(
        float(((a - b) / 2 @ w).square().sum() / ((a + b) / 2 @ w).square().sum())
    )
    assert torch.equal(net.weight, before)


def test_what_is_quadratic_is_the_same_for_the_pair_and_one_sign_and_half_of_it_for_two_draws(net):
    batch = tuple((matrix, 5.0) for matrix, _ in halves())
    found = script.gradient_noise(net, loss_of(net), batch, LEVEL, draws=50)
    assert found["pair"]["even"] == found["one-sided"]["even"] == found["both"]["even"] > 0
    assert found["independent"]["even"] == pytest.approx(found["pair"]["even"] / 2)  # the halves agree in it


def test_equal_halves_leave_the_pair_no_linear_noise(net):
    half, _ = halves(1.0)
    found = script.gradient_noise(net, loss_of(net), (half, half), LEVEL, draws=3)
    assert found["pair"]["odd"] == 0 < found["independent"]["odd"]


def test_along_a_training(tmp_path, monkeypatch):
    out = tmp_path / "noise.json"
    sizes = ["--levels", "0.1", "0.2", "--batches", "8", "16", "--draws", "2", "--at", "3"]
    training = ["words", "model=gpt-tiny", "phases=1", "lr=0.1"]
    monkeypatch.setattr(sys, "argv", ["gradient_noise.py", *training, *sizes, "--out", str(out)])
    script.main()
    rows = json.loads(out.read_text())["rows"]
    assert [(one["step"], one["batch"], one["level"]) for one in rows] == [
        (3, batch, level) for batch in (8, 16) for level in (0.1, 0.2)
    ]
    assert 0 < rows[0]["of"]["pair"]["odd"] < rows[1]["of"]["pair"]["odd"]
