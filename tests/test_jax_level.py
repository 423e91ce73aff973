"""ssgd.jax: level 0 is the base, schedules, traced levels."""

import numpy as np
import pytest

from .jax_problems import KEY, LEVELS, batch, close, jax, loss_fn, net, optax, same, symmetric, training_step

pytestmark = pytest.mark.usefixtures("quick_compilation")


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
