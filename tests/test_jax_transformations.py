"""ssgd.jax under JAX's and optax's own ways: jit, scan, vmap, chains, accumulation, resume."""

import numpy as np
import pytest

from .jax_problems import KEY, batch, close, jax, jnp, loss_fn, net, optax, same, symmetric, training_step

pytestmark = pytest.mark.usefixtures("quick_compilation")


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
