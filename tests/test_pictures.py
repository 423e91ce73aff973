"""Pictures hold what their results hold."""

import builtins
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from torch import nn

from ssgd.analysis import FromProducts, Surface, Task, draw_line, draw_plane, draw_spectrum, spectrum
from ssgd.analysis.pictures import spread_levels

pytest.importorskip("matplotlib")


def plane():
    x, y = np.linspace(-1, 3, 9), np.linspace(-1, 2, 7)
    height = x[:, None] ** 2 + y**2
    return Surface(
        geometry="Plane",
        names=["SGDm", "SGDf", "S-SGD"],
        tasks=["train", "test"],
        batchnorm="recompute",
        x=x,
        y=y,
        losses=np.stack([0.1 + height, 1 + height]),
        errors=np.stack([height, 10 + height]),
        anchors=np.array([[0.0, 0.0], [2.0, 0.0], [1.0, 1.5]]),
        anchor_losses=np.array([[0.1, 4.1, 3.35], [1.0, 5.0, 4.25]]),
        anchor_errors=np.array([[0.0, 4.0, 3.25], [10.0, 14.0, 13.25]]),
        digest="",
    )


def line():
    whole = plane()
    return replace(
        whole,
        geometry="Line",
        names=["SGD", "S-SGD"],
        y=np.array([]),
        losses=whole.losses[:, :, 2],
        errors=whole.errors[:, :, 2],
        anchors=np.array([[0.0], [1.0]]),
        anchor_losses=whole.anchor_losses[:, :2],
        anchor_errors=whole.anchor_errors[:, :2],
    )


def texts(panel):
    return [text.get_text() for text in panel.texts]


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def assert_fits(figure):
    """Titles, labels and names lie inside the figure, and none lies on another."""
    figure.canvas.draw()
    written = list(figure.legends[0].get_texts())
    for panel in figure.axes:
        written += [panel.title, panel.xaxis.label, panel.yaxis.label, *panel.texts]
    boxes = [text.get_window_extent().padded(-1) for text in written if text.get_text()]
    for box in boxes:
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1 and box.y0 >= 0 and box.y1 <= figure.bbox.y1
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize("length", [4, 60, 200])
def test_titles_and_names_fit_however_long_they_are(length):
    names = [f"runs/{letter * length}/seed-0" for letter in "abc"]
    assert_fits(draw_line(replace(line(), names=names[:2])))
    for narrow in (1, 20):
        surface = plane()
        assert_fits(draw_plane(replace(surface, names=names, y=narrow * surface.y, anchors=surface.anchors)))
    matrix = FromProducts(lambda v: 2 * v, 5)
    assert_fits(draw_spectrum({name: spectrum(matrix, probes=2) for name in names}))


# --- contours ---------------------------------------------------------------------------------------------------------


def test_a_plane_has_contours_at_levels_further_and_further_apart_and_its_solutions():
    surface = plane()
    panel, _ = draw_plane(surface, "test", "error").axes
    filled, edges = panel.collections
    assert filled.levels[0] == surface.errors[1].min() and filled.levels[-1] == surface.errors[1].max()
    gaps = np.diff(filled.levels)[1:]
    np.testing.assert_allclose(gaps[1:] / gaps[:-1], gaps[1] / gaps[0])
    assert gaps[1] / gaps[0] > 1 and len(filled.levels) > 10
    np.testing.assert_array_equal(edges.levels, filled.levels[1:-1])
    np.testing.assert_array_equal([mark.get_xydata()[0] for mark in panel.lines], surface.anchors)
    assert len({mark.get_marker() for mark in panel.lines}) == len({mark.get_color() for mark in panel.lines}) == 3
    assert texts(panel) == ["A", "B", "C"] and panel.get_title() == "test error, %"
    assert panel.get_xlabel() == "distance from A towards B" and panel.get_aspect() == 1
    assert legend(panel.figure) == ["A: SGDm", "B: SGDf", "C: S-SGD"]


def test_x_runs_to_the_right_and_y_up():
    surface = plane()
    surface.losses[0] = surface.x[:, None] + 0 * surface.y
    filled, _ = draw_plane(surface).axes[0].collections
    lowest = filled.get_paths()[0].vertices  # of the first band
    assert lowest[:, 0].max() <= -0.5 and np.ptp(lowest[:, 1]) == 3


@pytest.mark.parametrize(
    ("values", "first", "last"),
    [
        (np.array([2.0, 2.0]), 2, 3),
        (np.array([2.0, 5.0]), 2, 5),
        (np.array([-3.0, np.nan, 4.0, np.inf, 0.0]), -3, 4),
        (np.array([1.0, 1.0 + 1e-15, 1e9]), 1, 1e9),
    ],
)
def test_levels_increase_whatever_the_values(values, first, last):
    levels = spread_levels(values)
    assert (np.diff(levels) > 0).all() and (levels[0], levels[-1]) == (first, last)


def test_points_that_are_missing_stay_blank():
    surface = plane()
    surface.losses[0, :4] = np.nan
    filled, _ = draw_plane(surface).axes[0].collections
    assert min(path.vertices[:, 0].min() for path in filled.get_paths() if len(path.vertices)) == surface.x[4]


# --- lines and spectra ------------------------------------------------------------------------------------------------


def test_a_line_has_loss_and_error_of_each_task_and_both_ends():
    surface = line()
    loss, error = draw_line(surface).axes
    for panel, values, ends in (
        (loss, surface.losses, surface.anchor_losses),
        (error, surface.errors, surface.anchor_errors),
    ):
        curves = {curve.get_label(): curve for curve in panel.lines if curve.get_label() in surface.tasks}
        for i, task in enumerate(surface.tasks):
            np.testing.assert_array_equal(curves[task].get_xydata(), np.stack([surface.x, values[i]], axis=1))
        marks = [mark.get_xydata()[0].tolist() for mark in panel.lines if mark.get_marker() in "os"]
        assert marks == [[t, ends[i, t]] for i in (0, 1) for t in (0, 1)]
        assert texts(panel) == ["A", "B"]
    assert [panel.get_ylabel() for panel in (loss, error)] == ["loss", "error, %"]
    assert len({curve.get_color() for curve in curves.values()}) == 2
    assert legend(loss.figure) == ["train", "test", "A: SGD", "B: S-SGD"]
    assert len(draw_line(replace(surface, errors=np.full_like(surface.errors, np.nan))).axes) == 1


def test_spectra_share_one_logarithmic_scale():
    def of(*curvatures):
        model = nn.Linear(len(curvatures), 1, bias=False).double()
        loss = lambda model, h: (model.weight.square() * h).sum() / 2  # noqa: E731
        return spectrum(Task(model, loss, [torch.tensor([curvatures], dtype=torch.float64)]), probes=2)

    found = {"SGD": of(-2.0, 0.1, 10.0), "S-SGD": of(-1.0, 0.1, 4.0)}
    (panel,) = draw_spectrum(found).axes
    sharp, flat = panel.lines[:2]
    assert panel.get_yscale() == "log" and (sharp.get_label(), flat.get_label()) == ("SGD", "S-SGD")
    assert np.array_equal(sharp.get_xdata(), flat.get_xdata())
    assert sharp.get_xdata()[0] < -2 and sharp.get_xdata()[-1] > 10
    for curve, places in ((sharp, (-2, 0.1, 10)), (flat, (-1, 0.1, 4))):
        x, y = curve.get_data()
        peaks = x[1:-1][(y[1:-1] > y[:-2]) & (y[1:-1] > y[2:])]
        np.testing.assert_allclose(peaks, places, atol=0.02)
        assert np.trapezoid(y, x) == pytest.approx(1, abs=1e-3)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("svg", b"<?xml")])
def test_pictures_as_files(tmp_path, kind, start):
    for name, draw, surface in (("line", draw_line, line()), ("plane", draw_plane, plane())):
        draw(surface, path=tmp_path / f"{name}.{kind}")
        content = (tmp_path / f"{name}.{kind}").read_bytes()
        assert content.startswith(start) and len(content) > 3000


# --- refused ----------------------------------------------------------------------------------------------------------


def test_bad_choices(tmp_path):
    with pytest.raises(ValueError, match=r"two coordinates: draw it with draw_plane"):
        draw_line(plane())
    with pytest.raises(ValueError, match=r"one coordinate: draw it with draw_line"):
        draw_plane(line())
    with pytest.raises(ValueError, match="of must be one of 'train', 'test', not 'valid'"):
        draw_plane(plane(), "valid")
    with pytest.raises(ValueError, match="what must be one of 'loss', 'error'"):
        draw_plane(plane(), what="accuracy")
    with pytest.raises(ValueError, match="there is no error of 'train' to draw"):
        draw_plane(replace(plane(), errors=np.full((2, 9, 7), np.nan)), what="error")
    with pytest.raises(ValueError, match="two points or more on each axis"):
        draw_plane(replace(plane(), x=np.zeros(1), losses=plane().losses[:, :1]))
    with pytest.raises(ValueError, match=r"a picture can be \.png, \.pdf or \.svg, not '.*plane\.jpg'"):
        draw_plane(plane(), path=tmp_path / "plane.jpg")
    assert not list(tmp_path.iterdir())


def test_what_is_not_installed_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        draw_line(line())
