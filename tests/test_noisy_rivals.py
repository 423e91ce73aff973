"""SmoothOut, one-sided noise, NSO and RWP, each against its own formula."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam

from ssgd import paper_level
from ssgd.methods import NSO, RWP, Averaging, EntropySGD, OneSided, Plain

from .problems import mlp, same, vectors, weights
from .rivals import assert_gradients, gradient, take, take_halves


def test_smoothout_has_the_published_distribution():
    """Kolmogorov–Smirnov: U(−a, a) times the layer's rms, in every element, over many draws."""
    w = torch.randn(40, 25, dtype=torch.float64).requires_grad_()
    opt = OneSided(SGD([w], lr=0.0), paper_level(0.3), distribution="uniform", seed=1)
    clean, draws = w.detach().clone(), []
    for _ in range(50):
        for point in opt.points():
            with point:
                draws.append(((w - clean) / (0.3 * clean.norm() / math.sqrt(w.numel()))).detach().flatten())
        opt.zero_grad()
    z = torch.cat(draws).sort().values
    n = len(z)
    uniform = (z + 1) / 2
    ranks = torch.arange(n, dtype=torch.float64)
    statistic = torch.maximum((uniform - ranks / n).abs().max(), ((ranks + 1) / n - uniform).abs().max())
    assert n == 50_000 and statistic < 1.63 / math.sqrt(n)  # the 1 % point of the Kolmogorov distribution
    normal = torch.randn(n, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).div(3**0.5).sort().values
    assert ((normal + 1) / 2 - ranks / n).abs().max() > 1.63 / math.sqrt(n)  # and the test can tell


def test_one_sided_is_the_gradient_at_the_noisy_point():
    model, (x, y) = mlp(), vectors()
    opt = OneSided(SGD(model.parameters(), lr=0.1), 0.4)
    before = weights(model)
    (point,) = take(opt, model, x, y)
    assert_gradients(model, gradient(model, point, x, y))
    for p, w in zip(point[::2], before[::2], strict=True):
        torch.testing.assert_close((p - w).norm(), 0.4 * w.norm())


def test_two_draws_are_averaged_and_independent():
    model, (x, y) = mlp(), vectors()
    a, b = take(OneSided(SGD(model.parameters(), lr=0.1), 0.4, pairs=2), model, x, y)
    mean = [(g + h) / 2 for g, h in zip(gradient(model, a, x, y), gradient(model, b, x, y), strict=True)]
    assert_gradients(model, mean)
    assert not torch.allclose(a[0] - b[0], torch.zeros_like(a[0]))


def test_nso_is_a_pair_of_one_size_in_all_weights():
    model, (x, y) = mlp(), vectors()
    before = weights(model)
    a, b = take(NSO(SGD(model.parameters(), lr=0.1), 0.05), model, x, y)
    assert_gradients(
        model, [(g + h) / 2 for g, h in zip(gradient(model, a, x, y), gradient(model, b, x, y), strict=True)]
    )
    for p, q, w in zip(a, b, before, strict=True):
        torch.testing.assert_close(p - w, w - q, rtol=1e-9, atol=1e-12)
    noise = torch.cat([(p - w).flatten() for p, w in zip(a, before, strict=True)])
    assert noise.std() == pytest.approx(0.05, rel=0.25)
    big = torch.full((300, 300), 7.0, requires_grad=True)
    assert NSO(SGD([big], lr=0.1), 0.05).realised_ratios()[0].item() == pytest.approx(0.05 / 7, rel=0.01)


def test_rwp_mixes_the_clean_and_the_noisy_gradient():
    model, (x, y) = mlp(), vectors()
    clean, noisy = take(RWP(SGD(model.parameters(), lr=0.1), 0.1, share=0.3), model, x, y)
    assert same(clean, weights(model))
    g, h = gradient(model, clean, x, y), gradient(model, noisy, x, y)
    assert_gradients(model, [0.7 * a + 0.3 * b for a, b in zip(g, h, strict=True)])


def test_at_rwps_clean_point_no_noise_is_realised():
    model, (x, y) = mlp(), vectors()
    opt = RWP(SGD(model.parameters(), lr=0.1), 0.1)
    found = []
    for point in opt.points():
        with point:
            found.append(max(ratio.item() for ratio in opt.realised_ratios()))
            F.cross_entropy(model(x), y).backward()
    assert found[0] == 0 and found[1] > 0.05


def test_rwp_noise_follows_the_filters():
    w = torch.randn(50, 40, 5, 5, dtype=torch.float64)
    w[:25] *= 10
    w = nn.Parameter(w.to(memory_format=torch.channels_last))
    before = w.detach().clone()
    for point in RWP(SGD([w], lr=0.1), 0.01, share=1.0).points():
        with point:
            noise = (w - before).flatten(1)
    expected = 0.01 * before.flatten(1).norm(dim=1)
    torch.testing.assert_close(noise.std(dim=1), expected, rtol=0.1, atol=0)


def test_arwp_damps_noise_where_gradients_were_large():
    model, (x, y) = mlp(), vectors()
    opt = RWP(SGD(model.parameters(), lr=0.0), 0.1, adaptive=True, eta=3.0, beta=0.5, share=1.0, seed=1)
    plain = RWP(SGD(model.parameters(), lr=0.0), 0.1, share=1.0, seed=1)
    squares = [torch.zeros_like(p) for p in model.parameters()]
    before = weights(model)
    for _ in range(3):
        take(opt, model, x, y)
        for s, p in zip(squares, model.parameters(), strict=True):
            s.mul_(0.5).add_(p.grad.square())
        opt.step()
        opt.zero_grad()
    (damped,) = take(opt, model, x, y)
    opt.zero_grad()
    plain.param_groups[0]["noise_step"] = 3
    (free,) = take(plain, model, x, y)
    for d, f, w, s in zip(damped, free, before, squares, strict=True):
        rows = s.sum(dim=1, keepdim=True) if s.dim() > 1 else s
        torch.testing.assert_close(d - w, (f - w) / (1 + 3.0 * rows).sqrt(), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("fused", [False, True])
def test_a_skipped_step_leaves_no_trace_in_arwps_memory(fused):
    model, (x, y) = mlp(torch.float32), vectors(dtype=torch.float32)
    opt = RWP(SGD(model.parameters(), lr=0.1, fused=fused), 0.1, adaptive=True, nonfinite="skip")
    memory = []
    for broken in (False, True):
        take(opt, model, x, y)
        if broken:
            model[0].bias.grad[0] = float("nan")
        opt.step()
        opt.zero_grad()
        memory.append([opt.state[p]["squared_gradients"].clone() for p in model.parameters()])
    assert same(*memory) and memory[0][0].sum() > 0


@pytest.mark.parametrize("base", [SGD, Adam])
@pytest.mark.parametrize("fused", [False, True])
def test_arwps_memory_is_of_gradients_without_the_scale(base, fused):
    x, y = vectors(dtype=torch.float32)

    def memory(scaler, **options):
        model = mlp(torch.float32)
        opt = RWP(base(model.parameters(), lr=0.01, **options), 0.1, adaptive=True, seed=1)
        for _ in range(2):
            for point in opt.points():
                with point:
                    scaler.scale(F.cross_entropy(model(x), y)).backward()
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
        return [opt.state[p]["squared_gradients"] for p in model.parameters()]

    scaled = memory(torch.amp.GradScaler("cpu", init_scale=2.0**10), fused=fused)
    for found, expected in zip(scaled, memory(torch.amp.GradScaler("cpu", enabled=False)), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("kind", [NSO, RWP, EntropySGD])
def test_noise_that_is_part_of_the_method_is_no_option(kind):
    with pytest.raises(TypeError, match="distribution"):
        kind(SGD(mlp().parameters(), lr=0.1), 0.1, distribution="sphere")


def test_halves_without_noise_are_the_whole_batch_but_for_batch_norm():
    model, (x, y) = mlp(), vectors(samples=7)
    whole = gradient(model, weights(model), x, y)
    opt = Plain(SGD(model.parameters(), lr=0.1))
    for point, (xb, yb) in opt.split(x, y):
        assert point.sign == 0
        with point:
            F.cross_entropy(model(xb), yb).backward()
    assert_gradients(model, whole)
    opt.zero_grad()
    assert torch.equal(next(opt.split(x))[1], x[:4])  # a batch that is one tensor


@pytest.mark.parametrize("kind", [NSO, OneSided])
def test_each_half_has_a_noise_of_its_own_or_the_mirrored_one(kind):
    model, (x, y) = mlp(), vectors(samples=7)
    before = weights(model)
    a, b = take_halves(kind(SGD(model.parameters(), lr=0.1), 0.1), model, x, y)
    g, h = gradient(model, a, x[:4], y[:4]), gradient(model, b, x[4:], y[4:])
    assert_gradients(model, [(4 * one + 3 * other) / 7 for one, other in zip(g, h, strict=True)])
    first, second = a[0] - before[0], b[0] - before[0]
    assert torch.allclose(first, -second) == (kind is NSO) and not torch.allclose(first, second)


def test_rwp_takes_the_noisy_gradient_on_the_second_half():
    model, (x, y) = mlp(), vectors(samples=7)
    clean, noisy = take_halves(RWP(SGD(model.parameters(), lr=0.1), 0.1, share=0.3), model, x, y)
    assert same(clean, weights(model)) and not same(noisy, clean)
    g, h = gradient(model, clean, x[:4], y[:4]), gradient(model, noisy, x[4:], y[4:])
    assert_gradients(model, [0.7 * a + 0.3 * b for a, b in zip(g, h, strict=True)])


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        (NSO, {"pairs": 2}, r"one pair of signs: use pairs=1"),
        (OneSided, {"pairs": 2}, r"draws once for each half: use pairs=1"),
        (RWP, {"share": 1.0}, r"a clean and a noisy gradient: use a share below 1"),
    ],
)
def test_what_has_no_two_halves_refuses_split(kind, options, sentence):
    opt = kind(SGD(mlp().parameters(), lr=0.1), 0.1, **options)
    with pytest.raises(ValueError, match=sentence):
        next(opt.split(*vectors()))


@pytest.mark.parametrize(
    ("kind", "options", "sentence"),
    [
        (NSO, {"pairs": 0}, "pairs must be a whole number of at least 1"),
        (OneSided, {"pairs": 0}, "pairs must be a whole number of at least 1"),
        (RWP, {"share": 0.0}, "above 0 and at most 1, not 0.0"),
        (RWP, {"share": 1.1}, "above 0 and at most 1, not 1.1"),
        (RWP, {"beta": 1.0}, r"beta in \[0, 1\), not 1.0 and 1.0"),
        (EntropySGD, {"inner_steps": 0}, "inner_steps must be a whole number of at least 1"),
        (EntropySGD, {"inner_lr": 0.0}, "inner_lr and gamma must be above 0"),
        (EntropySGD, {"gamma": 0.0}, "inner_lr and gamma must be above 0"),
        (EntropySGD, {"alpha": 0.0}, r"alpha in \(0, 1\]"),
        (EntropySGD, {"per_rank": True}, "would lead the ranks' inner steps apart"),
    ],
)
def test_settings_out_of_range_are_refused(kind, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        kind(SGD(mlp().parameters(), lr=0.1), 0.1, **options)


def test_the_ends_of_a_range_belong_to_it():
    model = mlp()
    RWP(SGD(model.parameters(), lr=0.1), 0.1, adaptive=True, eta=0.0, beta=0.0)
    Averaging(SGD(model.parameters(), lr=0.1), model=model, kind="ema", decay=0.0)


def test_arwp_leaves_an_unused_weight_without_a_memory():
    used, unused = (nn.Parameter(torch.ones(2, 2)) for _ in range(2))
    opt = RWP(SGD([used, unused], lr=0.1), 0.1, adaptive=True)
    for _ in range(2):
        for point in opt.points():
            with point:
                used.square().sum().backward()
        opt.step()
        opt.zero_grad()
    assert "squared_gradients" in opt.state[used] and "squared_gradients" not in opt.state[unused]


def test_rwp_remembers_nothing_where_it_is_not_adaptive():
    model, (x, y) = mlp(), vectors()
    opt = RWP(SGD(model.parameters(), lr=0.1), 0.1)
    take(opt, model, x, y)
    opt.step()
    assert not opt.state


def test_adaptive_noise_takes_complex_weights():
    w = torch.nn.Parameter(torch.randn(3, 2, dtype=torch.complex64))
    opt = RWP(SGD([w], lr=0.1), 0.1, adaptive=True)
    for _ in range(2):
        for point in opt.points():
            with point:
                (w.abs() ** 2).sum().backward()
        gradient = w.grad.clone()
        opt.step()
        opt.zero_grad()
    past = opt.state[w]["squared_gradients"]
    assert past.shape == (3, 2, 2) and (past >= 0.99 * torch.view_as_real(gradient).square()).all()
