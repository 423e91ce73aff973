"""Each rival against its own formula."""

import copy
import itertools
import math
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, Adam

from ssgd import SSGD, methods, recompute_bn
from ssgd.methods import (
    NSO,
    RWP,
    SAM,
    Averaging,
    EntropySGD,
    OneSided,
    Plain,
    dropconnect,
    dropout_on_dense,
    remove_dropconnect,
)

from .problems import convnet, images, mlp, same, take_step, vectors, weights


def gradient(model, values, x, y):
    """∇L at other weights, the model left as it was."""
    kept = weights(model)
    with torch.no_grad():
        for p, v in zip(model.parameters(), values, strict=True):
            p.copy_(v)
    found = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
    with torch.no_grad():
        for p, v in zip(model.parameters(), kept, strict=True):
            p.copy_(v)
    return found


def take(opt, model, x, y):
    """Run points(); return the weights at each point and leave the gradient."""
    at = []
    for point in opt.points():
        with point:
            at.append(weights(model))
            F.cross_entropy(model(x), y).backward()
    return at


def assert_gradients(model, expected):
    for p, e in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(p.grad, e, rtol=1e-9, atol=1e-12)


# --- noise -----------------------------------------------------------------------------------------------------------


def test_smoothout_has_the_published_distribution():
    """Kolmogorov–Smirnov: U(−a, a) times the layer's rms, in every element, over many draws."""
    w = torch.randn(40, 25, dtype=torch.float64).requires_grad_()
    opt = OneSided(SGD([w], lr=0.0), 0.3, law="uniform", seed=1)
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
    plain._set_everywhere("noise_step", 3)
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
    with pytest.raises(TypeError, match="law"):
        kind(SGD(mlp().parameters(), lr=0.1), 0.1, law="sphere")


def test_halves_without_noise_are_the_whole_batch_but_for_batch_norm():
    model, (x, y) = mlp(), vectors(samples=7)
    whole = gradient(model, weights(model), x, y)
    opt = Plain(SGD(model.parameters(), lr=0.1))
    for point, (xb, yb) in opt.split(x, y):
        with point:
            F.cross_entropy(model(xb), yb).backward()
    assert_gradients(model, whole)


# --- SAM -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("adaptive", [False, True])
def test_sam_climbs_and_takes_the_gradient_there(adaptive):
    model, (x, y) = mlp(), vectors()
    for p in model.parameters():
        p.grad = torch.ones_like(p)  # from an earlier batch: no part of the slope, kept in the sum
    g, w = gradient(model, weights(model), x, y), weights(model)
    slope = [a * b.abs() for a, b in zip(g, w, strict=True)] if adaptive else g
    norm = torch.cat([s.flatten() for s in slope]).norm()
    up = [b + 0.1 * s * (b.abs() if adaptive else 1) / norm for s, b in zip(slope, w, strict=True)]
    clean, climbed = take(SAM(SGD(model.parameters(), lr=0.1), 0.1, adaptive=adaptive), model, x, y)
    assert same(clean, w)
    for a, b in zip(climbed, up, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert_gradients(model, [1 + h for h in gradient(model, up, x, y)])


@pytest.mark.parametrize("adaptive", [False, True])
def test_sam_agrees_step_for_step_with_pytorch_optimizer(adaptive):
    theirs_class = pytest.importorskip("pytorch_optimizer").SAM
    x, y = vectors(dtype=torch.float32)
    model, other = mlp(torch.float32), mlp(torch.float32)
    ours = SAM(SGD(model.parameters(), lr=0.1, momentum=0.9), 0.1, adaptive=adaptive)
    theirs = theirs_class(other.parameters(), SGD, rho=0.1, adaptive=adaptive, lr=0.1, momentum=0.9)
    for _ in range(20):
        take(ours, model, x, y)
        ours.step()
        ours.zero_grad()
        F.cross_entropy(other(x), y).backward()
        theirs.first_step(zero_grad=True)
        F.cross_entropy(other(x), y).backward()
        theirs.second_step(zero_grad=True)
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-6, atol=1e-7)


def test_sam_works_where_that_one_does_not():
    """One autocast block around both passes: there the second pass uses the first one's casts, and SAM is SGD."""
    theirs_class = pytest.importorskip("pytorch_optimizer").SAM
    x, y = vectors(dtype=torch.float32)

    def second_gradient(ours):
        model = mlp(torch.float32)
        with torch.autocast("cpu", torch.bfloat16):
            if ours:
                opt = SAM(SGD(model.parameters(), lr=0.1), 1.0)
                take(opt, model, x, y)
            else:
                opt = theirs_class(model.parameters(), SGD, rho=1.0, lr=0.1)
                F.cross_entropy(model(x), y).backward()
                opt.first_step(zero_grad=True)
                F.cross_entropy(model(x), y).backward()
        return model[0].weight.grad, model

    clean = mlp(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        F.cross_entropy(clean(x), y).backward()
    assert not torch.equal(second_gradient(True)[0], clean[0].weight.grad)
    assert torch.equal(second_gradient(False)[0], clean[0].weight.grad)  # the stale casts of the first pass


@pytest.mark.parametrize("adaptive", [False, True])
def test_sam_serves_complex_weights_also_unused_ones(adaptive):
    used, unused = (nn.Parameter(torch.randn(3, 2, dtype=torch.complex64)) for _ in range(2))
    opt = SAM(SGD([used, unused], lr=0.1), 0.1, adaptive=adaptive)
    before = used.detach().clone()
    for point in opt.points():
        with point:
            moved = not torch.equal(used, before)
            used.abs().pow(2).sum().backward()
    assert moved and torch.equal(used, before)
    opt.step()
    assert not torch.equal(used, before)


def test_sam_keeps_still_where_the_slope_is_flat():
    w = torch.ones(2, 2, requires_grad=True)
    opt = SAM(SGD([w], lr=0.1), 0.1)
    for point in opt.points():
        with point:
            (w * 0).sum().backward()
    opt.step()
    assert torch.equal(w, torch.ones(2, 2))


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("broken", [math.inf, math.nan])
def test_sam_stays_where_the_slope_overflows(adaptive, broken):
    """As it does under a scaler that looks for its scale: batch-norm would keep what it saw at weights of NaN."""
    x, y = images()
    model = convnet()
    model(x)
    opt = SAM(SGD(model.parameters(), lr=0.1), 0.1, adaptive=adaptive)
    before = weights(model)
    for point in opt.points():
        with point:
            assert same(model, before)
            F.cross_entropy(model(x), y).backward()
            if point.index == 0:
                model[3].weight.grad[0, 0, 0, 0] = broken
    assert all(b.isfinite().all() for b in model.buffers())
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_sam_under_float16_and_a_scale_that_overflows():
    x, y = images()
    model = convnet()
    model(x)
    opt = SAM(SGD(model.parameters(), lr=0.1), 0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    before = weights(model)
    for point in opt.points():
        with point:
            with torch.autocast("cpu", torch.float16):
                loss = F.cross_entropy(model(x), y)
            scaler.scale(loss).backward()
    scaler.step(opt)
    scaler.update()
    assert scaler.get_scale() < 2.0**40 and same(model, before)
    assert all(b.isfinite().all() for b in model.buffers())


# --- Entropy-SGD -----------------------------------------------------------------------------------------------------


def test_entropy_sgd_follows_its_langevin_steps():
    model, (x, y) = mlp(), vectors()
    opt = EntropySGD(SGD(model.parameters(), lr=1.0), 0.0, inner_steps=4, inner_lr=0.2, gamma=0.5, alpha=0.75)
    w = weights(model)
    inner, mean = [v.clone() for v in w], [v.clone() for v in w]
    at = []
    for _ in range(4):
        at.append([v.clone() for v in inner])
        g = gradient(model, inner, x, y)
        for x_i, m, w_i, g_i in zip(inner, mean, w, g, strict=True):
            x_i -= 0.2 * (g_i - 0.5 * (w_i - x_i))
            m.mul_(0.25).add_(0.75 * x_i)
    seen = take(opt, model, x, y)
    for a, b in zip(itertools.chain(*seen), itertools.chain(*at), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12)
    assert_gradients(model, [w_i - m for w_i, m in zip(w, mean, strict=True)])


def test_entropy_sgd_adds_thermal_noise():
    w = torch.zeros(100, 100, requires_grad=True)
    opt = EntropySGD(SGD([w], lr=1.0), 0.3, inner_steps=2, inner_lr=0.25, gamma=1.0, seed=1)
    seen = []
    for point in opt.points():
        with point:
            seen.append(w.detach().clone())
            (w * 0).sum().backward()
    assert seen[1].std() == pytest.approx(0.3 * math.sqrt(0.25), rel=0.05)


def test_entropy_sgd_refuses_to_leave_weights_untrained():
    model = mlp()
    with pytest.raises(ValueError, match="moves every trained weight: leave out perturb, or freeze the others"):
        EntropySGD(SGD(model.parameters(), lr=1.0), perturb=[model[0].weight])


def test_entropy_sgd_refuses_a_grad_scaler():
    model, (x, y) = mlp(torch.float32), vectors(dtype=torch.float32)
    opt = EntropySGD(SGD(model.parameters(), lr=1.0, fused=True), inner_steps=2)
    scaler = torch.amp.GradScaler("cpu")
    for point in opt.points():
        with point:
            scaler.scale(F.cross_entropy(model(x), y)).backward()
    with pytest.raises(RuntimeError, match="Entropy-SGD cannot be used with a GradScaler: train in bfloat16"):
        scaler.step(opt)


# --- transforms and averages -----------------------------------------------------------------------------------------


def test_dropconnect_drops_weights_in_training_only_and_comes_off():
    model = mlp(torch.float32)
    before, keys, parameters = weights(model), list(model.state_dict()), list(model.parameters())
    x, _ = vectors(dtype=torch.float32)
    clean = model(x)
    dropconnect(model, 0.5)
    dropped = model[0].weight
    assert {round(r.item(), 5) for r in (dropped / before[0]).flatten()} == {0.0, 2.0}
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), clean)
    assert {id(p) for p in model.parameters()} == {id(p) for p in parameters}
    remove_dropconnect(model)
    assert same(model, before) and list(model.state_dict()) == keys
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]


def test_dropconnect_on_convolutions_and_what_it_refuses():
    model = convnet()
    model(images()[0])
    dropconnect(model, 0.3, "conv")
    assert (model[0].weight == 0).any() and (model[8].weight != 0).all()
    with pytest.raises(ValueError, match="is on this model already"):
        dropconnect(model, 0.3, "conv")
    with pytest.raises(ValueError, match="the share of weights dropped"):
        dropconnect(model, 1.0)
    remove_dropconnect(model)
    normed = nn.Sequential(nn.Linear(3, 3), nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)))
    with pytest.raises(ValueError, match="is parametrised already, as by weight norm"):
        dropconnect(normed, 0.3)
    assert not nn.utils.parametrize.is_parametrized(normed[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.LSTMCell])
def test_dropconnect_on_recurrent_weights(kind):
    torch.manual_seed(0)
    model = kind(4, 6)
    x = torch.randn(2, 4) if kind is nn.LSTMCell else torch.randn(5, 2, 4)
    out = lambda: model(x)[0]  # noqa: E731
    state = [torch.ones(2, 6), torch.ones(2, 6)]
    if kind is nn.LSTMCell:
        out = lambda: model(x, tuple(state))[0]  # noqa: E731
    clean, keys = out().detach(), list(model.state_dict())
    dropconnect(model, 0.5, "recurrent")
    a, b = out(), out()
    assert not torch.equal(a, b)
    a.sum().backward()
    hidden = [p for n, p in model.named_parameters() if "weight_hh" in n]
    assert hidden and all(p.grad is not None and p.grad.norm() > 0 for p in hidden)
    model.eval()
    for _ in range(2):
        torch.testing.assert_close(out(), clean)
    model.train()
    out()
    twin = copy.deepcopy(model)
    twin_out = twin(x, tuple(state) if kind is nn.LSTMCell else None)[0]
    assert not torch.equal(twin_out, out())
    twin_out.sum().backward()
    twins = [p for n, p in twin.named_parameters() if "weight_hh" in n]
    assert twins and all(p.grad.norm() > 0 for p in twins)
    remove_dropconnect(model)
    torch.testing.assert_close(out(), clean)
    assert list(model.state_dict()) == keys


def test_dropconnect_and_noise_go_together():
    model, (x, y) = dropconnect(mlp(torch.float32), 0.2), vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.3)
    assert len(opt.selected) == 2
    before = weights(model)
    take(opt, model, x, y)
    assert same(model, before)
    opt.step()


def test_dropout_on_the_last_dense_layer():
    model, (x, _) = mlp(torch.float32), vectors(dtype=torch.float32)
    clean = model(x)
    handle = dropout_on_dense(model, 0.5)
    assert not torch.equal(model(x), clean)
    seen = []
    model[2].register_forward_hook(lambda m, i, o: seen.append(i[0]))
    model(x)
    assert (seen[0] == 0).float().mean() == pytest.approx(0.5, abs=0.2)
    model.eval()
    assert torch.equal(model(x), clean)
    model.train()
    handle.remove()
    assert torch.equal(model(x), clean)
    with pytest.raises(ValueError, match=r"has no nn\.Linear"):
        dropout_on_dense(nn.Conv2d(1, 1, 1), 0.5)


@pytest.mark.parametrize("kind", ["swa", "ema"])
def test_averages(kind):
    model, (x, y) = mlp(), vectors()
    opt = Averaging(SGD(model.parameters(), lr=0.5), model=model, kind=kind, decay=0.9, start=2, every=2)
    kept = []
    for i in range(7):
        take(opt, model, x, y)
        opt.step()
        opt.zero_grad()
        if i in (2, 4, 6):
            kept.append(weights(model))
    for i, average in enumerate(opt.averaged.module.parameters()):
        a, b, c = (k[i] for k in kept)
        expected = (a + b + c) / 3 if kind == "swa" else 0.9 * (0.9 * a + 0.1 * b) + 0.1 * c
        torch.testing.assert_close(average, expected)


@pytest.mark.parametrize("kind", ["swa", "ema"])
def test_an_average_starts_anew_after_a_checkpoint_without_one_and_can_be_pickled(kind):
    model = mlp()
    x, y = vectors()
    opt = Averaging(SGD(model.parameters(), lr=0.5), model=model, kind=kind, decay=0.9)
    alone = opt.base.state_dict()
    for _ in range(3):
        take_step(opt, "points", model, x, y)
        opt.zero_grad()
    copied = pickle.loads(pickle.dumps(opt))
    assert copied.steps == 3 and same(copied.averaged, weights(opt.averaged))
    opt.load_state_dict(alone)
    take_step(opt, "points", model, x, y)
    assert opt.steps == 1 and same(opt.averaged.module, weights(model))


def test_an_average_gets_its_own_batch_norm_statistics():
    model = convnet()
    x, y = images()
    model(x)
    opt = Averaging(SGD(model.parameters(), lr=0.5), model=model)
    for _ in range(3):
        take(opt, model, x, y)
        opt.step()
        opt.zero_grad()
    recompute_bn(opt.averaged.module, [(x, y)])
    with torch.no_grad():
        h = opt.averaged.module[0](x)
    torch.testing.assert_close(opt.averaged.module[1].running_mean, h.mean((0, 2, 3)))


def test_the_command_lists_every_method(capsys):
    import json

    from ssgd.cli.main import main

    assert main(["methods"]) == 0
    table = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in table[1:]] == list(methods.METHODS)
    assert main(["methods", "sam"]) == 0
    assert "arXiv:2010.01412" in capsys.readouterr().out
    main(["methods", "--json"])
    assert [m["name"] for m in json.loads(capsys.readouterr().out)] == list(methods.METHODS)
    assert main([]) == 2
    with pytest.raises(SystemExit):
        main(["methods", "nothing"])


def test_sam_climbs_with_tensors_of_its_base_alone():
    stranger = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(ValueError, match="in none of the base optimizer's parameter groups"):
        SAM(SGD(nn.Linear(3, 2).parameters(), lr=0.1), perturb=[stranger])
