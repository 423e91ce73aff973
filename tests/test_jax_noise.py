"""ssgd.jax: distributions, and which leaves the noise moves."""

import numpy as np
import pytest

from .jax_problems import KEY, batch, close, jax, jnp, loss_fn, net, optax, same, symmetric, training_step

pytestmark = pytest.mark.usefixtures("quick_compilation")


@pytest.mark.parametrize("distribution", ["sphere", "sign", "uniform"])
def test_distributions(distribution):
    w = {"w": jax.random.normal(jax.random.key(1), (60, 50)), "b": jnp.ones(50)}
    opt = symmetric(optax.sgd(0.1), 0.3, key=KEY, distribution=distribution)
    state = opt.init(w)
    plus, minus = opt.points(w, state)
    n, rms = plus["w"] - w["w"], jnp.sqrt(jnp.mean(w["w"] ** 2))
    close(plus["w"] + minus["w"], 2 * w["w"])
    assert same(plus["b"], w["b"]) and same(minus["b"], w["b"])
    ratios = opt.realised_ratios(w, state)
    assert ratios["b"] is None
    np.testing.assert_allclose(
        ratios["w"],
        0.3,
        rtol=0.03 if distribution == "uniform" else 1e-5,
    )
    assert abs(n.mean()) < 0.1 * n.std()
    if distribution == "sign":
        np.testing.assert_allclose(jnp.abs(n), 0.3 * rms, rtol=1e-4)
    if distribution == "uniform":
        assert 0.29 < jnp.abs(n).max() / rms / 3**0.5 <= 0.3 * (1 + 1e-5)


def test_a_distribution_of_ones_own_is_scaled_to_the_norm():
    w = jnp.full((4, 4), 2.0)
    opt = symmetric(optax.sgd(0.1), 0.5, key=KEY, distribution=lambda key, shape, dtype: jnp.full(shape, 7.0, dtype))
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
    opt = symmetric(optax.sgd(0.1), 0.3, key=KEY, distribution="uniform")
    state = opt.init(params)
    loss = lambda p: sum(jnp.sum(jnp.abs(w) ** 2) for w in p.values())  # noqa: E731
    (value, grads), ratios, (plus, _) = jax.jit(
        lambda *a: (opt.value_and_grad(loss)(*a), opt.realised_ratios(*a), opt.points(*a))
    )(params, state)
    assert all(
        np.isfinite(np.abs(leaf.astype(complex))).all() for leaf in jax.device_get(jax.tree.leaves((value, grads)))
    )
    assert all(grads[name].dtype == w.dtype for name, w in params.items())
    level = 0.3
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
