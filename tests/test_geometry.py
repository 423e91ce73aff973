"""Lines, planes and directions: exact at their anchors, right angles between, random only by their seed."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from ssgd.analysis import Directions, Line, Plane


def net(seed=0, dtype=torch.float64):
    """With all that a state can hold: filters, biases, running statistics, a counter."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 3)).to(dtype)
    model.train()(torch.randn(5, 2, 3, 3, dtype=dtype))
    model[1].num_batches_tracked.fill_(seed)
    return model


def states(count, dtype=torch.float64):
    return [net(seed, dtype).state_dict() for seed in range(count)]


def flat(weights):
    return torch.cat([w.double().flatten() for w in weights.values()])


def plane():
    return Plane(*states(3), net())


def geometries(dtype):
    a, b, c = states(3, dtype)
    return Line(a, b, net()), Plane(a, b, c, net()), Directions(a, net())


# --- at the anchors ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_an_anchor_s_weights_and_buffers_are_its_own(dtype):
    for geometry in geometries(dtype):
        for seed, coordinates in enumerate(geometry.coordinates):
            for mode in ("keep", "interpolate"):
                found = geometry.weights_at(*coordinates) | geometry.buffers_at(*coordinates, mode=mode)
                assert found.keys() == net().state_dict().keys()
                for name, tensor in states(3, dtype)[seed].items():
                    assert torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype, name


def test_solutions_are_copied():
    model = net()
    line = Line(model.state_dict(), states(2)[1], model)
    with torch.no_grad():
        model[0].weight.zero_()
    line.weights_at(0)["0.weight"].zero_()
    assert torch.equal(line.weights_at(0)["0.weight"], net()[0].weight)


# --- a line -----------------------------------------------------------------------------------------------------------


def test_a_line_goes_through_both_and_beyond():
    a, b = states(2)
    line = Line(a, b, net())
    for t in (-0.5, 0.25, 1.5):
        for name, weight in line.weights_at(t).items():
            torch.testing.assert_close(weight, (1 - t) * a[name] + t * b[name])
    (axis,) = line.grid(5, margin=0.5)
    assert axis.tolist() == [-0.5, 0, 0.5, 1, 1.5]


# --- a plane ----------------------------------------------------------------------------------------------------------


def test_a_plane_has_an_orthonormal_basis_from_a_towards_b_and_c():
    a, b, c = (flat({name: state[name] for name in plane().moving}) for state in states(3))
    origin = flat(plane().weights_at(0, 0))
    u, v = flat(plane().weights_at(1, 0)) - origin, flat(plane().weights_at(0, 1)) - origin
    assert torch.equal(origin, a)
    assert [float(x @ y) for x, y in ((u, u), (v, v), (u, v))] == pytest.approx([1, 1, 0], abs=1e-12)
    torch.testing.assert_close(u, (b - a) / (b - a).norm())
    torch.testing.assert_close(c - a, (c - a) @ u * u + (c - a) @ v * v)
    assert (c - a) @ v > 0
    expected = [[0, 0], [float((b - a).norm()), 0], [float((c - a) @ u), float((c - a) @ v)]]
    np.testing.assert_allclose(plane().coordinates, expected, atol=1e-12)


def test_the_number_of_threads_moves_nothing():
    """Else a file of one machine could not go on at another."""
    generator = torch.Generator().manual_seed(0)
    large = [{"weight": torch.randn(300_000, generator=generator)} for _ in range(3)]
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(Plane(*large, ["weight"]).coordinates.tolist())
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1] == found[2]


def test_distances_in_the_plane_are_those_of_the_weights():
    one, other = plane().weights_at(-0.3, 2.0), plane().weights_at(0.9, 0.4)
    assert float((flat(one) - flat(other)).norm()) == pytest.approx(2.0)  # 1.2 across and 1.6 down


@pytest.mark.parametrize("margin", [0, 0.2])
def test_the_grid_of_a_plane_holds_all_three_with_a_margin(margin):
    axes = plane().grid(7, margin)
    for axis, coordinates in zip(axes, plane().coordinates.T, strict=True):
        low, high = coordinates.min(), coordinates.max()
        assert len(axis) == 7
        assert (low - axis[0], axis[-1] - high) == pytest.approx([margin * (high - low)] * 2)


def test_shares_add_up_to_one():
    for point in ((0.3, 0.7), (-2, 5)):
        assert sum(plane().shares(*point)) == pytest.approx(1)


# --- buffers ----------------------------------------------------------------------------------------------------------


def test_kept_buffers_are_those_of_the_nearest():
    line = Line(*states(2), net())
    for t, seed in ((-3, 0), (0.49, 0), (0.51, 1), (4, 1)):
        for name, buffer in line.buffers_at(t, mode="keep").items():
            assert torch.equal(buffer, states(2)[seed][name])


def test_interpolated_buffers_are_combined_as_the_weights_are():
    point = 0.3 * plane().coordinates[1] + 0.5 * plane().coordinates[2]
    buffers = plane().buffers_at(*point, mode="interpolate")
    for name in ("1.running_mean", "1.running_var"):
        a, b, c = (state[name] for state in states(3))
        torch.testing.assert_close(buffers[name], 0.2 * a + 0.3 * b + 0.5 * c)
    assert buffers["1.num_batches_tracked"] == 2  # of the nearest


def test_no_variance_beyond_the_ends_is_negative():
    a, b = states(2)
    line = Line(a, b, net())
    assert ((1 - 50) * a["1.running_var"] + 50 * b["1.running_var"]).min() < 0
    buffers = line.buffers_at(50, mode="interpolate")
    assert buffers["1.running_var"].min() == 0 and buffers["1.running_mean"].min() < 0


# --- directions -------------------------------------------------------------------------------------------------------


def offset(directions, *coordinates):
    centre = directions.weights_at(*[0.0] * directions.count)
    return {name: weight - centre[name] for name, weight in directions.weights_at(*coordinates).items()}


def test_each_filter_has_the_norm_of_its_weights():
    directions, weights = Directions(net().state_dict(), net()), net().state_dict()
    for point in ((1, 0), (0, 1)):
        steps = offset(directions, *point)
        for name in ("0.weight", "3.weight"):
            expected = weights[name].flatten(1).norm(dim=1)
            torch.testing.assert_close(steps[name].flatten(1).norm(dim=1), expected, rtol=1e-12, atol=0)
        assert all(not steps[name].any() for name in ("0.bias", "1.weight", "1.bias", "3.bias"))


def test_each_layer_has_the_norm_of_its_weights_or_none_has():
    weights = net().state_dict()
    steps = offset(Directions(net().state_dict(), net(), 1, normalise="layer"), 1)
    for name in ("0.weight", "3.weight"):
        assert float(steps[name].norm()) == pytest.approx(float(weights[name].norm()), rel=1e-12)
    rows = steps["0.weight"].flatten(1).norm(dim=1) / weights["0.weight"].flatten(1).norm(dim=1)
    assert rows.std() > 0.05
    raw = offset(Directions(net().state_dict(), net(), 1, normalise="none"), 1)["0.weight"]
    assert float(raw.square().mean()) == pytest.approx(1, abs=0.7)  # 72 normal numbers
    torch.testing.assert_close(raw / raw.norm(), steps["0.weight"] / steps["0.weight"].norm())


def test_directions_are_a_function_of_the_seed():
    state = net().state_dict()
    torch.manual_seed(1)
    one, two = (flat(offset(Directions(state, net(), seed=5), *point)) for point in ((1, 0), (0, 1)))
    names = {name for name, _ in net().named_parameters()}
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert torch.equal(one, flat(offset(Directions(state, names, 1, seed=5), 1)))
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(one, two)
    assert not torch.equal(one, flat(offset(Directions(state, net(), seed=6), 1, 0)))
    torch.testing.assert_close(flat(offset(Directions(state, net(), seed=5), 0.5, -2)), 0.5 * one - 2 * two)
    assert [axis.tolist() for axis in Directions(state, net()).grid(3, reach=0.5)] == [[-0.5, 0, 0.5]] * 2


def test_magnitudes_of_weight_norm_stay():
    model = parametrizations.weight_norm(nn.Linear(4, 3))
    steps = offset(Directions(model.state_dict(), model, 1), 1)
    assert not steps["parametrizations.weight.original0"].any() and steps["parametrizations.weight.original1"].any()


# --- which tensors move -----------------------------------------------------------------------------------------------


def test_names_tell_parameters_from_buffers():
    line = Line(*states(2), ["3.weight"])
    assert list(line.weights_at(0.5)) == ["3.weight"]
    assert torch.equal(line.buffers_at(0.4, mode="keep")["0.weight"], states(1)[0]["0.weight"])


def test_tied_weights_count_once():
    class Tied(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.first = nn.Linear(1, 1, bias=False)
            self.second = self.first
            nn.init.constant_(self.first.weight, value)

    line = Line(Tied(0.0).state_dict(), Tied(3.0).state_dict(), Tied(0.0))
    assert line.moving == ("first.weight",)
    for mode in ("keep", "interpolate"):
        for t in (0.25, 1):
            model = Tied(7.0)
            model.load_state_dict(line.weights_at(t) | line.buffers_at(t, mode=mode))
            assert model.first.weight.item() == 3 * t


# --- refused ----------------------------------------------------------------------------------------------------------


def changed(state, **tensors):
    return {**state, **tensors}


def test_solutions_that_span_nothing():
    a, b, _ = states(3)
    middle = {name: (0.7 * t.float() + 0.3 * b[name].float()) for name, t in a.items()}
    with pytest.raises(ValueError, match="a and b are the same weights: a line needs two"):
        Line(a, changed(a, **{"1.running_mean": b["1.running_mean"]}), net())
    with pytest.raises(ValueError, match="a and b are the same weights: a plane needs three"):
        Plane(a, a, b, net())
    with pytest.raises(ValueError, match="a and c are the same weights: a plane needs three"):
        Plane(a, b, a, net())
    for third in (b, middle):
        with pytest.raises(ValueError, match=r"the three solutions lie on one line: .* use Line"):
            Plane(a, b, third, net())
    with pytest.raises(ValueError, match="not finite"):
        Line(a, changed(b, **{"0.bias": torch.full((4,), torch.nan)}), net())


def test_solutions_that_do_not_fit():
    a, b = states(2)
    with pytest.raises(ValueError, match="different models: only some of them have 'extra'"):
        Line(a, changed(b, extra=torch.ones(1)), net())
    with pytest.raises(ValueError, match=r"'3\.bias' has the shapes \(3,\) and \(4,\)"):
        Line(a, changed(b, **{"3.bias": torch.ones(4)}), net())
    with pytest.raises(ValueError, match="a state_dict of tensors, but 'epoch' is of type int"):
        Line(changed(a, epoch=3), changed(b, epoch=3), net())
    with pytest.raises(ValueError, match="a solution must be a state_dict of tensors, not a Sequential"):
        Line(net(), net(1), net())
    with pytest.raises(ValueError, match=r"'3\.bias' is complex, which is not served: leave it out"):
        Line(*(changed(state, **{"3.bias": torch.ones(3, dtype=torch.complex64)}) for state in (a, b)), net())
    with pytest.raises(ValueError, match="'first' is none of them"):
        Line(a, b, ["first"])
    with pytest.raises(ValueError, match="none was named"):
        Line(a, b, [])
    with pytest.raises(ValueError, match="must be 2, one a solution"):
        Line(a, b, net(), names=("SGD",))


def test_bad_choices():
    state = net().state_dict()
    with pytest.raises(ValueError, match="count must be 1 or 2 directions, not 3"):
        Directions(state, net(), 3)
    with pytest.raises(ValueError, match="normalise must be one of 'filter', 'layer', 'none'"):
        Directions(state, net(), normalise="row")
    with pytest.raises(ValueError, match="seed must be a whole number"):
        Directions(state, net(), seed=-1)
    assert Directions(state, net(), seed=None).seed == torch.initial_seed()
    for geometry, options in (
        (Line(*states(2), net()), {"margin": math.nan}),
        (plane(), {"margin": math.inf}),
        (Directions(state, net()), {"reach": math.nan}),
    ):
        with pytest.raises(ValueError, match="points must be a whole number of at least 1, not 0"):
            geometry.grid(0)
        with pytest.raises(ValueError, match="give a finite margin or reach"):
            geometry.grid(**options)
    with pytest.raises(ValueError, match="no parameter has two or more dimensions"):
        Directions(state, ["3.bias"])
    with pytest.raises(ValueError, match="a Plane has 2 coordinates, not 1"):
        plane().weights_at(0.5)
    with pytest.raises(ValueError, match="mode must be one of 'interpolate', 'keep'"):
        plane().buffers_at(0, 0, mode="recompute")
