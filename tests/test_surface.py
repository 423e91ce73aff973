"""Losses over lines and planes, against closed forms."""

from itertools import product

import numpy as np
import pytest
import torch
from torch import nn

from ssgd.analysis import Directions, Line, Plane, Task, evaluate

from .surface_problems import Point, net


def bowl(model, batch):
    """½ wᵀHw times the mean of the batch."""
    return (model.weight.square() * torch.tensor([1.0, 4.0, 9.0])).sum() / 2 * batch.mean()


def bowl_task(model):
    return {"bowl": Task(model, bowl, [torch.tensor([1.0, 3.0]), torch.tensor([5.0])])}  # ragged: the mean is 3


def test_a_quadratic_along_a_line():
    a, b = Point(1, 0, 2), Point(-1, 1, 0)
    surface = evaluate(Line(a.state_dict(), b.state_dict(), a), bowl_task(a), progress=False)
    t = surface.x
    expected = 1.5 * ((1 - 2 * t) ** 2 + 4 * t**2 + 9 * (2 - 2 * t) ** 2)
    assert surface.losses.shape == (1, 61) and not surface.y.size
    np.testing.assert_allclose(surface.values("bowl"), expected, rtol=1e-12)
    np.testing.assert_allclose(surface.at_anchors("bowl"), [1.5 * 37, 1.5 * 5], rtol=1e-15)
    assert np.isnan(surface.errors).all()  # this task counts no wrong answers


def test_a_quadratic_over_a_plane():
    a, b, c = Point(0, 0, 1), Point(2, 0, 1), Point(1, 3, 1)  # x and y are the first two weights
    geometry = Plane(a.state_dict(), b.state_dict(), c.state_dict(), a)
    surface = evaluate(geometry, bowl_task(c), geometry.grid(4), progress=False)
    x, y = np.meshgrid(surface.x, surface.y, indexing="ij")
    assert surface.values("bowl").shape == (4, 4) and surface.y[-1] == pytest.approx(3.6)
    np.testing.assert_allclose(surface.values("bowl"), 1.5 * (x**2 + 4 * y**2 + 9), rtol=1e-12)
    np.testing.assert_allclose(surface.anchors, [[0, 0], [2, 0], [1, 3]], atol=1e-12)


def test_a_quadratic_around_a_point():
    centre = Point(3, 0, 4)
    geometry = Directions(centre.state_dict(), centre, 1, seed=7)
    surface = evaluate(geometry, bowl_task(centre), (np.array([-1.0, 0.0, 1.0]),), progress=False)
    before, at, after = surface.values("bowl")
    assert at == surface.at_anchors("bowl")[0] == 1.5 * (9 + 9 * 16)
    step = geometry.weights_at(1.0)["weight"] - centre.weight
    assert (before + after) / 2 - at == pytest.approx(bowl(Point(*step[0].tolist()), torch.tensor([3.0])).item())
    assert (surface.seed, surface.normalise) == (7, "filter")


@pytest.mark.parametrize("mode", ["keep", "interpolate"])
def test_a_model_is_moved_to_what_its_geometry_says(plane, mode):
    """Weights and buffers of every kind of geometry, at an anchor, between and beyond; of several dtypes."""

    class Odd(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.inner = net(seed)
            self.wide = nn.Parameter(torch.full((2, 2), float(seed), dtype=torch.float64))
            self.register_buffer("count", torch.tensor(seed))

    states = [Odd(seed).state_dict() for seed in range(3)]
    model = Odd(9)
    for geometry in (Line(*states[:2], model), Plane(*states, model), Directions(states[0], model, 2, seed=1)):
        seen = []

        def watched(model, batch, seen=seen):
            seen.append({name: t.clone() for name, t in model.state_dict().items()})
            return batch.sum()

        task, (first, *_) = Task(model, watched, [torch.ones(1)]), geometry.coordinates
        grid = tuple(np.array([at - 0.7, at, at + 0.3]) for at in first)
        evaluate(geometry, {"watched": task}, grid, mode, progress=False)
        points = [*geometry.coordinates.tolist(), *product(*grid)]
        for point, found in zip(points, seen, strict=True):
            expected = geometry.weights_at(*point) | geometry.buffers_at(*point, mode=mode)
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)
