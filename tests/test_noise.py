"""What n is, and what it depends on."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import SGD

from ssgd import SSGD, Distribution, paper_level
from ssgd.core.noise import as_distribution, mix
from ssgd.methods import NSO, RWP, SAM, EntropySGD

from .problems import mlp, run_passes, take_step, vectors

shapes = st.lists(st.lists(st.integers(1, 6), min_size=2, max_size=4).map(tuple), min_size=1, max_size=6)


def noises(opt, parameters):
    """n of the next batch at each point, w restored in between."""
    clean = [p.detach().clone() for p in parameters]
    found = []
    for point in opt.points():
        with point:
            found.append([p.detach() - w for p, w in zip(parameters, clean, strict=True)])
        assert all(torch.equal(p, w) for p, w in zip(parameters, clean, strict=True))
    return found


def make(shapes, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=generator, dtype=dtype).requires_grad_() for s in shapes]


@settings(deadline=None, max_examples=60)
@given(shapes, st.floats(1e-3, 3.0), st.sampled_from(["sphere", "sign"]), st.integers(0, 2**63 - 1))
def test_fixed_distributions_have_exactly_the_level_in_every_tensor_and_the_pair_is_symmetric(
    shapes, level, distribution, seed
):
    parameters = make(shapes)
    plus, minus = noises(
        SSGD(SGD(parameters, lr=0.1), level, distribution=distribution, seed=seed, perturb=parameters), parameters
    )
    for p, n, m in zip(parameters, plus, minus, strict=True):
        torch.testing.assert_close(n.norm(), level * p.detach().norm(), rtol=1e-9, atol=0)
        torch.testing.assert_close(n, -m, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.floats(0, 2.0), min_size=1, max_size=4))
def test_levels_differ_by_group(levels):
    parameters = make([(3, 4)] * len(levels))
    groups = [{"params": [p], "noise": a} for p, a in zip(parameters, levels, strict=True)]
    opt = SSGD(SGD(groups, lr=0.1), 0.5, seed=1)
    found = noises(opt, parameters)[0]
    for p, a, n in zip(parameters, levels, found, strict=True):
        torch.testing.assert_close(n.norm(), a * p.detach().norm(), rtol=1e-9, atol=1e-15)


def test_the_sign_distribution_fixes_every_element():
    (w,) = make([(6, 5)])
    plus, _ = noises(SSGD(SGD([w], lr=0.1), 0.2, distribution="sign", seed=1), [w])
    rms = w.detach().norm() / math.sqrt(w.numel())
    torch.testing.assert_close(plus[0].abs(), (0.2 * rms).expand_as(w), rtol=1e-9, atol=1e-12)
    assert (plus[0] > 0).any() and (plus[0] < 0).any()


def test_the_uniform_distribution_has_the_level_on_average_and_peaks_at_the_papers():
    (w,) = make([(200, 200)])
    plus, _ = noises(SSGD(SGD([w], lr=0.1), paper_level(0.5), distribution="uniform", seed=1), [w])
    peak = 0.5 * w.detach().norm() / math.sqrt(w.numel())
    assert 0.99 * peak < plus[0].abs().max() <= peak * (1 + 1e-9)
    assert plus[0].norm() / w.detach().norm() == pytest.approx(0.5 / math.sqrt(3), rel=0.01)


def test_the_sphere_distribution_is_isotropic():
    (w,) = make([(100, 100)])
    plus, _ = noises(SSGD(SGD([w], lr=0.1), 1.0, seed=1), [w])
    z = (plus[0] / plus[0].std()).flatten()
    assert abs(z.mean()) < 0.03
    assert (z**4).mean() == pytest.approx(3.0, abs=0.2)  # a Gaussian's kurtosis


def test_a_users_own_distribution():
    def triangular(z, generator):
        z.uniform_(-1, 1, generator=generator)
        z.add_(torch.empty_like(z).uniform_(-1, 1, generator=generator))

    (w,) = make([(30, 30)])
    fixed, _ = noises(SSGD(SGD([w], lr=0.1), 0.3, distribution=triangular, seed=1), [w])
    torch.testing.assert_close(fixed[0].norm(), 0.3 * w.detach().norm(), rtol=1e-9, atol=0)
    free, _ = noises(
        SSGD(SGD([w], lr=0.1), 0.3, distribution=Distribution("triangular", triangular, unit="rms"), seed=1), [w]
    )
    assert free[0].abs().max() <= 0.6 * w.detach().norm() / 30
    assert free[0].norm() / w.detach().norm() == pytest.approx(0.3 * math.sqrt(2 / 3), rel=0.05)


def test_a_distribution_that_returns_its_noise_is_refused():
    w = nn.Parameter(torch.ones(2, 3))
    before = w.detach().clone()
    opt = SSGD(SGD([w], lr=0.1), 0.2, distribution=lambda z, generator: torch.randn(z.shape, generator=generator))
    with pytest.raises(TypeError, match=r"the distribution '<lambda>' returned a tensor of its own.*fills z in place"):
        for point in opt.points():
            with point:
                w.sum().backward()
    assert torch.equal(w, before)


def test_a_distribution_that_draws_only_zeros_leaves_the_weights():
    (w,) = make([(3, 3)])
    plus, minus = noises(SSGD(SGD([w], lr=0.1), 0.3, distribution=lambda z, generator: z.zero_()), [w])
    assert not plus[0].any() and not minus[0].any()


def test_a_layer_of_zeros_gets_zero_noise():
    zero = torch.zeros(3, 3, requires_grad=True)
    other = torch.ones(3, 3, requires_grad=True)
    plus, minus = noises(SSGD(SGD([zero, other], lr=0.1), 0.5), [zero, other])
    assert torch.equal(plus[0], torch.zeros(3, 3)) and torch.equal(minus[0], torch.zeros(3, 3))
    assert plus[1].norm() > 0


def test_noise_is_a_function_of_seed_and_step():
    def first(seed, step):
        (w,) = make([(4, 4)])
        opt = SSGD(SGD([w], lr=0.0), 0.5, seed=seed)
        for _ in range(step):
            noises(opt, [w])
            opt.zero_grad()
        return noises(opt, [w])[0][0]

    assert torch.equal(first(1, 0), first(1, 0))
    assert not torch.allclose(first(1, 0), first(2, 0))
    assert not torch.allclose(first(1, 0), first(1, 1))


def test_pairs_draw_different_noise():
    (w,) = make([(4, 4)])
    first, _, second, _ = noises(SSGD(SGD([w], lr=0.1), 0.5, pairs=2), [w])
    assert not torch.allclose(first[0], second[0])


def test_tensors_of_one_shape_get_different_noise():
    parameters = make([(4, 4), (4, 4)])
    plus, _ = noises(SSGD(SGD(parameters, lr=0.1), 0.5), parameters)
    assert not torch.allclose(plus[0] / plus[0].norm(), plus[1] / plus[1].norm())


@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_noise_depends_on_no_neighbour(layout):
    """Alone or beside others, in one memory layout or another: position, draw and element decide."""

    def drawn(perturb, dtype=torch.float64):
        parameters = make([(4, 4), (6, 3)])
        parameters.append(nn.Parameter(torch.ones(3, 3, dtype=dtype)))
        if layout == "columns":
            parameters[1] = nn.Parameter(parameters[1].detach().t().contiguous().t())
        opt = SSGD(SGD(parameters, lr=0.1), 0.5, seed=1, perturb=[parameters[i] for i in perturb])
        return noises(opt, [parameters[1]])[0][0]

    (first,) = make([(4, 4), (6, 3)])[1:]
    expected = noises(SSGD(SGD([*make([(4, 4)]), first], lr=0.1), 0.5, seed=1), [first])[0][0]
    for found in (drawn([0, 1, 2]), drawn([1]), drawn([2, 1], torch.float32)):
        torch.testing.assert_close(found, expected, rtol=1e-14, atol=0)


def test_a_checkpoint_says_which_stream_its_noise_is_of(monkeypatch):
    opt, other = (SSGD(SGD(mlp().parameters(), lr=0.1), 0.5) for _ in range(2))
    saved = opt.state_dict()
    assert saved["noise_stream"] == "torch"
    other.load_state_dict(saved)
    with pytest.warns(UserWarning, match=r"noise is of the stream 'philox', and here it is drawn from 'torch'"):
        other.load_state_dict({**saved, "noise_stream": "philox"})


@pytest.mark.parametrize("way", ["points", "split"])
def test_all_batches_of_an_accumulated_step_see_the_same_noise(way):
    model = mlp()
    x, y = vectors()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5, seed=1)
    seen = []
    model.register_forward_pre_hook(lambda m, _: seen.append(m[0].weight.detach().clone()))
    run_passes(opt, way, model, x, y)
    run_passes(opt, way, model, x, y)
    assert torch.equal(seen[0], seen[2]) and torch.equal(seen[1], seen[3])
    opt.step()
    opt.zero_grad()
    before = opt.param_groups[0]["noise_step"]
    run_passes(opt, way, model, x, y)
    assert opt.param_groups[0]["noise_step"] == before == 1


@pytest.mark.parametrize("clear", ["opt", "opt, to zero", "model"])
def test_clearing_gradients_ends_a_step_that_was_skipped(clear):
    model = mlp()
    x, y = vectors()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5, seed=1)
    seen = []
    model.register_forward_pre_hook(lambda m, _: seen.append(m[0].weight.detach().clone()))
    run_passes(opt, "points", model, x, y)
    {"opt": opt.zero_grad, "opt, to zero": lambda: opt.zero_grad(set_to_none=False), "model": model.zero_grad}[clear]()
    run_passes(opt, "points", model, x, y)
    assert not torch.equal(seen[0], seen[2])


@pytest.mark.parametrize("way", ["points", "closure", "split"])
def test_noise_never_draws_from_the_global_stream(way):
    model = mlp()
    x, y = vectors()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    state = torch.get_rng_state()
    take_step(opt, way, model, x, y)
    assert torch.equal(torch.get_rng_state(), state)


def test_the_default_seed_is_that_of_the_global_generator():
    def seed():
        return SSGD(SGD(mlp().parameters(), lr=0.1), 0.5).param_groups[0]["noise_seed"]

    torch.manual_seed(123)
    assert SSGD(SGD([torch.ones(2, 2, requires_grad=True)], lr=0.1), 0.5).param_groups[0]["noise_seed"] == 123
    assert seed() == 0  # mlp() seeds with 0
    for whole, kept in ((10**6, 10**6), (2**63 + 5, 5)):  # a seed has 63 bits
        torch.manual_seed(whole)
        assert SSGD(SGD([torch.ones(2, 2, requires_grad=True)], lr=0.1), 0.5).param_groups[0]["noise_seed"] == kept


def test_one_level_change_takes_effect_at_the_next_batch():
    (w,) = make([(4, 4)])
    opt = SSGD(SGD([w], lr=0.1), 0.5)
    opt.param_groups[0]["noise"] = 0.1
    torch.testing.assert_close(noises(opt, [w])[0][0].norm(), 0.1 * w.detach().norm())


def test_a_tensor_level_is_used_as_it_is():
    (w,) = make([(4, 4)])
    level = torch.tensor(0.5)
    opt = SSGD(SGD([w], lr=0.1), level)
    level.fill_(0.25)
    torch.testing.assert_close(noises(opt, [w])[0][0].norm(), 0.25 * w.detach().norm(), rtol=1e-6, atol=0)
    level.fill_(0.0)
    assert len(noises(opt, [w])) == 2  # a tensor is never looked at, so two passes all the same
    assert len(noises(SAM(opt.release(), level), [w])) == 2


def test_a_group_at_level_zero_stays_while_another_moves():
    parameters = make([(3, 4), (3, 4)])
    groups = [{"params": [p], "noise": a} for p, a in zip(parameters, (0.0, 0.5), strict=True)]
    plus, minus = noises(SSGD(SGD(groups, lr=0.1), 0.1), parameters)
    assert not plus[0].any() and not minus[0].any() and plus[1].any() and minus[1].any()


def test_one_group_may_have_a_tensor_for_its_level_and_another_a_number():
    parameters = make([(3, 4), (4, 2)])
    groups = [{"params": [p], "noise": a} for p, a in zip(parameters, (torch.tensor(0.25), 0.5), strict=True)]
    plus, _ = noises(SSGD(SGD(groups, lr=0.1), 0.1), parameters)
    for n, p, level in zip(plus, parameters, (0.25, 0.5), strict=True):
        torch.testing.assert_close(n.norm(), level * p.detach().norm(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", [SSGD, NSO, RWP, SAM, EntropySGD])
def test_a_tensor_level_may_have_dimensions(kind):
    """Beside parameters that have none."""

    def trained(level):
        parameters = [*make([(4, 4)]), torch.ones((), dtype=torch.float64, requires_grad=True)]
        opt = kind(SGD(parameters, lr=0.1), level, perturb=None if kind is EntropySGD else parameters)
        for point in opt.points():
            with point:
                sum(p.pow(2).sum() for p in parameters).backward()
        opt.step()
        return parameters

    for p, q in zip(trained(torch.tensor([0.5])), trained(0.5), strict=True):
        assert p.isfinite().all() and torch.equal(p, q)


@pytest.mark.parametrize("kind", [SSGD, SAM])
def test_a_cuda_graph_refuses_a_level_it_could_not_read_again(kind, monkeypatch):
    (w,) = make([(4, 4)])
    opt = kind(SGD([w], lr=0.1), torch.tensor(0.5))
    monkeypatch.setattr("ssgd.core.random_state.capturing", lambda: True)
    with pytest.raises(RuntimeError, match="would hold the level as it is now: make the tensor on the GPU"):
        next(opt.points())
    opt.param_groups[0][next(iter(opt.rule.keys))] = 0.5
    next(opt.points())


def test_a_moved_parameter_is_found_again():
    model = nn.Conv2d(3, 4, 3)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    assert noises(opt, [model.weight])[0][0].norm() > 0
    opt.zero_grad()
    model.to(memory_format=torch.channels_last)
    with torch.no_grad():
        model.weight.data = model.weight.data.clone()
    plus, _ = noises(opt, [model.weight])
    torch.testing.assert_close(plus[0].norm(), 0.5 * model.weight.detach().norm())


def test_mix_spreads_neighbours():
    found = {mix(seed, step) % 2**32 for seed in range(30) for step in range(30)}
    assert len(found) == 900
    assert all(0 <= mix(n) < 2**63 for n in range(100))


def test_mix_is_splitmix64_so_that_a_seed_draws_the_same_noise_in_every_version():
    assert (mix(0), mix(1)) == (0xE220A8397B1DCDAF >> 1, 0x910A2DEC89025CC1 >> 1)  # its published first outputs
    assert mix(0, 0) == mix(0xE220A8397B1DCDAF)


def test_a_distribution_counts_in_a_known_unit():
    with pytest.raises(ValueError, match="unit must be one of 'norm', 'rms', 'one', not 'level'"):
        Distribution("mine", torch.Tensor.normal_, unit="level")


def test_an_unknown_distribution_is_named():
    with pytest.raises(ValueError, match=r"no distribution called 'gauss'.*sphere, sign, uniform"):
        as_distribution("gauss")
