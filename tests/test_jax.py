"""ssgd.jax: the reference's step, laws, level 0, split, pairs, transformations, devices, resume, misuse."""

import importlib
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD, Adam

jax = pytest.importorskip("jax", reason="needs jax: pip install 'ssgd[jax]'")
optax = pytest.importorskip("optax", reason="needs optax: pip install 'ssgd[jax]'")

import jax.numpy as jnp  # noqa: E402

from ssgd import Law  # noqa: E402
from ssgd.jax import symmetric  # noqa: E402
from ssgd.reference import Reference  # noqa: E402

from .problems import mlp, vectors  # noqa: E402

ROOT = Path(__file__).parent.parent
KEY = jax.random.key(5)
BASES = {
    "sgd": (optax.sgd(0.1), lambda p: SGD(p, lr=0.1)),
    "momentum": (optax.sgd(0.1, momentum=0.9), lambda p: SGD(p, lr=0.1, momentum=0.9)),
    "adam": (optax.adam(0.01), lambda p: Adam(p, lr=0.01)),
}
LEVELS = {"number": lambda a: a, "schedule": lambda a: lambda step: jnp.asarray(a)}


@pytest.fixture(autouse=True)
def quick_compilation():
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def usual_compilation(quick_compilation):
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def double_precision():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def net():
    key = jax.random.key(0)
    return {
        "first": {"w": jax.random.normal(key, (5, 8)), "b": jnp.zeros(8)},
        "last": {"w": jax.random.normal(jax.random.fold_in(key, 1), (8, 3)), "b": jnp.ones(3)},
    }


def loss_fn(params, x, y):
    hidden = jnp.tanh(x @ params["first"]["w"] + params["first"]["b"])
    return jnp.mean((hidden @ params["last"]["w"] + params["last"]["b"] - y[:, None]) ** 2)


def batch(samples=7):
    x, y = vectors(samples, torch.float32)
    return jnp.asarray(x.numpy()), jnp.asarray(y.numpy())


def training_step(opt, loss=loss_fn):
    def step(params, state, *data):
        value, grads = opt.value_and_grad(loss)(params, state, *data)
        updates, state = opt.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    return step


def close(a, b, **tolerance):
    jax.tree.map(lambda p, q: np.testing.assert_allclose(p, q, **(tolerance or {"rtol": 1e-5, "atol": 1e-6})), a, b)


def same(a, b):
    return jax.tree.structure(a) == jax.tree.structure(b) and all(
        np.array_equal(p, q) for p, q in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


# --- the step -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("base", "mode", "law", "pairs"),
    [
        ("sgd", "both", "sphere", 1),
        ("momentum", "both", "sphere", 2),
        ("adam", "both", "sphere", 1),
        ("adam", "split", "sphere", 1),
        ("sgd", "split", "sign", 1),
        ("momentum", "both", "uniform", 1),
    ],
)
def test_equals_the_torch_reference_on_the_same_noise(base, mode, law, pairs, double_precision):
    ours, theirs = BASES[base]
    model, a, drawn = mlp(), 0.3, []
    x, _ = vectors(samples=7)  # odd, so that the halves of split differ in size
    y = x[:, :3].cos()
    layers = [model[0].weight, model[2].weight]

    def fill(z, generator):
        z.copy_(drawn.pop(0))

    unit = "rms" if law == "uniform" else "norm"
    reference = Reference(theirs(model.parameters()), a, layers, Law("jax's", fill, unit), pairs)

    opt = symmetric(ours, a, key=KEY, mode=mode, law=law, pairs=pairs)
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
            scale = [a * r for r in rms] if law == "uniform" else [1, 1]
            drawn.append(torch.cat([(n_l / s).flatten() for n_l, s in zip(n, scale, strict=True)]))
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


# --- level 0 --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", ["both", "split"])
def test_level_zero_is_the_base_bitwise(level, mode, usual_compilation):
    data, base = batch(), optax.sgd(0.1, momentum=0.9)

    @jax.jit
    def plain_step(params, state, x, y):
        grads = jax.grad(loss_fn)(params, x, y)
        updates, state = base.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    opt = symmetric(base, LEVELS[level](0.0), key=KEY, mode=mode)
    step = jax.jit(training_step(opt))
    params, plain = net(), net()
    state, plain_state = opt.init(params), base.init(plain)
    for _ in range(3):
        params, state, _ = step(params, state, *data)
        plain, plain_state = plain_step(plain, plain_state, *data)
    assert same(params, plain) and same(state.base_state, plain_state)


@pytest.mark.parametrize("mode", ["both", "split"])
def test_a_schedule_evaluates_once_at_level_zero_and_twice_above(mode):
    """A level of 0, then 0.15, then 0.3."""
    seen = []

    def loss(params, x, y):
        jax.debug.callback(lambda: seen.append(len(x)))
        return loss_fn(params, x, y)

    opt = symmetric(optax.sgd(0.1), optax.linear_schedule(0.0, 0.3, 2), key=KEY, mode=mode)
    step = jax.jit(training_step(opt, loss))
    params = net()
    state = opt.init(params)
    for expected in ([8], [8, 8], [8, 8]) if mode == "both" else ([8], [4, 4], [4, 4]):
        ratio = opt.realised_ratios(params, state)["last"]["w"]
        np.testing.assert_allclose(ratio, 0.15 * state.noise_step, rtol=1e-5)
        params, state, value = step(params, state, *batch(8))
        jax.effects_barrier()
        assert seen == expected and (value.losses[0] == value.losses[1]) == (len(expected) == 1)
        seen.clear()


def test_a_traced_level():
    params, data = net(), batch()

    @jax.jit
    def gradient(level):
        opt = symmetric(optax.sgd(0.1), level, key=KEY)
        return opt.value_and_grad(loss_fn)(params, opt.init(params), *data)[1]

    for level in (0.0, 0.4):
        opt = symmetric(optax.sgd(0.1), level, key=KEY)
        close(gradient(level), jax.jit(opt.value_and_grad(loss_fn))(params, opt.init(params), *data)[1])


# --- noise ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", ["sphere", "sign", "uniform"])
def test_laws(law):
    w = {"w": jax.random.normal(jax.random.key(1), (60, 50)), "b": jnp.ones(50)}
    opt = symmetric(optax.sgd(0.1), 0.3, key=KEY, law=law)
    state = opt.init(w)
    plus, minus = opt.points(w, state)
    n, rms = plus["w"] - w["w"], jnp.sqrt(jnp.mean(w["w"] ** 2))
    close(plus["w"] + minus["w"], 2 * w["w"])
    assert same(plus["b"], w["b"]) and same(minus["b"], w["b"])
    ratios = opt.realised_ratios(w, state)
    assert ratios["b"] is None
    np.testing.assert_allclose(
        ratios["w"], 0.3 / 3**0.5 if law == "uniform" else 0.3, rtol=0.03 if law == "uniform" else 1e-5
    )
    assert abs(n.mean()) < 0.1 * n.std()
    if law == "sign":
        np.testing.assert_allclose(jnp.abs(n), 0.3 * rms, rtol=1e-4)
    if law == "uniform":
        assert 0.29 < jnp.abs(n).max() / rms <= 0.3 * (1 + 1e-5)


def test_a_law_of_ones_own_is_scaled_to_the_norm():
    w = jnp.full((4, 4), 2.0)
    opt = symmetric(optax.sgd(0.1), 0.5, key=KEY, law=lambda key, shape, dtype: jnp.full(shape, 7.0, dtype))
    close(opt.points(w, opt.init(w)), (jnp.full((4, 4), 3.0), jnp.full((4, 4), 1.0)))


def test_noise_is_a_function_of_key_step_pair_and_leaf():
    w = {"a": jnp.ones((4, 4)), "b": jnp.ones((4, 4))}
    opt = symmetric(optax.sgd(0.1), 0.3, key=KEY, pairs=2)
    state = opt.init(w)
    points = opt.points(w, state)
    assert same(points, opt.points(w, state))
    close(points, jax.jit(opt.points)(w, state))
    later = state._replace(noise_step=state.noise_step + 1)
    other = state._replace(noise_key=jax.random.key(6))
    draws = [tree[leaf] for s in (state, later, other) for tree in opt.points(w, s)[::2] for leaf in "ab"]
    assert len({draw.tobytes() for draw in map(np.asarray, draws)}) == len(draws) == 12


def test_zero_bfloat16_complex_and_empty_leaves():
    params = {
        "zero": jnp.zeros((3, 3)),
        "half": jax.random.normal(jax.random.key(1), (40, 30), jnp.bfloat16),
        "complex": jax.random.normal(jax.random.key(2), (40, 30), jnp.complex64),
        "empty": jnp.zeros((0, 3)),
    }
    opt = symmetric(optax.sgd(0.1), 0.3, key=KEY, law="uniform")
    state = opt.init(params)
    loss = lambda p: sum(jnp.sum(jnp.abs(w) ** 2) for w in p.values())  # noqa: E731
    (value, grads), ratios, (plus, _) = jax.jit(
        lambda *a: (opt.value_and_grad(loss)(*a), opt.realised_ratios(*a), opt.points(*a))
    )(params, state)
    assert all(
        np.isfinite(np.abs(leaf.astype(complex))).all() for leaf in jax.device_get(jax.tree.leaves((value, grads)))
    )
    assert all(grads[name].dtype == w.dtype for name, w in params.items())
    level = 0.3 / 3**0.5
    assert ratios["zero"] == ratios["empty"] == 0
    assert abs(ratios["half"] - level) < 0.05 * level and abs(ratios["complex"] - level) < 0.05 * level
    n = np.asarray(plus["complex"] - params["complex"])
    assert np.abs(n.real).min() > 0 and np.abs(n.imag).min() > 0


def test_a_derivative_through_a_zero_leaf_is_finite():
    """As in learning to learn, where a step is differentiated by the weights it began with."""
    params, data = net(), batch()
    params["last"]["w"] = jnp.zeros((8, 3))
    opt = symmetric(optax.sgd(0.1), 0.3, key=KEY)

    @jax.jit
    @jax.grad
    def through_a_step(params):
        return loss_fn(training_step(opt)(params, opt.init(params), *data)[0], *data)

    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(through_a_step(params)))


def test_dtypes_without_implicit_promotion():
    params = {"half": jnp.ones((4, 4), jnp.bfloat16), "eighth": jnp.ones((4, 4), jnp.float8_e4m3fn)}
    opt = symmetric(optax.sgd(0.1), optax.linear_schedule(0.3, 0.3, 2), key=KEY)
    state = opt.init(params)
    with jax.numpy_dtype_promotion("strict"):
        plus, _ = opt.points(params, state)
        ratios = opt.realised_ratios(params, state)
    assert {name: w.dtype for name, w in plus.items()} == {name: w.dtype for name, w in params.items()}
    close(ratios, {"half": 0.3, "eighth": 0.3}, rtol=0.1)


def test_only_leaves_that_may_move_are_chosen():
    params = {"w": jnp.ones((2, 2)), "scale": 2.0, "count": jnp.arange(4).reshape(2, 2), "key": KEY, "none": None}
    opt = symmetric(optax.sgd(0.1), 0.3, key=KEY, perturb=lambda path, leaf: True)
    state = opt.init({"w": params["w"]})
    ratios = opt.realised_ratios(params, state)
    close((ratios["w"], ratios["scale"]), (0.3, 0.3))
    assert ratios["count"] is ratios["key"] is ratios["none"] is None
    plus, _ = opt.points(params, state)
    assert same(plus["count"], params["count"]) and plus["key"] is KEY


def test_perturb_chooses_leaves_by_path():
    params, asked = {**net(), "tail": [jnp.ones((2, 2))]}, []

    def perturb(path, leaf):
        asked.append((path, leaf.ndim))
        return path in ("first/b", "tail/0")

    opt = symmetric(optax.sgd(0.1), 0.3, key=KEY, perturb=perturb)
    params["first"]["b"] += 1
    ratios = opt.realised_ratios(params, opt.init(params))
    assert {path for path, _ in asked} == {"first/b", "first/w", "last/b", "last/w", "tail/0"}
    close(jax.tree.leaves(ratios), [0.3, 0.3])
    assert ratios["first"]["w"] is None and ratios["tail"][0] is not None


# --- JAX's and optax's own ways -------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0.3, optax.linear_schedule(0.1, 0.3, 10)], ids=["number", "schedule"])
def test_the_second_call_traces_nothing(noise):
    traces = []

    def loss(params, x, y):
        traces.append(1)
        return loss_fn(params, x, y)

    opt = symmetric(optax.sgd(0.1, momentum=0.9), noise, key=KEY)
    step = jax.jit(training_step(opt, loss), donate_argnums=(0, 1))
    params = net()
    params, state, _ = step(params, opt.init(params), *batch())
    first = len(traces)
    params, state, _ = step(params, state, *batch())
    assert len(traces) == first > 0 and state.noise_step == 2
    opt.init(net())  # the key given to symmetric() is still there, although the state was donated


def test_scan_and_vmap_equal_the_loop():
    data = batch()

    def train(key, steps):
        params = net()
        opt = symmetric(optax.sgd(0.1, momentum=0.9), 0.3, key=key)
        carry = jax.lax.scan(
            lambda carry, _: (training_step(opt)(*carry, *data)[:2], None), (params, opt.init(params)), length=steps
        )[0]
        return carry[0]

    keys = jax.random.split(KEY, 2)
    members = jax.jit(jax.vmap(lambda key: train(key, 3)))(keys)
    opt, params = symmetric(optax.sgd(0.1, momentum=0.9), 0.3, key=keys[1]), net()
    state, step = opt.init(params), jax.jit(training_step(opt))
    for _ in range(3):
        params, state, _ = step(params, state, *data)
    close(jax.tree.map(lambda leaf: leaf[1], members), params, rtol=1e-4, atol=1e-5)
    assert not jnp.allclose(members["last"]["w"][0], members["last"]["w"][1], atol=1e-3)


def test_resume_is_bitwise(tmp_path):
    opt = symmetric(optax.sgd(0.1, momentum=0.9), 0.3, key=jax.random.PRNGKey(5))
    step, params = jax.jit(training_step(opt)), net()
    state = opt.init(params)
    for _ in range(2):
        params, state, _ = step(params, state, *batch())
    leaves, structure = jax.tree.flatten((params, state))
    np.savez(tmp_path / "saved.npz", *leaves)
    for _ in range(2):
        params, state, _ = step(params, state, *batch())

    with np.load(tmp_path / "saved.npz") as saved:
        again, again_state = jax.tree.unflatten(structure, list(saved.values()))
    other = symmetric(
        optax.sgd(0.1, momentum=0.9), 0.3, key=jax.random.PRNGKey(77)
    )  # the saved key counts, not this one
    step = jax.jit(training_step(other))
    for _ in range(2):
        again, again_state, _ = step(again, again_state, *batch())
    assert same((again, again_state), (params, state))


def test_inside_a_chain_extra_arguments_reach_the_base():
    def scaled(updates, state, params=None, *, value, **extra):
        return jax.tree.map(lambda u: -value * u, updates), state

    base = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), scaled)
    opt = symmetric(base, 0.3, key=KEY)
    chain = optax.chain(optax.scale(2.0), opt)
    params = net()
    state = chain.init(params)
    value, grads = jax.jit(opt.value_and_grad(loss_fn))(params, state, *batch())
    updates, state = chain.update(grads, state, params, value=value.loss)
    close(updates, jax.tree.map(lambda g: -2 * value.loss * g, grads))
    assert state[1].noise_step == 1


def test_accumulated_batches_see_one_noise_and_equal_the_whole_batch():
    opt = symmetric(optax.sgd(0.1), 0.3, key=KEY)
    every = optax.MultiSteps(opt, 2)
    x, y = batch(8)
    params = whole = net()
    state = every.init(params)

    @jax.jit
    def step(params, state, x, y):
        _, grads = opt.value_and_grad(loss_fn)(params, state, x, y)
        updates, state = every.update(grads, state, params)
        return optax.apply_updates(params, updates), state

    for part in (slice(0, 4), slice(4, 8)):
        params, state = step(params, state, x[part], y[part])
    whole, whole_state, _ = jax.jit(training_step(opt))(whole, opt.init(whole), x, y)
    close(params, whole)
    assert same(opt.points(params, state), opt.points(params, whole_state))  # the next step's noise, in both


# --- devices --------------------------------------------------------------------------------------------------------


def test_on_two_devices():
    script = """
from functools import partial
from tests.test_jax import *
from jax.sharding import Mesh, PartitionSpec as P

mesh = Mesh(np.array(jax.devices()), ("devices",))
assert mesh.size == 2
over = partial(jax.shard_map, mesh=mesh, in_specs=(P(), P(), P("devices"), P("devices")), out_specs=P())
params, (x, y) = net(), batch(8)
for mode, level in (("both", "number"), ("split", "schedule")):
    expected = by_hand(params, x, y, mode)
    opt = symmetric(optax.sgd(0.1), LEVELS[level](0.3), key=KEY, mode=mode, per_device="devices")
    state = opt.init(params)
    value, grads = jax.jit(over(opt.value_and_grad(loss_fn)))(params, state, x, y)
    close((value.losses, grads), expected)
value, grads = jax.pmap(opt.value_and_grad(loss_fn), axis_name="devices", in_axes=(None, None, 0, 0))(
    params, state, x.reshape(2, 4, 5), y.reshape(2, 4)
)
close(jax.tree.map(lambda leaf: leaf[1], (value.losses, grads)), expected)

opt = symmetric(optax.sgd(0.1), 0.0, key=KEY, per_device="devices")
value, grads = jax.jit(over(opt.value_and_grad(loss_fn)))(params, state, x, y)
close(grads, jax.jit(jax.grad(loss_fn))(params, x, y))

opt = symmetric(optax.sgd(0.1), 0.3, key=KEY)  # weights laid over the devices: the same noise as in one piece
laid = jax.device_put(params, jax.sharding.NamedSharding(mesh, P()))
laid["last"]["w"] = jax.device_put(params["last"]["w"], jax.sharding.NamedSharding(mesh, P("devices", None)))
evaluate = jax.jit(opt.value_and_grad(loss_fn))
close(evaluate(laid, state, x, y), evaluate(params, state, x, y))
print("all on two devices")
"""
    flags = "--xla_force_host_platform_device_count=2"
    run = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert "all on two devices" in run.stdout, run.stderr


def by_hand(params, x, y, mode):
    """Each device alone, with a key of its own; then the mean."""

    @jax.jit
    def alone(key, x, y):
        opt = symmetric(optax.sgd(0.1), 0.3, key=key, mode=mode)
        value, grads = opt.value_and_grad(loss_fn)(params, opt.init(params), x, y)
        return value.losses, grads

    one, other = alone(jax.random.fold_in(KEY, 0), x[:4], y[:4]), alone(jax.random.fold_in(KEY, 1), x[4:], y[4:])
    assert not np.allclose(one[0], other[0], atol=1e-3)
    return jax.tree.map(lambda a, b: (a + b) / 2, one, other)


# --- misuse, page, example ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"base": torch.optim.SGD}, "must be an optax optimizer, such as optax.sgd"),
        ({"base": symmetric(optax.sgd(0.1), 0.3, key=KEY)}, "symmetric already: wrap the optimizer inside it"),
        ({"noise": -0.1}, "a finite number of at least 0"),
        ({"noise": np.float64(-0.1)}, "a finite number of at least 0, not -0.1"),
        ({"noise": jnp.array(-0.5)}, "a finite number of at least 0, not -0.5"),
        ({"noise": jnp.array(jnp.nan)}, "a finite number of at least 0, not nan"),
        ({"noise": jnp.ones(3)}, r"must be a scalar, not of \(3,\)"),
        ({"key": 0}, r"such as jax.random.key\(0\), not 0"),
        ({"key": jax.random.split(KEY)}, "one random key"),
        ({"mode": "mirror"}, "mode must be one of 'both', 'split'"),
        ({"law": "cauchy"}, r"use one of sphere, sign, uniform, or a function draw\(key, shape, dtype\)"),
        ({"perturb": {"w": True}}, r"perturb must be a function perturb\(path, leaf\), not dict"),
        ({"pairs": 0}, "pairs must be a whole number of at least 1"),
        ({"pairs": 2, "mode": "split"}, 'use pairs=1, or mode="both"'),
    ],
)
def test_bad_options(arguments, sentence):
    with pytest.raises((TypeError, ValueError), match=sentence):
        symmetric(**{"base": optax.sgd(0.1), "noise": 0.3, "key": KEY, **arguments})


def test_wrong_states_and_batches():
    params, (x, y) = net(), batch()
    opt = symmetric(optax.sgd(0.1), 0.3, key=KEY, mode="split")
    state, evaluate = opt.init(params), opt.value_and_grad(loss_fn)
    with pytest.raises(ValueError, match="holds 0 symmetric optimizers, not one: pass the state of"):
        evaluate(params, optax.adam(0.1).init(params), x, y)
    with pytest.raises(ValueError, match="holds 2 symmetric optimizers"):
        evaluate(params, (state, state), x, y)
    with pytest.raises(ValueError, match=r"different first dimensions, \[6, 7\]; pass by keyword"):
        evaluate(params, state, x, y[:6])
    with pytest.raises(
        ValueError, match='at least two samples, one for each sign; drop the last batch or use mode="both"'
    ):
        evaluate(params, state, x[:1], y[:1])
    with pytest.raises(ValueError, match="at least one positional array"):
        opt.value_and_grad(lambda p, *, x, y: loss_fn(p, x, y))(params, state, x=x, y=y)
    with pytest.raises(ValueError, match=r"nothing to perturb: .* two or more dimensions .* among bias"):
        opt.points({"bias": jnp.ones(3)}, state)
    with pytest.raises(ValueError, match=r"nothing to perturb: .* that perturb accepts"):
        symmetric(optax.sgd(0.1), 0.3, key=KEY, perturb=lambda path, leaf: False).points(params, state)
    short = symmetric(optax.sgd(0.1), 0.3, key=KEY, law=lambda key, shape, dtype: jnp.ones((), dtype))
    with pytest.raises(ValueError, match=r"law drew noise of the shape \(\) where \(5, 8\) was asked for"):
        short.points(params, state)
    scheduled = symmetric(optax.sgd(0.1), lambda step: 0.1 * step, key=KEY, mode="split")
    with pytest.raises(ValueError, match="return sums or means over the samples, or give noise as a number"):
        scheduled.value_and_grad(lambda p, x, y: (loss_fn(p, x, y), x), has_aux=True)(params, state, x, y)


def test_without_jax_the_import_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("ssgd.jax")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optax", None)
    with pytest.raises(ImportError, match=r"ssgd.jax needs optax: pip install 'ssgd\[jax\]'"):
        importlib.import_module("ssgd.jax")


def test_the_page_runs_from_top_to_bottom():
    space = {}
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "jax.md").read_text(), re.DOTALL)
    for block in blocks:
        exec(compile(block, "docs/jax.md", "exec"), space)
    assert len(blocks) == 7 and space["excess"].shape == () and jnp.isfinite(space["value"].loss)


def test_the_example_learns():
    train = runpy.run_path(str(ROOT / "examples" / "jax_digits.py"))["train"]
    assert train("split", 0.3, epochs=6) > 50
