"""Mixed and low precision, several dtypes, complex numbers, dropout."""

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD, SparseAdam

from ssgd import SSGD
from ssgd.methods import RWP, SAM, EntropySGD, OneSided, Plain

from .problems import convnet, images, mlp, run_passes, same, take_step, vectors, weights


@pytest.mark.parametrize("way", ["points", "closure", "split"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_one_autocast_block_around_all_passes_sees_every_change(way, dtype):
    """The casts of the first pass must not serve the second: the outputs at +n, −n and w all differ."""
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5)
    seen = []
    model.register_forward_hook(lambda m, i, out: seen.append(out.detach().clone()))
    with torch.autocast("cpu", dtype):
        take_step(opt, way, model, x, y)
        model(x)
    if way != "split":
        assert seen[0].dtype == dtype
        assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])
    assert all(p.dtype == torch.float32 for p in model.parameters())


MOVING = [partial(SSGD, noise=0.5), partial(OneSided, noise=0.5), partial(SAM, rho=0.5)]


@pytest.mark.parametrize("wrap", [*MOVING, partial(EntropySGD, inner_steps=2)])
def test_one_autocast_block_sees_where_the_weights_are_between_the_points_too(wrap):
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    clean = []
    with torch.autocast("cpu", torch.bfloat16):
        clean.append(model(x))
        for point in wrap(SGD(model.parameters(), lr=0.1)).points():
            with point:
                at = model(x)
                F.cross_entropy(at, y).backward()
            clean.append(model(x))
    assert all(torch.equal(clean[0], out) for out in clean) and not torch.equal(at, clean[0])


@pytest.mark.parametrize("way", ["points", "split"])
def test_autocast_around_everything_equals_autocast_around_each_pass(way):
    x, y = vectors(dtype=torch.float32)

    def train(around_all):
        model = mlp(torch.float32)
        opt = SSGD(SGD(model.parameters(), lr=0.1), 0.5, seed=1)
        if around_all:
            with torch.autocast("cpu", torch.bfloat16):
                run_passes(opt, way, model, x, y)
        else:
            for point, (xb, yb) in opt.split(x, y) if way == "split" else ((p, (x, y)) for p in opt.points()):
                with point:
                    with torch.autocast("cpu", torch.bfloat16):
                        loss = F.cross_entropy(model(xb), yb)
                    loss.backward()
        opt.step()
        return model

    assert same(train(True), train(False))


@pytest.mark.parametrize("distribution", ["sphere", "sign", "uniform"])
@pytest.mark.parametrize("way", ["points", "closure", "split"])
def test_pure_bfloat16_parameters(way, distribution):
    """Norms are taken in single precision; the realised ratio is the level up to bfloat16's rounding of w ± n."""
    model = mlp(torch.bfloat16)
    x, y = vectors(dtype=torch.bfloat16)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.3, distribution=distribution)
    before = weights(model)
    for ratio in opt.realised_ratios():
        assert ratio.item() == pytest.approx(0.3, rel=0.02 if distribution != "uniform" else 0.35)
    assert same(model, before)
    take_step(opt, way, model, x, y)
    assert all(p.dtype == torch.bfloat16 and p.isfinite().all() for p in model.parameters())


def test_the_norm_of_a_large_half_precision_layer_does_not_overflow():
    w = nn.Parameter(torch.full((300, 300), 300.0, dtype=torch.float16))  # its norm is beyond float16
    opt = SSGD(SGD([w], lr=0.1), 0.1)
    assert opt.realised_ratios()[0].item() == pytest.approx(0.1, rel=0.01)


def test_large_half_precision_weights_stay_finite_on_both_sides():
    w = nn.Parameter(torch.full((3, 3), 40000.0, dtype=torch.float16))  # twice as much is beyond float16
    for point in SSGD(SGD([w], lr=0.1), 0.1, distribution="sign").points():
        with point:
            assert w.isfinite().all()


def test_the_norm_of_a_large_half_precision_filter_does_not_overflow():
    w = nn.Parameter(torch.full((3, 90000), 300.0, dtype=torch.float16))
    (ratio,) = RWP(SGD([w], lr=0.1), 1e-4).realised_ratios()  # a row's norm for every element of it
    assert ratio.item() == pytest.approx(1e-4 * 300, rel=0.02)


def test_the_norm_of_a_large_half_precision_slope_does_not_overflow():
    w = nn.Parameter(torch.zeros(300, 300, dtype=torch.float16))
    for point in SAM(SGD([w], lr=0.1), 3.0).points():
        with point:
            climbed = w.detach().clone()
            (w * 300).sum().backward()
    torch.testing.assert_close(climbed, torch.full_like(climbed, 0.01))


def test_several_dtypes_in_one_optimizer():
    parameters = [nn.Parameter(torch.randn(6, 6).to(t)) for t in (torch.float32, torch.float64, torch.bfloat16)]
    opt = SSGD(SGD(parameters, lr=0.1), 0.3)
    before = [p.detach().clone() for p in parameters]
    assert [r.item() for r in opt.realised_ratios()] == pytest.approx([0.3] * 3, rel=0.02)
    for point in opt.points():
        with point:
            sum(p.float().pow(3).sum() for p in parameters).backward()
            directions = [(p.detach() - b).float().flatten() for p, b in zip(parameters, before, strict=True)]
    assert all(torch.equal(p, b) for p, b in zip(parameters, before, strict=True))
    cosine = F.cosine_similarity(directions[0], directions[1], dim=0)
    assert abs(cosine) < 0.6  # buckets draw from streams of their own
    opt.step()


@pytest.mark.parametrize("distribution", ["sphere", "sign"])
def test_complex_parameters(distribution):
    w = nn.Parameter(torch.randn(5, 4, dtype=torch.complex64))
    opt = SSGD(SGD([w], lr=0.1), 0.3, distribution=distribution)
    before = w.detach().clone()
    for point in opt.points():
        with point:
            n = w.detach() - before
            torch.testing.assert_close(n.norm(), 0.3 * before.norm())
            assert n.real.norm() > 0 and n.imag.norm() > 0
            w.abs().pow(2).sum().backward()
    assert torch.equal(w, before)
    opt.step()


def test_a_complex_column_is_not_taken_for_a_weight_norms_magnitude():
    parameters = [nn.Parameter(torch.ones(shape, dtype=torch.complex64)) for shape in ((2, 1), (2, 3))]
    assert len(SSGD(SGD(parameters, lr=0.1), 0.1).selected) == 2


def test_both_points_have_each_parameters_shape_type_and_layout():
    """Complex ones beside real ones with an odd count of elements, dense in another order, and not dense."""
    torch.manual_seed(0)
    values = [
        torch.randn(3),
        torch.randn(3, 5, dtype=torch.complex64),
        torch.randn(4, 3, dtype=torch.complex64).t(),
        torch.randn(2, 3, 2, 2).to(memory_format=torch.channels_last),
        torch.randn(10)[::2],
        torch.randn(4, 8)[:, ::2],
    ]
    parameters = [nn.Parameter(value) for value in values]
    opt = SSGD(SGD(parameters, lr=0.1), 0.3, perturb=parameters, seed=1)
    found = opt.both_points()
    opt.zero_grad()
    opt.param_groups[0]["noise_step"] = 0
    for point, values in zip(opt.points(), found, strict=True):
        with point:
            for p in parameters:
                assert values[p].dtype == p.dtype and torch.equal(values[p], p)
    assert [found[0][p].stride() for p in parameters[1:4]] == [p.stride() for p in parameters[1:4]]


def test_sparse_gradients_are_refused():
    emb = nn.Embedding(5, 3, sparse=True)
    opt = SSGD(SGD(emb.parameters(), lr=0.1), 0.3)
    before = weights(emb)
    with pytest.raises(RuntimeError, match="sparse gradients are not served: build the embedding with sparse=False"):
        for point in opt.points():
            with point:
                emb(torch.tensor([1, 2])).sum().backward()
    assert same(emb, before)
    with pytest.raises(TypeError, match="SparseAdam is not served"):
        SSGD(SparseAdam(emb.parameters()), 0.3)


@pytest.mark.parametrize("wrap", [lambda base: SSGD(base, 0.0), Plain], ids=["SSGD", "Plain"])
def test_at_w_itself_sparse_gradients_are_the_bases_own(wrap):
    table = nn.Embedding(5, 3, sparse=True)
    before, opt = table.weight.detach().clone(), wrap(SGD(table.parameters(), lr=0.1))
    for point in opt.points():
        with point:
            table(torch.tensor([1, 2])).sum().backward()
    opt.step()
    before[1:3] -= 0.1
    torch.testing.assert_close(table.weight.detach(), before)


@pytest.mark.parametrize("way", ["points", "closure", "split"])
def test_dropout_masks_are_independent_or_the_same(way):
    """Those of split() are for halves of equal size: other halves have masks of other shapes."""
    x = torch.ones(2, 200)

    def masks(rng):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(200, 200), nn.Dropout(0.5))
        opt = SSGD(SGD(model.parameters(), lr=0.1), 0.01, rng=rng)
        seen = []
        model[1].register_forward_hook(lambda m, i, out: seen.append(out.detach() == 0))

        def closure(x=x):
            loss = model(x).pow(2).mean()
            loss.backward()
            return loss

        if way == "closure":
            opt.step(closure)
        else:
            for point, xb in opt.split(x) if way == "split" else ((p, x) for p in opt.points()):
                with point:
                    closure(xb)
        return seen, torch.rand(1)

    same_masks, next_after_same = masks("same")
    other_masks, next_after_other = masks("independent")
    assert torch.equal(*same_masks)
    assert not torch.equal(*other_masks)
    assert torch.equal(same_masks[0], other_masks[0])
    assert next_after_same != next_after_other  # one pass's draws were used, or two


def test_with_the_same_masks_the_excess_is_exact():
    model = convnet()
    x, y = images()
    model(x)
    opt = SSGD(SGD(model.parameters(), lr=0.0), 0.2, model=model, rng="same", bn_stats="none", seed=1)
    stream = torch.get_rng_state()
    buffers = [b.clone() for b in model.buffers()]
    excess = opt.symmetric_excess(lambda: F.cross_entropy(model(x), y))
    assert torch.equal(torch.get_rng_state(), stream)
    assert same(list(model.buffers()), buffers)
    run_passes(opt, "points", model, x, y)
    opt.zero_grad()
    torch.set_rng_state(stream)
    clean = F.cross_entropy(model(x), y)
    torch.testing.assert_close((opt.losses[0] + opt.losses[1]) / 2 - clean, excess)
