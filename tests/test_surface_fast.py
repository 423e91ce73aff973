"""Surfaces by several points at once, compiled, captured, in less precision."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ssgd.analysis import Line, Plane, Surface, Task, evaluate, results

from .surface_problems import TRAIN, assert_same, deviation, files, loss, net, picture_of, tasks, wrong


@pytest.mark.parametrize("batchnorm", ["keep", "interpolate", "recompute"])
@pytest.mark.parametrize("together", [2, 5, 100])
def test_several_points_at_once(plane, capsys, batchnorm, together):
    grid = plane.grid(3)
    one = evaluate(plane, tasks(net(9)), grid, batchnorm, progress=False)
    model = net(9)
    loss(model, TRAIN[0]).backward()
    before = picture_of(model)
    several = evaluate(plane, tasks(model), grid, batchnorm, progress=False, together=together)
    assert max(deviation(several, one)) < 1e-5
    np.testing.assert_array_equal(several.errors, one.errors)
    after = picture_of(model)
    assert all(map(torch.equal, before[0], after[0])) and before[1:3] == after[1:3]
    assert capsys.readouterr().err == ""


def test_several_points_at_once_in_double_precision(plane):
    states = [{k: v.double() if v.is_floating_point() else v for k, v in s.items()} for s in plane.anchors]
    wide = Plane(*states, net())
    data = [(x.double(), y) for x, y in TRAIN]
    one, several = (
        evaluate(wide, {"train": Task(net(9).double(), loss, data)}, wide.grid(3), progress=False, together=together)
        for together in (1, 4)
    )
    assert max(deviation(several, one)) < 1e-12


def test_tied_weights_at_several_points():
    class Tied(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.first = nn.Linear(1, 1, bias=False)
            self.second = nn.Linear(1, 1, bias=False)
            self.second.weight = self.first.weight
            nn.init.constant_(self.first.weight, value)

        def forward(self, x):
            return self.second(self.first(x))

    model = Tied(0.0)
    task = Task(model, lambda model, x: model(x).mean(), [torch.ones(2, 1)])
    line = Line(Tied(0.0).state_dict(), Tied(2.0).state_dict(), model)
    surface = evaluate(line, {"train": task}, (np.array([0.25, 0.75]),), progress=False, together=4)
    assert surface.values("train").tolist() == [0.25, 2.25]


def test_what_vmap_does_not_serve_goes_one_by_one(plane, capsys):
    def branching(model, batch):
        found = loss(model, batch)
        return found if found.item() >= 0 else -found

    model = net(9)
    expected = evaluate(plane, {"train": Task(model, loss, TRAIN)}, plane.grid(2), progress=False)
    found = evaluate(plane, {"train": Task(model, branching, TRAIN)}, plane.grid(2), progress=False, together=3)
    assert_same(found, expected)
    assert capsys.readouterr().err.count("points go one by one, because vmap does not serve this model: ") == 1


def test_cut_groups_resume_to_the_identical_files(plane, tmp_path):
    evaluate(plane, tasks(net(9)), plane.grid(3), out=tmp_path / "whole", progress=False, together=5)
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    for done in (1, 4, 6, 9):
        out = tmp_path / f"cut-{done}"
        out.with_suffix(".jsonl").write_bytes(b"".join(lines[:done]))
        evaluate(plane, tasks(net(9)), plane.grid(3), out=out, progress=False, together=5)
        assert files(out) == files(tmp_path / "whole")
        assert out.with_suffix(".jsonl").read_bytes().splitlines(keepends=True)[:done] == lines[:done]


@pytest.mark.parametrize("together", [1, 4])
def test_compiled_passes(plane, monkeypatch, capsys, together):
    torch._dynamo.reset()
    compiler, used = torch.compile, []
    monkeypatch.setattr(
        torch, "compile", lambda f, **_: used.append(f) or compiler(f, backend="aot_eager", fullgraph=True)
    )
    grid = plane.grid(2)
    expected = evaluate(plane, tasks(net(9)), grid, progress=False)
    found = evaluate(plane, tasks(net(9)), grid, progress=False, compile=True, together=together)
    assert max(deviation(found, expected)) < 1e-5
    assert len(used) == 3 and capsys.readouterr().err == ""  # statistics, and the losses of two tasks


@pytest.mark.parametrize("batchnorm", ["keep", "recompute"])
def test_what_cannot_be_captured_goes_without(plane, capsys, batchnorm):
    grid = plane.grid(2)
    expected = evaluate(plane, tasks(net(9)), grid, batchnorm, progress=False)
    assert_same(evaluate(plane, tasks(net(9)), grid, batchnorm, progress=False, graph=True), expected)
    told = capsys.readouterr().err.count("a CUDA graph does not work here, all goes on without, slower")
    assert told == (3 if batchnorm == "recompute" else 2)  # statistics, and the losses of two tasks


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("compile", [False, True])
def test_captured_passes(plane, capsys, precision, compile):
    """Of a net with batch-norm and dropout, from solutions on the CPU, with a last batch that no graph serves."""

    def on_gpu():
        model = net(9).cuda()
        data = [(x.cuda(), y.cuda()) for x, y in TRAIN]
        return {"train": Task(model, loss, data, wrong=wrong)}

    how = {"precision": precision, "progress": False}
    expected = evaluate(plane, on_gpu(), plane.grid(3), **how)
    found = evaluate(plane, on_gpu(), plane.grid(3), graph=True, compile=compile, **how)
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
