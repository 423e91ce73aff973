"""Lanczos, eigenvalue densities, eigenvalues at the ends and traces, against matrices whose spectrum is known."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ssgd.analysis import (
    Eigenvalues,
    FromProducts,
    Hessian,
    Spectrum,
    Task,
    Trace,
    load,
    save,
    spectrum,
    top_eigenvalues,
    trace,
)
from ssgd.analysis.symmetric import Krylov, lanczos_together
from ssgd.analysis.task import evaluating

from .hessian_problems import curvlinops_hessian, exact, task_of


def rotated(eigenvalues, seed=0):
    """A matrix of these eigenvalues in a random basis."""
    generator = torch.Generator().manual_seed(seed)
    eigenvalues = torch.as_tensor(eigenvalues, dtype=torch.float64)
    size = len(eigenvalues)
    basis = torch.linalg.qr(torch.randn(size, size, generator=generator, dtype=torch.float64)).Q
    return (basis * eigenvalues) @ basis.T


def given(matrix):
    return FromProducts(matrix.mv, len(matrix), matrix.dtype)


def outliers(size=300):
    """A bulk around zero and a few large ones at both ends, as in a trained net."""
    bulk = 0.1 * torch.randn(size - 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return torch.cat([torch.tensor([50.0, 20.0, 19.9, 5.0, -2.0, -1.5], dtype=torch.float64), bulk])


def moments(eigenvalues, count=4):
    return np.array([(eigenvalues**k).mean().item() for k in range(1, count + 1)])


def net(kind="mlp"):
    return task_of(kind)[0]


def whole(kind="mlp"):
    """The net's Hessian as a matrix, by torch.func."""
    task, data = task_of(kind)
    with evaluating(task.model):
        return exact(task, data)


# --- Lanczos --------------------------------------------------------------------------------------------------------


def lanczos(matvec, start, steps):
    """From one vector."""
    (found,) = lanczos_together(lambda vectors: matvec(vectors[0]).unsqueeze(0), [start], steps)
    return found


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_the_basis_is_orthonormal_and_the_matrix_tridiagonal_in_it(dtype, tolerance):
    """Also long after the outliers have converged, where Lanczos without orthogonalisation finds them again."""
    matrix = rotated(outliers()).to(dtype)
    found = lanczos(matrix.mv, torch.ones(300, dtype=dtype), 120)
    basis, small = found.basis[:120].double(), found.projected
    assert small.dtype == np.float64 and small.shape == (120, 120) and found.known == 120
    np.testing.assert_allclose(np.triu(small, 2), 0, atol=50 * tolerance)
    np.testing.assert_allclose(basis @ basis.T, np.eye(120), atol=tolerance)
    np.testing.assert_allclose(basis @ matrix.double() @ basis.T, small, atol=50 * tolerance)
    values, residuals, _ = found.ritz()
    x = torch.from_numpy(np.linalg.eigh(small)[1].T) @ basis
    left = (x @ matrix.double() - torch.from_numpy(values)[:, None] * x).norm(dim=1)
    np.testing.assert_allclose(residuals, left, rtol=1e-3, atol=50 * tolerance)
    assert (found.ritz()[0] > 30).sum() == 1


def test_all_steps_give_all_eigenvalues():
    eigenvalues = torch.linspace(-1, 3, 20, dtype=torch.float64)
    values, _, weights = lanczos(rotated(eigenvalues).mv, torch.ones(20, dtype=torch.float64), 50).ritz()
    np.testing.assert_allclose(values, eigenvalues, atol=1e-12)
    assert weights.sum() == pytest.approx(1) and (weights >= 0).all()


def test_it_stops_at_an_invariant_subspace():
    found = lanczos(rotated([2.0] * 10 + [5.0] * 10).mv, torch.ones(20, dtype=torch.float64), 15)
    assert found.known == 2 and found.ritz()[1].max() < 1e-13
    np.testing.assert_allclose(found.ritz()[0], [2, 5], atol=1e-13)
    assert lanczos(lambda v: v, torch.ones(5), 3).ritz()[0].tolist() == pytest.approx([1])
    assert lanczos(torch.zeros_like, torch.ones(5), 3).ritz()[0].tolist() == [0]


def test_quadrature_is_exact_up_to_its_degree():
    """Σ weight · node^k = vᵀA^k v / vᵀv for k < 2 · steps, and not beyond."""
    matrix, v = rotated(outliers(60)) / 50, torch.linspace(1, 2, 60, dtype=torch.float64)
    values, _, weights = lanczos(matrix.mv, v, 4).ritz()
    off, power = [], v
    for k in range(9):
        off.append(abs((weights * values**k).sum() - (v @ power / (v @ v)).item()))
        power = matrix @ power
    assert max(off[:8]) < 1e-14 < off[8]


def test_several_starts_at_once_are_each_on_their_own():
    """Also where one of them ends early."""
    matrix = torch.diag(outliers(60))
    starts = [torch.linspace(1, 2, 60, dtype=torch.float64), torch.eye(60, dtype=torch.float64)[3]]
    widths = []
    found = lanczos_together(lambda v: widths.append(len(v)) or v @ matrix, starts, 7)
    assert widths[0] == 2 and widths[-1] == 1 and found[1].known < 7
    for one, start in zip(found, starts, strict=True):
        alone = lanczos(matrix.mv, start, 7)
        np.testing.assert_allclose(one.ritz(), alone.ritz(), atol=1e-12)
        np.testing.assert_allclose(one.basis[: one.known], alone.basis[: one.known], atol=1e-10)


def test_a_start_without_direction():
    with pytest.raises(ValueError, match="the start vector is zero"):
        lanczos(lambda v: v, torch.zeros(5), 3)
    with pytest.raises(ValueError, match="steps must be a whole number of at least 1"):
        lanczos(lambda v: v, torch.ones(5), 0)


# --- density --------------------------------------------------------------------------------------------------------


def test_a_diagonal_matrix_has_its_moments_exactly():
    """Probes of signs weigh every eigenvalue of a diagonal matrix alike."""
    eigenvalues = outliers(100)
    found = spectrum(FromProducts(lambda v: eigenvalues * v, 100), steps=3, probes=2)
    mean, error = found.moments()
    np.testing.assert_allclose(mean, moments(eigenvalues), rtol=1e-10)
    assert (error < 1e-10 * mean).all()


@pytest.mark.parametrize("source", ["rotated", "net"])
def test_moments_lie_within_their_errors(source):
    matrix = rotated(outliers()) if source == "rotated" else whole()
    found = spectrum(given(matrix) if source == "rotated" else net(), steps=12, probes=24, seed=1)
    mean, error = found.moments()
    expected = moments(torch.linalg.eigvalsh(matrix))
    assert (np.abs(mean - expected) < 4 * error).all()
    assert (error < 0.5 * np.abs(expected))[1:].all()
    assert found.products == 24 * 12
    single = spectrum(given(matrix), steps=30, probes=1, seed=1)
    assert np.isnan(single.moments()[1]).all() and np.isnan(single.density()[2]).all()


@pytest.mark.parametrize(("room", "widths"), [(10**9, {5}), (20 * 300 * 8 * 2, {2, 1}), (1, {1})])
def test_probes_side_by_side_as_memory_allows(monkeypatch, room, widths):
    dense = rotated(outliers())
    seen, matrix = set(), given(dense)
    expected = spectrum(matrix, steps=20)
    monkeypatch.setattr("ssgd.analysis.eigenvalues.MEMORY", room)
    monkeypatch.setattr(matrix, "matmat", lambda v: seen.add(len(v)) or v @ dense)
    found = spectrum(matrix, steps=20)
    assert seen == widths
    np.testing.assert_allclose(found.values, expected.values, atol=1e-9)
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-9)


def test_each_probe_sees_the_matrix_from_its_own_vector():
    matrix = given(rotated(outliers()))
    found = spectrum(matrix, steps=20, probes=3, seed=7)
    for probe in range(3):
        v = matrix.draw("sign", 7, probe)
        assert set(v.tolist()) == {-1.0, 1.0}
        seen = (found.weights[probe] * found.values[probe] ** 2).sum()
        assert seen == pytest.approx((matrix.matvec(v) @ matrix.matvec(v) / 300).item())


def test_errors_are_those_of_a_mean_over_probes():
    found = spectrum(given(rotated(outliers())), steps=20, probes=4)
    traces = (found.weights * found.values).sum(1)
    assert found.moments()[1][0] == pytest.approx(traces.std(ddof=1) / 2)
    grid, density, error = found.density()
    singles = [replace(found, values=found.values[[p]], weights=found.weights[[p]]) for p in range(4)]
    curves = np.array([single.density(grid, sigma=(found.largest - found.smallest) / 100)[1] for single in singles])
    np.testing.assert_allclose(density, curves.mean(0), atol=1e-12)
    np.testing.assert_allclose(error, curves.std(0, ddof=1) / 2, atol=1e-12)


def test_the_density_counts_eigenvalues():
    eigenvalues = torch.tensor([-1.0] * 50 + [0.0] * 100 + [4.0] * 50)
    found = spectrum(given(rotated(eigenvalues)), steps=10, probes=40)
    assert (found.values.shape, found.parameters) == ((40, 10), 200)
    assert (found.smallest, found.largest) == (pytest.approx(-1), pytest.approx(4))
    grid, density, error = found.density(np.linspace(-2, 5, 1401), sigma=0.1)
    step = grid[1] - grid[0]
    assert density.sum() * step == pytest.approx(1)
    for low, high, share in ((-2, -0.5, 0.25), (-0.5, 0.5, 0.5), (0.5, 5, 0.25)):
        inside = (grid >= low) & (grid < high)
        assert density[inside].sum() * step == pytest.approx(share, abs=4 * error[inside].max() * 0.25)
        assert error[inside].max() < 0.1
    peak = density[np.abs(grid).argmin()]
    assert peak == pytest.approx(0.5 / (0.1 * np.sqrt(2 * np.pi)), rel=0.1)
    grid, density, _ = found.density()
    assert density.sum() * (grid[1] - grid[0]) == pytest.approx(1, rel=1e-3)


def test_a_probe_that_ends_early_fills_its_row_with_nothing():
    eigenvalues = torch.tensor([1.0, 1.0, 2.0, 2.0], dtype=torch.float64)
    found = spectrum(FromProducts(lambda v: eigenvalues * v, 4), probes=2)
    np.testing.assert_allclose(found.values, [[1, 2, 0, 0]] * 2, atol=1e-14)
    np.testing.assert_allclose(found.weights, [[0.5, 0.5, 0, 0]] * 2, atol=1e-14)
    assert (found.smallest, found.products) == (pytest.approx(1), 4)


def test_one_eigenvalue():
    for value in (3.0, 0.0):
        found = spectrum(FromProducts(lambda v, value=value: value * v, 10))
        grid, density, _ = found.density()
        assert found.largest == found.smallest == value
        assert density.sum() * (grid[1] - grid[0]) == pytest.approx(1)


def test_the_seed_is_all_that_chance_depends_on():
    task = net()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, other = spectrum(task, 5, 2, seed=3), spectrum(task, 5, 2, seed=4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert (first.values == spectrum(task, 5, 2, seed=3).values).all()
    assert not (first.values == other.values).any()
    assert not np.isin(first.values[0], first.values[1]).any()


def test_facts():
    found = spectrum(net(), steps=4, probes=2, seed=5)
    assert (found.parameters, found.samples, found.product, found.mode) == (75, 13, "forward", "eval")
    assert (found.dtype, found.products, found.passes, found.seed) == ("float64", 8, 8 * 9, 5)
    assert found.seconds > 0
    matrix = Hessian(net(), product="two-point", mode="train")
    matrix.matvec(torch.ones(75))
    found = trace(matrix, 6)
    assert (found.product, found.mode, found.products, found.passes) == ("two-point", "train", 6, 36)


def test_results_are_files_and_back(tmp_path):
    for found in (spectrum(net(), 4, 2), top_eigenvalues(net(), vectors=True), trace(net(), 10)):
        save(found, tmp_path / "result")
        back = load(type(found), tmp_path / "result")
        for name, value in vars(found).items():
            np.testing.assert_array_equal(getattr(back, name), value)
    assert {Spectrum, Eigenvalues, Trace} == {type(r) for r in (spectrum(net(), 1, 1), top_eigenvalues(net()), back)}


def test_progress(capsys):
    spectrum(net(), 4, 2, progress=True)
    assert "8/8" in capsys.readouterr().err
    spectrum(net(), 4, 2)
    assert capsys.readouterr().err == ""


def test_products_that_are_not_finite():
    with pytest.raises(ValueError, match="a product with the Hessian is not finite"):
        spectrum(FromProducts(lambda v: v / 0, 5))


# --- the ends -------------------------------------------------------------------------------------------------------


def check_ends(found, eigenvalues, count):
    """Both ends to 1e-6, or the one that was asked for."""
    expected = np.sort(np.asarray(eigenvalues))
    np.testing.assert_allclose(found.largest, expected[::-1][: len(found.largest)], rtol=1e-6, atol=1e-12)
    np.testing.assert_allclose(found.smallest, expected[: len(found.smallest)], rtol=1e-6, atol=1e-12)
    assert len(found.largest) in (0, count) and len(found.smallest) in (0, count)
    assert found.converged


@pytest.mark.parametrize("which", ["both", "largest", "smallest"])
@pytest.mark.parametrize("block", [1, 3])
@pytest.mark.parametrize("kind", ["mlp", "convnet"])
def test_eigenvalues_of_a_net(which, block, kind):
    found = top_eigenvalues(net(kind), count=4, which=which, block=block)
    check_ends(found, torch.linalg.eigvalsh(whole(kind)), 4)
    assert (len(found.largest), len(found.smallest)) == (4 * (which != "smallest"), 4 * (which != "largest"))


@pytest.mark.parametrize("which", ["both", "largest", "smallest"])
@pytest.mark.parametrize("block", [1, 4])
def test_restarts(which, block):
    """A spectrum without gaps, which takes more products than the basis has room for."""
    eigenvalues = torch.linspace(-3, 10, 600, dtype=torch.float64)
    found = top_eigenvalues(given(rotated(eigenvalues)), count=3, which=which, block=block)
    check_ends(found, eigenvalues, 3)
    assert (found.residuals <= 1.1e-6 * np.abs([*found.largest, *found.smallest])).all()
    assert found.products > 2 * (6 + block) + 40 + 6


@pytest.mark.parametrize("block", [1, 3])
def test_residuals_are_known_without_a_product(block):
    matrix = rotated(outliers())
    generator = torch.Generator().manual_seed(0)
    krylov = Krylov(torch.randn(block, 300, generator=generator, dtype=torch.float64), room=40, low=2, high=2)
    for _ in range(6):
        krylov.take(krylov.rows() @ matrix)
    values, residuals, _ = krylov.ritz()
    x = krylov.vectors()
    off = (x @ matrix - torch.from_numpy(values[krylov.ends])[:, None] * x).norm(dim=1)
    np.testing.assert_allclose(residuals[krylov.ends], off, rtol=1e-8, atol=1e-12)
    assert off.max() > 1e-3


def test_vectors_and_residuals():
    matrix = rotated(outliers())
    found = top_eigenvalues(given(matrix), count=2, vectors=True)
    values = np.concatenate([found.largest, found.smallest])
    x = torch.from_numpy(found.vectors)
    assert x.shape == (4, 300) and top_eigenvalues(given(matrix), count=2).vectors.shape == (0, 300)
    np.testing.assert_allclose(x @ x.T, np.eye(4), atol=1e-8)
    off = (x @ matrix - torch.from_numpy(values)[:, None] * x).norm(dim=1)
    np.testing.assert_allclose(found.residuals, off, atol=1e-12)
    assert (found.residuals <= 2e-6 * np.abs(values)).all()


def test_a_looser_tolerance_takes_fewer_products():
    matrix = given(rotated(outliers()))
    needed = [top_eigenvalues(matrix, 3, tolerance=tolerance).products for tolerance in (1e-2, 1e-4, 1e-8)]
    assert all(a < b for a, b in pairwise(needed))


def test_it_gives_up_and_says_so():
    matrix = given(rotated(torch.linspace(-3, 10, 600)))
    found = top_eigenvalues(matrix, 3, products=30)
    assert not found.converged and found.products == 30 + 6
    assert found.residuals.max() > 1e-3
    off = [np.abs(np.linspace(-3, 10, 600) - value).min() for value in (*found.largest, *found.smallest)]
    assert (off <= found.residuals).all()


def test_equal_eigenvalues_are_found_as_often_as_the_block_is_wide():
    """A regression with 3 outputs: H = 2 XᵀX / 3n, once for each output."""
    x = torch.randn(200, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = nn.Linear(30, 3, bias=False).double()
    task = Task(model, lambda m, b: F.mse_loss(m(b), b[:, :3]), list(x.split(64)))
    single = torch.linalg.eigvalsh(2 * x.T @ x / 600)
    check_ends(top_eigenvalues(task, 5, block=3), single.repeat(3), 5)
    alone = top_eigenvalues(task, 2, "largest")
    np.testing.assert_allclose(alone.largest, single.flip(0)[:2], rtol=1e-6)


@pytest.mark.parametrize(("value", "size"), [(1.0, 10), (0.0, 100), (-2.0, 1)])
def test_multiples_of_the_identity(value, size):
    count = min(size, 3)
    found = top_eigenvalues(FromProducts(lambda v: value * v, size), count)
    np.testing.assert_allclose([found.largest, found.smallest], [[value] * count] * 2, atol=1e-14)
    assert found.converged


def test_more_eigenvalues_than_an_invariant_subspace_has():
    """The first vector meets each of the three values once: the copies come from new ones."""
    found = top_eigenvalues(given(rotated([5.0] * 4 + [3.0] * 3 + [1.0] * 3)), 5, "largest")
    check_ends(found, [5.0] * 4 + [3.0] * 3 + [1.0] * 3, 5)


def test_a_singular_matrix():
    eigenvalues = torch.cat([torch.zeros(100), torch.linspace(1, 2, 20)])
    found = top_eigenvalues(given(rotated(eigenvalues)), 1)
    assert found.converged and abs(found.smallest[0]) < 1e-12


def test_eigenvalues_in_single_precision():
    eigenvalues = outliers()
    found = top_eigenvalues(given(rotated(eigenvalues).float()), 2)
    expected = np.sort(eigenvalues.numpy())
    np.testing.assert_allclose(found.largest, expected[::-1][:2], rtol=1e-5)
    np.testing.assert_allclose(found.smallest, expected[:2], rtol=1e-4)
    assert found.converged and found.dtype == "float32"


def test_curvlinops_agrees_on_the_ends():
    scipy = pytest.importorskip("scipy.sparse.linalg")
    task = net()
    expected = scipy.eigsh(curvlinops_hessian(task).to_scipy(), k=6, which="BE", return_eigenvectors=False)
    check_ends(top_eigenvalues(task, 3), expected, 3)


# --- trace ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["xtrace", "hutch++", "hutchinson"])
@pytest.mark.parametrize("source", ["rotated", "net"])
def test_traces_and_their_errors_over_seeds(method, source):
    matrix = rotated(outliers()) if source == "rotated" else whole()
    expected = matrix.trace().item()
    found = [trace(given(matrix), 30, method, seed) for seed in range(60)]
    off = np.array([result.estimate - expected for result in found])
    claimed = np.sqrt(np.mean([result.error**2 for result in found]))
    spread = np.sqrt((off**2).mean())
    assert abs(off.mean()) < 4 * spread / np.sqrt(60)
    assert 0.6 < spread / claimed < 1.5
    assert all(result.products == 30 and result.method == method for result in found)


def test_the_methods_in_order():
    matrix = rotated(outliers())

    def off(method):
        return np.sqrt(
            np.mean([(trace(given(matrix), 60, method, s).estimate - matrix.trace()) ** 2 for s in range(30)])
        )

    assert 1.1 * off("xtrace") < off("hutch++") < 0.2 * off("hutchinson")


@pytest.mark.parametrize("method", ["xtrace", "hutch++"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_matrix_of_low_rank_has_its_trace_exactly(method, dtype):
    matrix = rotated([5.0, 4.0, 3.0, -1.0] + [0.0] * 96).to(dtype)
    found = trace(given(matrix), 30, method)
    assert found.estimate == pytest.approx(11, rel=1e-12 if dtype == torch.float64 else 1e-4)
    assert found.error < (1e-12 if dtype == torch.float64 else 1e-3)
    nothing = trace(FromProducts(torch.zeros_like, 100), 30, method)
    assert nothing.estimate == nothing.error == 0


def test_xtrace_of_the_identity_is_exact():
    found = trace(FromProducts(lambda v: v, 100), 30)
    assert found.estimate == pytest.approx(100, rel=1e-12) and found.error < 1e-10


def test_as_many_products_as_weights_give_it_exactly():
    found = trace(net(), 200)
    assert found.estimate == pytest.approx(whole().trace().item(), rel=1e-12)
    assert (found.method, found.error, found.products) == ("exact", 0, 75)


def test_a_task_is_its_hessian():
    for method in ("xtrace", "hutch++", "hutchinson"):
        assert trace(net(), 12, method).estimate == pytest.approx(trace(given(whole()), 12, method).estimate)


# --- refusals -------------------------------------------------------------------------------------------------------


def test_refusals():
    matrix = given(rotated(outliers()))
    with pytest.raises(ValueError, match="which must be one of 'both', 'largest', 'smallest', not 'top'"):
        top_eigenvalues(matrix, which="top")
    with pytest.raises(ValueError, match="a matrix of 300 rows has no 301 eigenvalues: ask for fewer"):
        top_eigenvalues(matrix, 301)
    with pytest.raises(ValueError, match="tolerance must be above 0"):
        top_eigenvalues(matrix, tolerance=0)
    with pytest.raises(ValueError, match="method must be one of 'xtrace', 'hutch\\+\\+', 'hutchinson', not 'exact'"):
        trace(matrix, method="exact")
    for method, least in (("xtrace", 4), ("hutch++", 6), ("hutchinson", 2)):
        with pytest.raises(ValueError, match=f"needs at least {least} products"):
            trace(matrix, least - 1, method)
        assert trace(matrix, least, method).error > 0
    for measure in (spectrum, trace, top_eigenvalues):
        with pytest.raises(TypeError, match=r"needs a Task, such as .* not a Linear"):
            measure(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="probes must be a whole number"):
        spectrum(matrix, probes=0)
    with pytest.raises(ValueError, match="seed must be a whole number"):
        spectrum(matrix, seed=-1)
