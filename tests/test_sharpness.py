"""Sharpness: closed forms on quadratics, the box and its maximum, and a model that is never left moved."""

import sys
from collections import UserDict
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset

from ssgd import SSGD, select
from ssgd.analysis import Excess, SamSharpness, Sharpness, Task, keskar, load, sam_sharpness, save, symmetric_excess
from ssgd.analysis.task import samples
from ssgd.methods.sam import SAM
from tests.problems import convnet, images, mlp, vectors, weights

pytest.importorskip("scipy")
DOUBLE = torch.float64
SHARES = [torch.tensor([0.5, 1.5, 2.5], dtype=DOUBLE), torch.tensor([1.0], dtype=DOUBLE)]  # ragged; their mean is 1.375
MEAN = 1.375
MEASURES = {
    "excess": partial(symmetric_excess, level=0.3, pairs=2),
    "keskar": partial(keskar, iterations=2),
    "subspace": partial(keskar, subspace=3, iterations=2),
    "sam": sam_sharpness,
    "asam": partial(sam_sharpness, adaptive=True),
}


class Weights(nn.Module):
    """Two matrices and a bias."""

    def __init__(self, seed=0):
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.first = nn.Parameter(torch.randn(4, 3, dtype=DOUBLE, generator=generator))
        self.second = nn.Parameter(5 * torch.randn(2, 5, dtype=DOUBLE, generator=generator))
        self.bias = nn.Parameter(torch.randn(3, dtype=DOUBLE, generator=generator))

    def flat(self):
        return torch.cat([p.flatten() for p in self.parameters()])


def quadratic(H, centre=None):
    """½ (w − c)ᵀH(w − c), times the mean of the batch."""
    return lambda model, batch: batch.mean() * 0.5 * (v := model.flat() - (0 if centre is None else centre)) @ H @ v


def hessian(size=25, seed=1):
    root = torch.randn(size, size, dtype=DOUBLE, generator=torch.Generator().manual_seed(seed))
    return root @ root.T


def visited(task, measure):
    """What ``measure`` finds, and the weights at every pass over the first batch."""
    places = []

    def loss(model, batch):
        if batch is task.batches[0]:
            places.append(model.flat().detach().clone())
        return task.loss(model, batch)

    return measure(Task(task.model, loss, task.batches)), places


# --- the symmetric excess -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", ["sphere", "sign", "uniform", "gaussian"])
def test_each_pair_gives_the_curvature_along_its_noise(distribution):
    H, centre = hessian(), torch.linspace(-1, 1, 25, dtype=DOUBLE)
    task = Task(Weights(), quadratic(H, centre), SHARES)
    found, (w, *places) = visited(task, lambda t: symmetric_excess(t, 0.3, distribution=distribution, pairs=3))
    noises = torch.stack([plus - w for plus in places[::2]])
    torch.testing.assert_close(noises, torch.stack([w - minus for minus in places[1::2]]))
    assert noises[:, -3:].eq(0).all() and noises[:, :-3].ne(0).all()  # biases get none
    bends = torch.einsum("pi,ij,pj->p", noises, H, noises)
    slopes = noises @ H @ (w - centre)
    assert found.clean == pytest.approx(MEAN * 0.5 * ((w - centre) @ H @ (w - centre)).item(), rel=1e-12)
    np.testing.assert_allclose(found.excess, MEAN * 0.5 * bends, rtol=1e-9)
    np.testing.assert_allclose(found.slopes, MEAN * slopes, rtol=1e-9)
    np.testing.assert_allclose(found.lengths, noises.norm(dim=1), rtol=1e-12)
    np.testing.assert_allclose(found.curvatures, MEAN * bends / noises.square().sum(dim=1), rtol=1e-9)
    assert found.mean == pytest.approx(found.excess.mean())
    assert found.sd == pytest.approx(np.std(found.excess, ddof=1))
    assert found.worst == found.excess.max() > found.mean
    assert (found.distribution, found.level, found.mode) == (distribution, 0.3, "eval")


@pytest.mark.parametrize("distribution", ["sphere", "sign", "uniform", "gaussian"])
def test_the_mean_is_a_trace_in_units_of_the_level(distribution):
    H, model = hessian(), Weights()
    found = symmetric_excess(Task(model, quadratic(H), SHARES), 0.2, distribution=distribution, pairs=600)
    traces = MEAN * H.diagonal()[:12].sum(), MEAN * H.diagonal()[12:22].sum()
    squares = [p.detach().square().mean() for p in (model.first, model.second)]
    if distribution == "gaussian":
        squares = [1.0, 1.0]
    expected = sum(float(t * s) for t, s in zip(traces, squares, strict=True))
    error = 2 * found.sd / 0.2**2 / 600**0.5
    assert found.trace == pytest.approx(expected, abs=4 * error)
    assert error < 0.05 * expected


def test_the_noise_is_that_of_ssgd_with_the_same_seed():
    model, (x, y) = mlp(), vectors()
    opt = SSGD(SGD(model.parameters(), lr=0.0), 0.3, distribution="sphere", seed=5, model=model)
    expected = []
    for _ in range(2):
        expected.append(opt.symmetric_excess(lambda: F.cross_entropy(model(x), y)).item())
        for point in opt.points():
            with point:
                F.cross_entropy(model(x), y).backward()
        opt.step()
        opt.zero_grad()
    found = symmetric_excess(Task(model, cross_entropy, [(x, y)]), 0.3, pairs=2, seed=5)
    np.testing.assert_allclose(found.excess, expected, rtol=1e-9)


def test_directions_depend_on_seed_and_pair_alone():
    task = Task(Weights(), quadratic(hessian()), SHARES)
    found = symmetric_excess(task, 0.1, pairs=4, seed=1)
    np.testing.assert_array_equal(found.plus, symmetric_excess(task, 0.1, pairs=4, seed=1).plus)
    np.testing.assert_array_equal(found.plus[:2], symmetric_excess(task, 0.1, pairs=2, seed=1).plus)
    np.testing.assert_allclose(4 * found.excess, symmetric_excess(task, 0.2, pairs=4, seed=1).excess, rtol=1e-9)
    assert len({*found.plus, *symmetric_excess(task, 0.1, pairs=4, seed=2).plus}) == 8


def test_the_sphere_does_not_see_the_scale_of_a_tensor():
    """L(5w) with H / 25 is the same function of directions."""
    small, large = Weights(), Weights()
    with torch.no_grad():
        for p in large.parameters():
            p.mul_(5)
    H = hessian()
    found = symmetric_excess(Task(small, quadratic(H), SHARES), 0.3, pairs=2)
    scaled = symmetric_excess(Task(large, quadratic(H / 25), SHARES), 0.3, pairs=2)
    np.testing.assert_allclose(found.excess, scaled.excess, rtol=1e-9)
    assert found.trace == pytest.approx(scaled.trace, rel=1e-9)
    np.testing.assert_allclose(found.curvatures, 25 * scaled.curvatures, rtol=1e-9)


def test_a_selection_moves_alone():
    model = Weights()
    task = Task(model, quadratic(torch.eye(25, dtype=DOUBLE)), SHARES)
    _, (w, plus, *_) = visited(task, lambda t: symmetric_excess(t, 0.3, pairs=1, perturb=select(model, names="first")))
    assert (plus - w)[:12].ne(0).all() and (plus - w)[12:].eq(0).all()
    with pytest.raises(ValueError, match="perturb names a tensor that is not a parameter of the task's model"):
        symmetric_excess(task, 0.3, perturb=[Weights().first])
    with pytest.raises(ValueError, match="nothing to perturb: no trainable tensor of two or more dimensions"):
        symmetric_excess(Task(nn.BatchNorm1d(3), cross_entropy, SHARES), 0.3)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"level": 0}, "at level 0 there is no noise"),
        ({"level": -1.0}, "the noise level is"),
        ({"level": 0.1, "pairs": 0}, "pairs must be a whole number of at least 1"),
        ({"level": 0.1, "seed": -1}, "seed must be a whole number"),
        ({"level": 0.1, "distribution": "cube"}, "no distribution called 'cube'"),
        ({"level": 0.1, "mode": "test"}, "mode must be one of 'eval', 'train', not 'test'"),
    ],
)
def test_bad_options_of_the_excess(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        symmetric_excess(Task(Weights(), quadratic(hessian()), SHARES), **options)


# --- Keskar's box ---------------------------------------------------------------------------------------------------


def box(model, epsilon):
    return epsilon * (model.flat().detach().abs() + 1)


def test_the_maximum_over_the_box_is_at_the_corner_away_from_the_centre():
    """With the centre outside of the box, every coordinate of a separable quadratic rises towards one side."""
    model, h = Weights(), torch.linspace(0.5, 3, 25, dtype=DOUBLE)
    offset = torch.where(torch.arange(25) % 2 == 0, 1.0, -1.0) * (box(model, 0.1) + 0.1)
    found = keskar(Task(model, quadratic(h.diag(), model.flat().detach() - offset), SHARES), 0.1)
    clean = MEAN * 0.5 * (h * offset**2).sum().item()
    maximum = MEAN * 0.5 * (h * (offset.abs() + box(model, 0.1)) ** 2).sum().item()
    assert found.clean == pytest.approx(clean, rel=1e-12)
    assert found.maximum == pytest.approx(maximum, rel=1e-9)
    assert found.value == pytest.approx(100 * (maximum - clean) / (1 + clean), rel=1e-9)


def test_a_minimum_is_left_though_its_gradient_is_zero():
    model, h = Weights(), torch.linspace(0.5, 3, 25, dtype=DOUBLE)
    found = keskar(Task(model, quadratic(h.diag(), model.flat().detach()), SHARES), 1e-3)
    assert found.clean == 0
    assert found.value == pytest.approx(100 * MEAN * 0.5 * (h * box(model, 1e-3) ** 2).sum().item(), rel=1e-6)


def test_no_point_leaves_the_box():
    model = Weights()
    task = Task(model, quadratic(hessian()), SHARES)
    found, (w, *places) = visited(task, lambda t: keskar(t, 0.01))
    assert len(places) == len(found.losses)
    assert ((torch.stack(places) - w).abs() <= box(model, 0.01) * (1 + 1e-12)).all()


def test_in_one_random_direction_the_maximum_is_at_an_end():
    """f = ½ z²‖Av‖² along the line from a minimum at 0, where A⁺x = 0 and the box is ±ε."""
    model = Weights()
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    task = Task(model, quadratic(torch.eye(25, dtype=DOUBLE)), SHARES)
    found, (_, *places) = visited(task, lambda t: keskar(t, 0.01, subspace=1, seed=3))
    column = places[0] / places[0].norm()
    torch.testing.assert_close(torch.stack(places).abs(), torch.stack(places).norm(dim=1)[:, None] * column.abs())
    drawn = torch.randn(25, 1, dtype=DOUBLE, generator=torch.Generator().manual_seed(3))
    assert found.maximum == pytest.approx(MEAN * 0.5 * 0.01**2 * drawn.square().sum().item(), rel=1e-6)


def test_the_box_of_a_subspace_is_that_of_the_pseudo_inverse():
    """On a plane f = gᵀw the maximum is f(x) + Σ ε (|A⁺x| + 1) |Aᵀg|."""
    model, g = Weights(), torch.linspace(-1, 2, 25, dtype=DOUBLE)
    task = Task(model, lambda m, batch: batch.mean() * (g @ m.flat() + 20), SHARES)
    found = keskar(task, 0.1, subspace=4, seed=3)
    A = torch.randn(25, 4, dtype=DOUBLE, generator=torch.Generator().manual_seed(3))
    width = 0.1 * ((torch.linalg.pinv(A) @ model.flat().detach()).abs() + 1)
    assert found.maximum - found.clean == pytest.approx(MEAN * (width * (A.T @ g).abs()).sum().item(), rel=1e-6)
    with pytest.raises(ValueError, match="a subspace of 26 dimensions does not fit 25 weights"):
        keskar(task, subspace=26)


def test_a_few_random_directions_find_less_than_all():
    """On a slope: ε‖Aᵀg‖₁ is about p / √n of ε‖g‖₁."""
    torch.manual_seed(0)
    model = nn.Linear(400, 10)
    task = Task(model, cross_entropy, [(torch.randn(20, 400), torch.randint(0, 10, (20,)))])
    full, sub = keskar(task, 1e-4), keskar(task, 1e-4, subspace=5)
    assert 0 < sub.value < full.value / 3
    assert (full.subspace, sub.subspace) == (None, 5)


@pytest.mark.parametrize("factor", [1e-6, 1e6])
def test_the_search_does_not_depend_on_the_units_of_the_loss(factor):
    model, (x, y) = mlp(), vectors()
    found = keskar(Task(model, cross_entropy, [(x, y)]), 0.01)
    scaled = keskar(Task(model, lambda m, b: factor * cross_entropy(m, b), [(x, y)]), 0.01)
    assert scaled.maximum == pytest.approx(factor * found.maximum, rel=1e-6)


def test_more_iterations_never_find_less_and_the_seed_decides():
    task = Task(mlp(), cross_entropy, [vectors()])
    few, more = keskar(task, 0.05, iterations=1), keskar(task, 0.05, iterations=5)
    np.testing.assert_array_equal(few.losses[:2], more.losses[:2])
    assert few.value < more.value
    np.testing.assert_array_equal(more.losses, keskar(task, 0.05, iterations=5).losses)
    assert keskar(task, 0.05, seed=1).losses[0] != more.losses[0]


def test_a_loss_that_is_flat_or_not_a_number():
    flat = keskar(Task(Weights(), lambda m, batch: batch.mean() + 0 * m.flat().sum(), SHARES))
    assert (flat.clean, flat.value) == (MEAN, 0)
    broken = keskar(
        Task(Weights(), lambda m, batch: batch.mean() + (m.flat() - m.flat().detach().max()).log().sum(), SHARES)
    )
    assert np.isnan(broken.value)


def test_without_scipy_a_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(ImportError, match="pip install scipy"):
        keskar(Task(Weights(), quadratic(hessian()), SHARES))


# --- SAM's climb ----------------------------------------------------------------------------------------------------


def test_sam_on_a_quadratic():
    model, H = Weights(), hessian()
    g = H @ model.flat().detach()
    found = sam_sharpness(Task(model, quadratic(H), SHARES), 0.05)
    assert found.first_order == pytest.approx(MEAN * 0.05 * g.norm().item(), rel=1e-12)
    bend = MEAN * 0.5 * 0.05**2 * (g @ H @ g / (g @ g)).item()
    assert found.value == pytest.approx(found.first_order + bend, rel=1e-9)


def test_asam_on_a_quadratic():
    model, H = Weights(), hessian()
    w = model.flat().detach()
    slope = w.abs() * (H @ w)
    found = sam_sharpness(Task(model, quadratic(H), SHARES), 0.05, adaptive=True)
    e = 0.05 * w.abs() * slope / slope.norm()
    assert found.norm == pytest.approx(MEAN * slope.norm().item(), rel=1e-12)
    assert found.value == pytest.approx(MEAN * ((H @ w) @ e + 0.5 * e @ H @ e).item(), rel=1e-9)


@pytest.mark.parametrize("adaptive", [False, True])
def test_it_climbs_to_the_point_of_the_optimizer(adaptive):
    model, (x, y) = mlp(), vectors()
    found = sam_sharpness(Task(model, cross_entropy, [(x, y)]), 0.3, adaptive=adaptive)
    losses = []
    for point in SAM(SGD(model.parameters(), lr=0.1), 0.3, adaptive=adaptive).points():
        with point:
            loss = cross_entropy(model, (x, y))
            loss.backward()
            losses.append(loss.item())
    assert (found.clean, found.climbed) == pytest.approx(tuple(losses), rel=1e-9)


def test_at_an_exact_minimum_there_is_nothing_to_climb():
    model = Weights()
    found = sam_sharpness(Task(model, quadratic(hessian(), model.flat().detach()), SHARES))
    assert (found.value, found.norm, found.first_order) == (0, 0, 0)


def test_complex_weights():
    model = nn.Module()
    model.w = nn.Parameter(torch.tensor([[3 + 4j, 1 - 2j]], dtype=torch.complex128))
    task = Task(model, lambda m, batch: 0.5 * m.w.abs().square().sum() * batch.mean(), SHARES)
    found, norm = sam_sharpness(task, 0.1), 30**0.5
    assert found.norm == pytest.approx(MEAN * norm)
    assert found.climbed == pytest.approx(MEAN * 0.5 * (norm + 0.1) ** 2)
    assert symmetric_excess(task, 0.1, pairs=2).excess == pytest.approx([MEAN * 0.5 * 0.01 * 30] * 2)
    assert keskar(task, 0.1).maximum == pytest.approx(MEAN * 0.5 * (3.4**2 + 4.5**2 + 1.2**2 + 2.3**2))


# --- whatever the measure -------------------------------------------------------------------------------------------


def cross_entropy(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def state(model):
    return (
        [b.clone() for b in model.buffers()],
        [m.training for m in model.modules()],
        [p.grad for p in model.parameters()],
    )


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("failing", [None, 1, 2, 4])
@pytest.mark.parametrize("name", MEASURES)
def test_the_model_is_left_as_it_was_also_after_an_exception(name, failing, mode):
    model, batch = convnet(), images()
    model(batch[0]).sum().backward()
    model[0].eval()
    before, (buffers, modes, gradients) = weights(model), state(model)
    random, calls = torch.get_rng_state(), []

    def loss(model, batch):
        calls.append(0)
        if len(calls) == failing:
            raise KeyboardInterrupt
        return cross_entropy(model, batch)

    try:
        MEASURES[name](Task(model, loss, [batch, images(3)]), mode=mode)
    except KeyboardInterrupt:
        assert failing
    else:
        assert failing is None
    after, (same_buffers, same_modes, same_gradients) = weights(model), state(model)
    assert all(map(torch.equal, before, after)) and all(map(torch.equal, buffers, same_buffers))
    assert modes == same_modes and all(a is b for a, b in zip(gradients, same_gradients, strict=True))
    assert torch.equal(random, torch.get_rng_state())


@pytest.mark.parametrize("name", MEASURES)
def test_batch_norm_uses_the_statistics_that_the_result_names(name):
    model, batch = convnet(), images()
    model(batch[0])
    found = {mode: MEASURES[name](Task(model, cross_entropy, [batch]), mode=mode) for mode in ("eval", "train")}
    with torch.no_grad():
        model.eval()
        assert found["eval"].clean == pytest.approx(cross_entropy(model, batch).item())
        model.train()
        model[6].eval()  # dropout
        assert found["train"].clean == pytest.approx(cross_entropy(model, batch).item())
    assert found["eval"].clean != pytest.approx(found["train"].clean)
    assert [found[mode].mode for mode in found] == ["eval", "train"]


@pytest.mark.parametrize("name", MEASURES)
def test_recurrent_nets_have_no_dropout(name):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.out = nn.LSTM(5, 4, num_layers=2, dropout=0.5, batch_first=True), nn.Linear(4, 3)

        def forward(self, x):
            return self.out(self.lstm(x)[0][:, -1])

    torch.manual_seed(0)
    model, batch = Net(), (torch.randn(6, 7, 5), torch.randint(0, 3, (6,)))
    found = MEASURES[name](Task(model, cross_entropy, [batch]))
    assert model.training and model.lstm.training and model.lstm.dropout == 0.5
    assert found.clean == pytest.approx(cross_entropy(model.eval(), batch).item())


@pytest.mark.parametrize("name", MEASURES)
def test_a_loader_that_shuffles_does_so_alike_at_every_point(name):
    model, seen, current = mlp(), set(), []

    def loss(model, batch):
        current.append(batch[1].tolist())
        if len(current) == 3:
            seen.add(str(current))
            current.clear()
        return cross_entropy(model, batch)

    torch.manual_seed(5)
    before = torch.get_rng_state()
    found = MEASURES[name](Task(model, loss, DataLoader(TensorDataset(*vectors(12)), 5, shuffle=True)))
    assert len(seen) == 1 and torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(5)
    assert (
        found.clean == MEASURES[name](Task(model, loss, DataLoader(TensorDataset(*vectors(12)), 5, shuffle=True))).clean
    )


@pytest.mark.parametrize("name", MEASURES)
def test_what_is_no_task_or_no_loss(name):
    with pytest.raises(TypeError, match=r"needs a Task, such as Task\(model, loss, batches\), not a Sequential"):
        MEASURES[name](mlp())
    for loss, found in (
        (lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none"), r"a tensor of shape \(12,\)"),
        (lambda m, b: cross_entropy(m, b).item(), "a float"),
    ):
        with pytest.raises(ValueError, match=f"the loss must be a single number, .* not {found}"):
            MEASURES[name](Task(mlp(), loss, [vectors(12)]))


@pytest.mark.parametrize("name", ["keskar", "sam"])
def test_no_gradient(name):
    with pytest.raises(ValueError, match=r"no gradient reaches the weights: .* use_reentrant=False"):
        MEASURES[name](Task(mlp(), lambda m, b: cross_entropy(m, b).detach(), [vectors()]))


@pytest.mark.parametrize("name", MEASURES)
def test_a_loader_without_batches(name):
    with pytest.raises(ValueError, match="the task has no batches"):
        MEASURES[name](Task(mlp(), cross_entropy, []))


@pytest.mark.parametrize("name", ["keskar", "sam"])
def test_a_model_without_trainable_weights(name):
    with pytest.raises(ValueError, match="has no trainable parameter"):
        MEASURES[name](Task(mlp().requires_grad_(False), cross_entropy, [vectors()]))


@pytest.mark.parametrize("name", MEASURES)
def test_results_come_back_from_their_files(name, tmp_path):
    kind = {"excess": Excess, "keskar": Sharpness, "subspace": Sharpness}.get(name, SamSharpness)
    found = MEASURES[name](Task(mlp(), cross_entropy, [vectors()]))
    save(found, tmp_path / "result")
    again = load(kind, tmp_path / "result")
    assert vars(again).keys() == vars(found).keys()
    assert all(np.array_equal(value, vars(again)[key]) for key, value in vars(found).items())


# --- how many samples -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "batch",
    [
        UserDict(x=torch.ones(4, 3)),  # as Hugging Face's BatchEncoding
        {"id": ["a", "b"], "inputs": UserDict(x=torch.ones(4, 3))},
        (["a", "b"], torch.tensor(1.0), 7, np.ones(3), torch.ones(4, 3)),
        torch.ones(4),
    ],
)
def test_the_first_tensor_with_a_length_counts_the_samples(batch):
    assert samples(batch) == 4


def test_batches_that_need_a_size_of_their_own():
    for batch in (np.ones((4, 3)), 4, torch.tensor(4.0), ["a", "b"]):
        with pytest.raises(ValueError, match=r"how many samples it holds: give Task\(size=\.\.\.\)"):
            samples(batch)
