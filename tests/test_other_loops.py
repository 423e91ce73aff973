"""Loops that someone else wrote: timm's scaler, and optimizers around ours."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import SGD

from ssgd import SSGD
from ssgd.integrations.timm import SymmetricScaler

from .problems import mlp, same, vectors, weights

STEPS = 4


def by_scaler(model, opt, scaler, **options):
    """Two batches an update; the losses that the loop logs."""
    found = []
    for i in range(2 * STEPS):
        x, y = vectors(dtype=torch.float32, seed=i)
        found.append(scaler(lambda x=x, y=y: F.cross_entropy(model(x), y) / 2, opt, need_update=i % 2 == 1, **options))
        if i % 2 == 1:
            opt.zero_grad()
    return found


def plain_weights(scale=None):
    """What the same loop trains without us."""
    model = mlp(torch.float32)
    opt, scaler = SGD(model.parameters(), lr=0.1, momentum=0.9), torch.amp.GradScaler("cpu", enabled=scale is not None)
    for i in range(2 * STEPS):
        x, y = vectors(dtype=torch.float32, seed=i)
        scaler.scale(F.cross_entropy(model(x), y) / 2).backward()
        if i % 2 == 1:
            scaler.step(opt)
            scaler.update()
            opt.zero_grad()
    return weights(model)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_scaler_at_level_zero_is_the_plain_loop_bitwise(enabled):
    model = mlp(torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1, momentum=0.9), 0.0)
    by_scaler(model, opt, SymmetricScaler("cpu", enabled))
    assert same(model, plain_weights(scale=enabled or None))


def test_the_scaler_takes_the_steps_of_points_and_returns_the_mean_of_the_losses():
    model, other = mlp(torch.float32), mlp(torch.float32)
    opt, by_hand = (SSGD(SGD(m.parameters(), lr=0.1, momentum=0.9), 0.2, seed=1) for m in (model, other))
    logged = by_scaler(model, opt, SymmetricScaler("cpu", enabled=False))
    for i in range(2 * STEPS):
        x, y = vectors(dtype=torch.float32, seed=i)
        for point in by_hand.points():
            with point:
                point.loss = F.cross_entropy(other(x), y) / 2
                point.loss.backward()
        if i % 2 == 1:
            by_hand.step()
            torch.testing.assert_close(logged[i], sum(by_hand.losses) / 2)
            by_hand.zero_grad()
    assert same(model, weights(other)) and not any(loss.requires_grad for loss in logged)


def test_the_scaler_goes_on_from_a_checkpoint_and_refuses_a_loss():
    scaler, other = SymmetricScaler("cpu"), SymmetricScaler("cpu")
    model = mlp(torch.float32)
    by_scaler(model, SSGD(SGD(model.parameters(), lr=0.1), 0.1), scaler)
    state = scaler.state_dict()
    other.load_state_dict(copy.deepcopy(state))
    assert other.state_dict() == state and scaler.state_dict_key == "amp_scaler"
    with pytest.raises(TypeError, match="takes the function that computes the loss"):
        scaler(torch.ones(()), SSGD(SGD(model.parameters(), lr=0.1), 0.1))


@pytest.mark.parametrize("mode", ["norm", "value", "agc"])
def test_the_scaler_at_level_zero_is_timms(mode):
    native = pytest.importorskip("timm.utils").NativeScaler
    found = []
    for scaler, wrap in ((SymmetricScaler("cpu"), lambda base: SSGD(base, 0.0)), (native("cpu"), lambda base: base)):
        model = mlp(torch.float32)
        opt = wrap(SGD(model.parameters(), lr=0.1, momentum=0.9))
        for i in range(STEPS):
            x, y = vectors(dtype=torch.float32, seed=i)
            forward = lambda x=x, y=y, model=model: F.cross_entropy(model(x), y)  # noqa: E731
            loss = forward if isinstance(scaler, SymmetricScaler) else forward()
            scaler(loss, opt, clip_grad=0.01, clip_mode=mode, parameters=model.parameters())
            opt.zero_grad()
        found.append((weights(model), scaler.state_dict()))
    assert all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0], strict=True)) and found[0][1] == found[1][1]


def test_what_takes_a_step_inside_a_point_is_refused_and_the_weights_stay():
    model = mlp(torch.float32)
    x, y = vectors(dtype=torch.float32)
    opt, before = SSGD(SGD(model.parameters(), lr=0.1), 0.2), weights(model)
    with pytest.raises(RuntimeError, match=r"step\(\) inside a point"):
        for point in opt.points():
            with point:
                F.cross_entropy(model(x), y).backward()
                opt.step()
    assert same(model, before)


# --- optimizers around ours ---


def lookahead(inner):
    return pytest.importorskip("pytorch_optimizer").Lookahead(inner, k=2, alpha=0.5)


def schedule_free(inner):
    return pytest.importorskip("schedulefree").ScheduleFreeWrapper(inner, momentum=0.9)


@pytest.mark.parametrize("around", [lookahead, schedule_free])
def test_an_optimizer_around_ours_at_level_zero_is_what_it_is_around_the_base(around):
    found = []
    for wrap in (lambda base: base, lambda base: SSGD(base, 0.0), lambda base: SSGD(base, 0.2, seed=1)):
        model = mlp(torch.float32)
        inner = wrap(SGD(model.parameters(), lr=0.1))
        outer = around(inner)
        getattr(outer, "train", lambda: None)()
        for i in range(5):
            x, y = vectors(dtype=torch.float32, seed=i)
            for point in inner.points() if isinstance(inner, SSGD) else [torch.enable_grad()]:
                with point:
                    F.cross_entropy(model(x), y).backward()
            outer.step()
            inner.zero_grad()
        found.append(weights(model))
    plain, still, noisy = found
    assert all(torch.equal(a, b) for a, b in zip(plain, still, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(plain, noisy, strict=True))


@pytest.mark.parametrize("around", [lookahead, schedule_free])
def test_as_a_base_it_is_refused_with_the_way_round(around):
    with pytest.raises(
        TypeError, match="is an optimizer around another: wrap the one inside it, and give it the result"
    ):
        SSGD(around(SGD(nn.Linear(3, 2).parameters(), lr=0.1)), 0.2)
