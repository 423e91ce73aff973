"""SAM and ASAM against their formula and their peers."""

import copy
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from ssgd.methods import SAM, EntropySGD

from .problems import convnet, images, mlp, same, vectors, weights
from .rivals import assert_gradients, gradient, take


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


@pytest.mark.parametrize("policy", ["both", "once", "first", "none"])
def test_sam_moves_running_statistics_by_policy(policy):
    model, (x, y) = convnet(), images()
    model(x)
    plain = copy.deepcopy(model)
    take(SAM(SGD(model.parameters(), lr=0.1), 0.5, model=model, bn_stats=policy), model, x, y)
    plain(x) if policy == "first" else None
    like_plain = same(list(model[1].buffers()), list(plain[1].buffers()))
    assert like_plain == (policy in ("first", "none"))
    assert model[1].num_batches_tracked - 1 == {"both": 2, "once": 1, "first": 1, "none": 0}[policy]


@pytest.mark.parametrize("wrap", [partial(SAM, rho=1e-3), partial(EntropySGD, inner_steps=2)], ids=["SAM", "Entropy"])
def test_passes_that_follow_from_each_other_have_the_same_masks_if_asked(wrap):
    model = nn.Sequential(nn.Linear(200, 200), nn.Dropout(0.5))
    seen = []
    model[1].register_forward_hook(lambda m, i, out: seen.append(out.detach() == 0))
    for rng in ("same", "independent"):
        opt = wrap(SGD(model.parameters(), lr=0.1), rng=rng)
        for point in opt.points():
            with point:
                model(torch.ones(2, 200)).square().mean().backward()
        opt.release()
    assert torch.equal(seen[0], seen[1]) and not torch.equal(seen[2], seen[3])


def test_sam_climbs_in_the_groups_whose_rho_is_above_zero():
    model = mlp()
    groups = [{"params": model[0].parameters(), "rho": 0.0}, {"params": model[2].parameters()}]
    clean, climbed = take(SAM(SGD(groups, lr=0.1), 0.1), model, *vectors())
    assert [torch.equal(a, b) for a, b in zip(clean, climbed, strict=True)] == [True, True, False, False]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"rng": "shared"}, "rng must be one of"), ({"bn_stats": "once"}, "needs the model"), ({"rho": -1.0}, "not -1.0")],
)
def test_sam_refuses_bad_options(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        SAM(SGD(mlp().parameters(), lr=0.1), **options)


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


def test_sam_climbs_with_tensors_of_its_base_alone():
    stranger = torch.ones(2, 2, requires_grad=True)
    with pytest.raises(ValueError, match="in none of the base optimizer's parameter groups"):
        SAM(SGD(nn.Linear(3, 2).parameters(), lr=0.1), perturb=[stranger])


def test_sam_with_all_that_climbs_frozen_is_its_base():
    """As while a backbone waits to be unfrozen."""
    backbone, head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)
    opt = SAM(SGD([*backbone.parameters(), *head.parameters()], lr=0.1), 0.1, perturb=backbone.parameters())
    backbone.requires_grad_(False)
    x = torch.randn(4, 3)
    (clean,) = torch.autograd.grad(head(backbone(x)).square().mean(), head.weight)
    for point in opt.points():
        with point:
            head(backbone(x)).square().mean().backward()
    torch.testing.assert_close(head.weight.grad, clean)
    opt.step()
