"""Options of an evaluation: those that are refused, and the bar."""

import numpy as np
import pytest
from torch import nn

from ssgd.analysis import evaluate

from .surface_problems import net, tasks


def test_bad_choices(plane):
    one, other = tasks(net(9)), tasks(net(9))
    with pytest.raises(ValueError, match=r"the tasks must share one model, .* not 2"):
        evaluate(plane, {"train": one["train"], "test": other["test"]})
    with pytest.raises(ValueError, match=r"not of the tasks' model: '1\.bias' is not the same"):
        evaluate(plane, tasks(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))))
    with pytest.raises(ValueError, match="batchnorm must be one of 'recompute', 'interpolate', 'keep', not 'eval'"):
        evaluate(plane, one, batchnorm="eval")
    with pytest.raises(ValueError, match="precision must be one of 'fp32', 'tf32', 'bf16', not 'half'"):
        evaluate(plane, one, precision="half")
    with pytest.raises(ValueError, match="grid must hold the values of each of 2 coordinates"):
        evaluate(plane, one, (np.zeros(3),))
    with pytest.raises(ValueError, match="grid must hold the values of each of 2 coordinates"):
        evaluate(plane, one, 5)
    with pytest.raises(TypeError, match="tasks must be Tasks by name"):
        evaluate(plane, one["train"])
    with pytest.raises(TypeError, match=r"needs a Task, such as .* not a Sequential"):
        evaluate(plane, {"train": one["train"].model})
    with pytest.raises(ValueError, match="of must be one of 'train', 'test', not 'valid'"):
        evaluate(plane, one, plane.grid(2), progress=False).values("valid")


def test_a_bar_unless_it_is_not_wanted(plane, capsys):
    evaluate(plane, tasks(net(9)), plane.grid(2), progress=False)
    assert capsys.readouterr() == ("", "")
    evaluate(plane, tasks(net(9)), plane.grid(2))
    assert "7/7" in capsys.readouterr().err
