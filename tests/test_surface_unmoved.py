"""An evaluation leaves the model where it was, and no point depends on those before it."""

import numpy as np
import pytest
import torch
from torch import nn

from ssgd.analysis import Hessian, Line, Task, evaluate, find_level, keskar, sam_sharpness

from .surface_problems import TRAIN, assert_same, loss, net, picture_of, solution, tasks, wrong


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_stays_as_it_was(plane, fails):
    model = net(9).train()
    model[1].eval()
    loss(model, TRAIN[0]).backward()
    calls = 0

    def failing(model, batch):
        nonlocal calls
        calls += 1
        if fails and calls == 12:
            raise RuntimeError("out of memory")
        return loss(model, batch)

    before = picture_of(model)
    task = Task(model, failing, TRAIN, wrong=wrong)
    if fails:
        with pytest.raises(RuntimeError, match="out of memory"):
            evaluate(plane, {"train": task}, plane.grid(3), progress=False)
    else:
        evaluate(plane, {"train": task}, plane.grid(3), progress=False)
    after = picture_of(model)
    assert all(map(torch.equal, before[0], after[0])) and before[1:3] == after[1:3]
    assert torch.equal(before[3], after[3]) and calls >= 12


def test_one_autocast_block_around_all_points_sees_every_change():
    line = Line(solution(0), solution(1), net(9))
    expected = evaluate(line, tasks(net(9)), line.grid(5), "keep", progress=False, precision="bf16")
    with torch.autocast("cpu", torch.bfloat16):
        found = evaluate(line, tasks(net(9)), line.grid(5), "keep", progress=False, precision="bf16")
    assert_same(found, expected)


@pytest.mark.parametrize(
    "look",
    [
        lambda task: keskar(task, 0.1),
        lambda task: sam_sharpness(task, 0.5),
        lambda task: find_level(task, [0.1, 0.2]),
        lambda task: Hessian(task, product="two-point").matvec(torch.ones(63)),
    ],
    ids=["keskar", "sam", "level", "hessian"],
)
def test_a_look_leaves_no_casts_of_moved_weights_in_an_autocast_block(look):
    model = net(9).eval()
    with torch.autocast("cpu", torch.bfloat16):
        before = model(TRAIN[0][0])
        look(Task(model, loss, TRAIN))
        assert torch.equal(model(TRAIN[0][0]), before)


def test_the_model_may_be_one_of_the_solutions_itself():
    model, other = net(0), net(1)
    model.load_state_dict(solution(0))
    other.load_state_dict(solution(1))
    line = Line(model.state_dict(), other.state_dict(), model)
    found = evaluate(line, tasks(model), line.grid(5), "keep", progress=False)
    expected = evaluate(Line(solution(0), solution(1), model), tasks(net(9)), line.grid(5), "keep", progress=False)
    assert_same(found, expected)


def test_tied_weights_move_together():
    class Tied(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.first = nn.Linear(1, 1, bias=False)
            self.second = self.first
            nn.init.constant_(self.first.weight, value)

        def forward(self, x):
            return self.second(self.first(x))

    model = Tied(0.0)
    task = Task(model, lambda model, x: model(x).mean(), [torch.ones(2, 1)])
    line = Line(Tied(0.0).state_dict(), Tied(2.0).state_dict(), model)
    surface = evaluate(line, {"train": task}, (np.array([0.25, 0.75]),), progress=False)
    assert surface.values("train").tolist() == [0.25, 2.25]


def test_a_compiled_model(plane):
    compiled = torch.compile(net(9), backend="eager")
    grid = plane.grid(2)
    assert_same(
        evaluate(plane, tasks(compiled), grid, progress=False), evaluate(plane, tasks(net(9)), grid, progress=False)
    )


def test_no_point_depends_on_those_before_it(plane):
    """Neither through the loader's shuffling nor through the masks of dropout."""
    data = torch.utils.data.TensorDataset(*map(torch.cat, zip(*TRAIN, strict=True)))
    task = Task(net(9), loss, torch.utils.data.DataLoader(data, 10, shuffle=True), wrong=wrong)
    whole = evaluate(plane, {"train": task}, plane.grid(3), progress=False)
    torch.manual_seed(77)
    part = evaluate(plane, {"train": task}, tuple(axis[1:] for axis in plane.grid(3)), progress=False)
    np.testing.assert_array_equal(part.losses, whole.losses[:, 1:, 1:])
    np.testing.assert_array_equal(part.anchor_losses, whole.anchor_losses)
