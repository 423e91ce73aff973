"""Which level: the curve, the rule on losses whose answer is known, and the picture."""

import math
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from ssgd import select
from ssgd.analysis import LevelCurve, Task, find_level, load, save, symmetric_excess
from ssgd.lab.data import digits
from tests.problems import convnet, images, mlp, vectors, weights

ONES = [torch.ones(3, dtype=torch.float64), torch.ones(1, dtype=torch.float64)]


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


class Bowl(nn.Module):
    """h/2 ‖w − c‖², c being where w is at first: any noise of level a costs h/2 a²‖w‖², and zero weights h/2 ‖w‖²."""

    def __init__(self, h=1.0, scale=1.0):
        super().__init__()
        self.h = h
        generator = torch.Generator().manual_seed(0)
        self.w = nn.Parameter(scale * torch.randn(4, 3, dtype=torch.float64, generator=generator))
        self.register_buffer("centre", self.w.detach().clone())

    def loss(self, batch):
        return batch.mean() * 0.5 * self.h * (self.w - self.centre).square().sum()


def bowl(**options):
    return Task(Bowl(**options), Bowl.loss, ONES)


def curve(means, levels=(0.1, 0.2, 0.4), clean=0.0, blank=1.0):
    """One with the excess given; at least 0.05 is looked for."""
    means = np.array(means)[:, None] + clean
    return LevelCurve(
        levels=np.array(levels),
        distribution="sphere",
        seed=0,
        mode="train",
        samples=4,
        clean=clean,
        blank=blank,
        plus=means,
        minus=means,
    )


# --- the rule -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", ["sphere", "sign"])
def test_in_a_bowl_it_is_the_root_of_the_share(distribution):
    found = find_level(bowl(), distribution=distribution)
    np.testing.assert_allclose(found.mean, found.levels**2 * found.blank, rtol=1e-9)
    assert found.suggestion == pytest.approx(math.sqrt(0.05), rel=1e-9)
    assert f"suggested level 0.22 ({distribution}): there the noise undoes 5%" in found.verdict
    assert (found.clean, found.samples, found.distribution, found.mode) == (0, 4, distribution, "train")
    assert found.levels[[0, -1]] == pytest.approx([0.01, 1.5])


def test_it_does_not_depend_on_the_units_of_loss_and_weights():
    assert find_level(bowl(h=1e-4)).suggestion == pytest.approx(math.sqrt(0.05), rel=1e-6)
    assert find_level(bowl(scale=1e3)).suggestion == pytest.approx(math.sqrt(0.05), rel=1e-6)


def test_it_lies_between_the_levels_around_the_crossing():
    assert curve([0.01, 0.04, 0.16]).suggestion == pytest.approx(math.sqrt(0.05), rel=1e-9)
    assert curve([-0.01, 0.2, 0.1]).suggestion == pytest.approx(math.sqrt(0.01 + 0.03 * 0.06 / 0.21), rel=1e-9)
    assert curve([0.01, 0.03, 0.05]).suggestion == 0.4


@pytest.mark.parametrize("broken", [math.inf, math.nan])
def test_a_loss_that_overflows_is_too_much_noise(broken):
    assert curve([0.01, 0.02, broken]).suggestion == 0.2


@pytest.mark.parametrize(
    ("found", "sentence"),
    [
        (curve([-0.1, -0.2, -0.3], clean=2.0, blank=1.9), "the loss, 2, is not below that of weights at zero, 1.9"),
        (curve([0.1, 0.2, 0.3], blank=math.nan), "train for a while first"),
        (curve([-0.1, 0.01, 0.02]), "up to 0.4 (sphere) the loss rises too little; try larger levels"),
        (curve([0.06, 0.1, 0.2]), "at 0.1 (sphere) the loss already rises too much; try smaller levels"),
    ],
)
def test_where_no_level_can_be_suggested_a_sentence_says_why(found, sentence):
    assert found.suggestion is None
    assert sentence in found.verdict
    assert len(found.draw().axes[0].get_lines()) > 0


def test_before_and_after_training():
    """At random weights there is nothing to undo; afterwards the level bears some noise, and not any."""
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    data = digits(100, 1)
    batches = list(zip(data.train_images.split(20), data.train_labels.split(20), strict=True))
    task = Task(model, cross_entropy, batches)
    start = find_level(task)
    assert start.suggestion is None and start.mean.min() < 0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.9)
    for batch in batches * 30:
        cross_entropy(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    found = find_level(task)
    assert 0.2 < found.suggestion < 0.8
    assert found.blank == pytest.approx(math.log(10), rel=0.05) and found.clean < 0.5


# --- the curve ------------------------------------------------------------------------------------------------------


def test_each_row_is_a_symmetric_excess():
    task = Task(convnet(), cross_entropy, [images()])
    task.model(images()[0])
    found = find_level(task, [0.1, 0.4], pairs=3, seed=2)
    for i, level in enumerate((0.1, 0.4)):
        row = symmetric_excess(task, level, pairs=3, seed=2, mode="train")
        np.testing.assert_array_equal(found.plus[i], row.plus)
        np.testing.assert_array_equal(found.minus[i], row.minus)
        assert (found.clean, found.mean[i], found.sd[i]) == (row.clean, row.mean, row.sd)
    assert np.isnan(find_level(task, [0.1, 0.4], pairs=1).sd).all()
    assert not np.array_equal(found.plus, find_level(task, [0.1, 0.4], pairs=3, seed=3).plus)


def test_all_levels_see_the_same_few_batches():
    """Also where the loader gives others each time."""
    passes, seen = [], set()

    class Shuffled:
        def __iter__(self):
            passes.append(0)
            return (vectors(4, seed=10 * len(passes) + i) for i in range(5))

    def loss(model, batch):
        seen.add(id(batch[0]))
        return cross_entropy(model, batch)

    found = find_level(Task(mlp(), loss, Shuffled()), [0.1, 0.4], batches=2)
    assert len(passes) == 1 and len(seen) == 2 and found.samples == 8
    assert find_level(Task(mlp(), loss, Shuffled()), [0.1, 0.4], batches=None).samples == 20


def test_a_loader_that_draws_leaves_the_random_state():
    loader = DataLoader(TensorDataset(*vectors(12)), 5, shuffle=True)
    before = torch.get_rng_state()
    find_level(Task(mlp(), cross_entropy, loader), [0.1, 0.4])
    assert torch.equal(torch.get_rng_state(), before)


def test_one_level(tmp_path):
    found = find_level(bowl(), 0.1)
    np.testing.assert_array_equal(found.plus, find_level(bowl(), [0.1, 0.4]).plus[:1])
    assert found.suggestion is None and "try larger levels" in found.verdict
    found.draw(tmp_path / "one.png")


def test_only_a_selection_is_noisy_and_set_to_zero():
    model = mlp()
    task = Task(model, cross_entropy, [vectors()])
    found = find_level(task, [0.1, 0.4], perturb=iter(select(model, names="2.*")))
    row = symmetric_excess(task, 0.4, pairs=4, perturb=[model[2].weight])
    np.testing.assert_array_equal(found.plus[1], row.plus)
    with torch.no_grad():
        model[2].weight.zero_()
        assert found.blank == cross_entropy(model, vectors()).item()


@pytest.mark.parametrize("failing", [None, 3, 19])
def test_the_model_is_left_as_it_was_also_after_an_exception(failing):
    model, calls = convnet(), []
    model(images()[0])
    before, buffers = weights(model), [b.clone() for b in model.buffers()]

    def loss(model, batch):
        calls.append(0)
        if len(calls) == failing:
            raise KeyboardInterrupt
        return cross_entropy(model, batch)

    try:
        find_level(Task(model, loss, [images()]), [0.1, 0.4])
    except KeyboardInterrupt:
        assert failing
    else:
        assert failing is None and len(calls) == 19  # the last with weights at zero
    assert all(map(torch.equal, before, weights(model))) and all(map(torch.equal, buffers, model.buffers()))
    assert all(module.training for module in model.modules())


def test_bad_options():
    for levels in ([], [0.1, 0.1], [0.2, 0.1], [[0.1, 0.2]]):
        with pytest.raises(ValueError, match="levels must be one number or several, each larger than the one before"):
            find_level(bowl(), levels)
    with pytest.raises(ValueError, match="at level 0 there is no noise"):
        find_level(bowl(), [0.0, 0.1])
    with pytest.raises(ValueError, match="batches must be a whole number"):
        find_level(bowl(), batches=0)
    with pytest.raises(ValueError, match="the task has no batches"):
        find_level(Task(Bowl(), Bowl.loss, []))


def test_it_comes_back_from_its_files(tmp_path):
    found = find_level(bowl(), [0.1, 0.4])
    save(found, tmp_path / "level")
    again = load(LevelCurve, tmp_path / "level")
    assert all(np.array_equal(value, vars(again)[key]) for key, value in vars(found).items())
    assert again.suggestion == found.suggestion


# --- the picture ----------------------------------------------------------------------------------------------------


def test_the_picture_marks_the_suggestion(tmp_path):
    found = curve([-0.01, 0.02, 0.1])
    axes = found.draw(tmp_path / "level.png").axes[0]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    labels = axes.get_legend_handles_labels()[1]
    assert {f"suggestion {found.suggestion:.2g}", "the same, below zero", "5% of what was learnt"} <= set(labels)
    assert any(list(line.get_xdata()) == [found.suggestion] * 2 for line in axes.get_lines())
    assert (tmp_path / "level.png").read_bytes().startswith(b"\x89PNG")
    found.draw(tmp_path / "level.svg")
    assert "<svg" in (tmp_path / "level.svg").read_text()
    with pytest.raises(ValueError, match=r"a picture can be \.png, \.pdf or \.svg"):
        found.draw(tmp_path / "level.bmp")


def test_without_matplotlib_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        curve([0.01, 0.02, 0.1]).draw()
