"""ssgd.jax: the reference's step, closed forms, pairs, split."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD, Adam

from ssgd import Distribution
from ssgd.reference import Reference

from .jax_problems import KEY, batch, close, jax, jnp, loss_fn, net, optax, same, symmetric, training_step
from .problems import mlp, vectors

pytestmark = pytest.mark.usefixtures("quick_compilation")
BASES = {
    "sgd": (optax.sgd(0.1), lambda p: SGD(p, lr=0.1)),
    "momentum": (optax.sgd(0.1, momentum=0.9), lambda p: SGD(p, lr=0.1, momentum=0.9)),
    "adam": (optax.adam(0.01), lambda p: Adam(p, lr=0.01)),
}


@pytest.mark.parametrize(
    ("base", "mode", "distribution", "pairs"),
    [
        ("sgd", "both", "sphere", 1),
        ("momentum", "both", "sphere", 2),
        ("adam", "both", "sphere", 1),
        ("adam", "split", "sphere", 1),
        ("sgd", "split", "sign", 1),
        ("momentum", "both", "uniform", 1),
    ],
)
def test_equals_the_torch_reference_on_the_same_noise(base, mode, distribution, pairs, double_precision):
    ours, theirs = BASES[base]
    model, a, drawn = mlp(), 0.3, []
    x, _ = vectors(samples=7)  # odd, so that the halves of split differ in size
    y = x[:, :3].cos()
    layers = [model[0].weight, model[2].weight]

    def fill(z, generator):
        z.copy_(drawn.pop(0))

    unit = "rms" if distribution == "uniform" else "norm"
    reference = Reference(theirs(model.parameters()), a, layers, Distribution("jax's", fill, unit), pairs)

    opt = symmetric(ours, a, key=KEY, mode=mode, distribution=distribution, pairs=pairs)
    params = {i: {"w": as_jax(model[i].weight.T), "b": as_jax(model[i].bias)} for i in (0, 2)}
    state = opt.init(params)

    def loss(params, x, y):
        output = jnp.tanh(x @ params[0]["w"] + params[0]["b"]) @ params[2]["w"] + params[2]["b"]
        return jnp.mean((output - y) ** 2)

    @jax.jit
    def step(params, state, x, y):
        return opt.points(params, state), training_step(opt, loss)(params, state, x, y)[:2]

    for _ in range(4):
        before, (points, (params, state)) = params, step(params, state, as_jax(x), as_jax(y))
        for plus in jax.device_get(points[::2]):
            n = [torch.tensor(plus[i]["w"] - np.asarray(before[i]["w"])).T for i in (0, 2)]
            rms = [layer.detach().norm() / layer.numel() ** 0.5 for layer in layers]
            scale = [a * r for r in rms] if distribution == "uniform" else [1, 1]
            drawn.extend((n_l / s).flatten() for n_l, s in zip(n, scale, strict=True))
        if mode == "split":
            halves = [lambda: F.mse_loss(model(x[:4]), y[:4]), lambda: F.mse_loss(model(x[4:]), y[4:])]
            reference.step(*halves, shares=(4 / 7, 3 / 7))
        else:
            reference.step(lambda: F.mse_loss(model(x), y))
    for i in (0, 2):
        np.testing.assert_allclose(params[i]["w"], model[i].weight.detach().T, rtol=1e-9, atol=1e-11)
        np.testing.assert_allclose(params[i]["b"], model[i].bias.detach(), rtol=1e-9, atol=1e-11)


def as_jax(tensor):
    return jnp.asarray(tensor.detach().numpy())


def test_on_a_quadratic_the_noise_cancels_and_the_excess_is_half_the_curvature_along_it(double_precision):
    root = jax.random.normal(jax.random.key(1), (12, 12))
    A, w = root @ root.T, jax.random.normal(jax.random.key(2), (4, 3))
    opt = symmetric(optax.sgd(0.1), 0.5, key=KEY)
    state = opt.init(w)
    quadratic = lambda w: 0.5 * w.ravel() @ A @ w.ravel()  # noqa: E731
    _, gradient = opt.value_and_grad(quadratic)(w, state)
    np.testing.assert_allclose(gradient.ravel(), A @ w.ravel(), rtol=1e-12, atol=1e-12)
    n = (opt.points(w, state)[0] - w).ravel()
    np.testing.assert_allclose(opt.symmetric_excess(quadratic)(w, state), 0.5 * n @ A @ n, rtol=1e-10)


def test_on_a_cubic_the_pair_adds_exactly_the_third_derivative_term(double_precision):
    c, w = jnp.linspace(-1, 2, 12).reshape(4, 3), jax.random.normal(jax.random.key(2), (4, 3))
    opt = symmetric(optax.sgd(0.1), 0.5, key=KEY)
    state = opt.init(w)
    _, gradient = opt.value_and_grad(lambda w: (c * w**3).sum())(w, state)
    n = opt.points(w, state)[0] - w
    np.testing.assert_allclose(gradient - 3 * c * w**2, 3 * c * n**2, rtol=1e-10, atol=1e-12)


def test_pairs_are_averaged():
    params, data = net(), batch()
    opt = symmetric(optax.sgd(0.1), 0.3, key=KEY, pairs=2)
    state = opt.init(params)

    @jax.jit
    def both_ways(params, state):
        points = opt.points(params, state)
        return opt.value_and_grad(loss_fn)(params, state, *data), [
            jax.value_and_grad(loss_fn)(point, *data) for point in points
        ]

    (value, grads), by_hand = both_ways(params, state)
    losses, gradients = zip(*by_hand, strict=True)
    assert len(set(map(float, losses))) == 4
    close(grads, jax.tree.map(lambda *g: sum(g) / 4, *gradients))
    close(value.losses, losses)
    close(value.loss, sum(losses) / 4)


def test_split_takes_the_halves_by_their_share_and_keywords_whole():
    params, (x, y) = net(), batch(7)
    opt = symmetric(optax.sgd(0.1), 0.3, key=KEY, mode="split")
    state = opt.init(params)

    def loss(params, x, y, *, offset, scale):
        return loss_fn(params, x + offset, y) * scale, x

    @jax.jit
    def both_ways(params, state, **rest):
        plus, minus = opt.points(params, state)
        evaluate = jax.value_and_grad(loss, has_aux=True)
        by_hand = evaluate(plus, x[:4], y[:4], **rest), evaluate(minus, x[4:], y[4:], **rest)
        return opt.value_and_grad(loss, has_aux=True)(params, state, x, y, **rest), by_hand

    (value, grads), (first, second) = both_ways(params, state, offset=jnp.arange(5.0), scale=2.0)
    (first_loss, _), first_gradient = first
    (second_loss, _), second_gradient = second
    close(grads, jax.tree.map(lambda a, b: (4 * a + 3 * b) / 7, first_gradient, second_gradient))
    close(value.losses, [first_loss, second_loss])
    close(value.loss, (4 * first_loss + 3 * second_loss) / 7)
    assert same(value.aux, (x[:4], x[4:]))


def test_aux_comes_from_both_points_in_order():
    params, data = net(), batch()
    opt = symmetric(optax.sgd(0.1), 0.3, key=KEY)
    state = opt.init(params)
    loss = lambda p, *d: (loss_fn(p, *d), {"w": p["first"]["w"]})  # noqa: E731
    evaluate = opt.value_and_grad(loss, has_aux=True)
    (value, _), points = jax.jit(lambda *a: (evaluate(*a, *data), opt.points(*a)))(params, state)
    close(value.aux, tuple({"w": point["first"]["w"]} for point in points))
