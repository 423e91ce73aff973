"""Surfaces captured and in less precision."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ssgd.analysis import Surface, Task, evaluate, results

from .surface_problems import TRAIN, assert_same, deviation, loss, net, tasks, wrong


@pytest.mark.parametrize("batchnorm", ["keep", "recompute"])
def test_what_cannot_be_captured_goes_without(plane, capsys, batchnorm):
    grid = plane.grid(2)
    expected = evaluate(plane, tasks(net(9)), grid, batchnorm, progress=False)
    assert_same(evaluate(plane, tasks(net(9)), grid, batchnorm, progress=False, graph=True), expected)
    told = capsys.readouterr().err.count("a CUDA graph does not work here, all goes on without, slower")
    assert told == (3 if batchnorm == "recompute" else 2)  # statistics, and the losses of two tasks


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_captured_passes(plane, capsys, precision):
    """Of a net with batch-norm and dropout, from solutions on the CPU, with a last batch that no graph serves."""

    def on_gpu():
        model = net(9).cuda()
        data = [(x.cuda(), y.cuda()) for x, y in TRAIN]
        return {"train": Task(model, loss, data, wrong=wrong)}

    how = {"precision": precision, "progress": False}
    expected = evaluate(plane, on_gpu(), plane.grid(3), **how)
    found = evaluate(plane, on_gpu(), plane.grid(3), graph=True, **how)
    assert max(deviation(found, expected)) < (1e-5 if precision == "fp32" else 1e-2)
    assert capsys.readouterr().err == ""


def test_less_precision_is_told_and_not_mixed(plane, tmp_path):
    grid = plane.grid(2)
    exact = evaluate(plane, tasks(net(9)), grid, progress=False)
    rough = evaluate(plane, tasks(net(9)), grid, progress=False, precision="bf16", out=tmp_path / "rough")
    assert 1e-5 < max(deviation(rough, exact)) < 0.1
    assert (exact.precision, rough.precision, results.load(Surface, tmp_path / "rough").precision) == (
        "fp32",
        "bf16",
        "bf16",
    )
    with pytest.raises(ValueError, match=r"holds another evaluation \(other precision\)"):
        evaluate(plane, tasks(net(9)), grid, progress=False, out=tmp_path / "rough")
    np.testing.assert_array_equal(
        evaluate(plane, tasks(net(9)), grid, progress=False, precision="tf32").losses, exact.losses
    )  # on a CPU there is none


def test_loss_and_errors_from_one_forward_pass(plane):
    calls = []

    def both(model, batch):
        calls.append(batch)
        logits = model(batch[0])
        return F.cross_entropy(logits, batch[1]), (logits.argmax(1) != batch[1]).sum()

    model = net(9)
    found = evaluate(plane, {"train": Task(model, loss, TRAIN, loss_and_wrong=both)}, plane.grid(2), progress=False)
    expected = evaluate(plane, {"train": tasks(model)["train"]}, plane.grid(2), progress=False)
    assert_same(found, expected)
    assert len(calls) == 3 * 7
