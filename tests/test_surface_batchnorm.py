"""Batch-norm's statistics over a surface: anchors have their checkpoints' metrics, other points what was asked for."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim.swa_utils import update_bn

from ssgd.analysis import Task, evaluate
from ssgd.analysis.task import evaluating

from .surface_problems import TRAIN, loss, net, solution, tasks


def metrics(state, recompute=False):
    """What a checkpoint gives when it is loaded and evaluated, without any geometry: {task: (loss, error)}."""
    model = net(9)
    model.load_state_dict(state)
    if recompute:
        torch.manual_seed(0)
        tasks(model)["train"].recompute_batchnorm()
    with evaluating(model):
        return {name: task.measure() for name, task in tasks(model).items()}


@pytest.mark.parametrize("batchnorm", ["keep", "interpolate", "recompute"])
def test_anchors_have_the_metrics_of_their_checkpoints(plane, batchnorm):
    surface = evaluate(plane, tasks(net(9)), plane.grid(2), batchnorm, progress=False)
    for i in range(3):
        expected = metrics(solution(i), recompute=batchnorm == "recompute")
        for name, pair in expected.items():
            assert (surface.at_anchors(name)[i], surface.at_anchors(name, "error")[i]) == pair
    assert surface.batchnorm == batchnorm and surface.names == ["SGD", "S-SGD", "SAM"]


def test_between_anchors_the_statistics_are_those_asked_for(plane):
    point = plane.coordinates.mean(axis=0) + 0.1
    grid = tuple(np.array([x]) for x in point)
    kept, interpolated, recomputed = (
        evaluate(plane, tasks(net(9)), grid, how, progress=False).losses[:, 0, 0].tolist()
        for how in ("keep", "interpolate", "recompute")
    )
    for found, mode in ((kept, "keep"), (interpolated, "interpolate"), (recomputed, "keep")):
        state = plane.weights_at(*point) | plane.buffers_at(*point, mode=mode)
        assert found == [pair[0] for pair in metrics(state, recompute=found is recomputed).values()]
    assert len({kept[0], interpolated[0], recomputed[0]}) == 3


def test_statistics_are_gathered_from_the_task_called_train_else_from_the_first(plane):
    both = tasks(net(9))
    grid = plane.grid(2)
    named = evaluate(plane, {"test": both["test"], "train": both["train"]}, grid, progress=False)
    first = evaluate(plane, {"one": both["train"], "two": both["test"]}, grid, progress=False)
    other = evaluate(plane, {"two": both["test"], "one": both["train"]}, grid, progress=False)
    np.testing.assert_array_equal(named.values("train"), first.values("one"))
    assert (other.values("one") != first.values("one")).all()


def test_statistics_are_those_of_torchs_own_pass():
    """The mean over batches, the ragged one too; also where one layer runs twice."""
    model, expected = net(3), net(3)
    torch.manual_seed(0)
    update_bn(TRAIN, expected)
    with evaluating(model):
        torch.manual_seed(0)
        tasks(model)["train"].recompute_batchnorm()
        assert not model[1].training and model[1].momentum == 0.1
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-6, atol=1e-7)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(2 + self.norm(x))

    model, expected = Twice(), Twice()
    update_bn(TRAIN, expected)
    Task(model, loss, TRAIN).recompute_batchnorm()
    torch.testing.assert_close(model.state_dict(), expected.state_dict())
