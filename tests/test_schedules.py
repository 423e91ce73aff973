"""Noise levels over time."""

import pytest
import torch
from torch.optim import SGD

from ssgd import SSGD, NoiseSchedule
from ssgd.schedules import cosine, linear, phases

from .problems import mlp


def make(course, noise=0.4):
    opt = SSGD(SGD(mlp().parameters(), lr=0.1), noise)
    return opt, NoiseSchedule(opt, course)


def levels(course, steps):
    opt, schedule = make(course)
    found = []
    for _ in range(steps):
        found.append(opt.param_groups[0]["noise"])
        schedule.step()
    return found


def test_courses():
    assert levels(linear(0.0, 1.0, 4), 6) == pytest.approx([0, 0.1, 0.2, 0.3, 0.4, 0.4])
    assert levels(cosine(1.0, 0.0, 2), 4) == pytest.approx([0.4, 0.2, 0.0, 0.0], abs=1e-12)
    assert levels(phases({0: 0.0, 2: 1.0, 3: 0.5}), 5) == pytest.approx([0, 0, 0.4, 0.2, 0.2])
    with pytest.raises(ValueError, match="at key 0"):
        phases({1: 1.0})


def test_a_phase_without_noise_takes_one_pass():
    opt, schedule = make(phases({0: 0.0, 1: 1.0}))
    counts = []
    for _ in range(2):
        count = 0
        for point in opt.points():
            with point:
                count += 1
        counts.append(count)
        opt.zero_grad()
        schedule.step()
    assert counts == [1, 2]


def test_resume():
    opt, schedule = make(linear(0.0, 1.0, 4))
    schedule.step()
    schedule.step()
    other_opt, other = make(linear(0.0, 1.0, 4), noise=0.9)
    other.load_state_dict(schedule.state_dict())
    assert other_opt.param_groups[0]["noise"] == opt.param_groups[0]["noise"] == pytest.approx(0.2)


def test_a_tensor_level_is_changed_in_place():
    level = torch.tensor(0.4)
    _, schedule = make(linear(0.0, 1.0, 4), level)
    schedule.step()
    assert level.item() == pytest.approx(0.1)


def test_a_group_that_the_schedule_does_not_know_is_named():
    opt, schedule = make(linear(0.0, 1.0, 4))
    opt.add_param_group({"params": [torch.nn.Parameter(torch.ones(2, 2))]})
    before = [group["noise"] for group in opt.param_groups]
    with pytest.raises(RuntimeError, match=r"has 2 parameter groups, the schedule began with 1: make a new"):
        schedule.step()
    assert [group["noise"] for group in opt.param_groups] == before


@pytest.mark.parametrize("course", [linear, cosine])
def test_a_course_of_no_steps_is_refused(course):
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1, not 0"):
        course(0.0, 1.0, 0)
