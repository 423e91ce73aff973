"""The net and steps that the tests of ssgd.jax share; without JAX or optax, whoever imports them is skipped."""

import numpy as np
import pytest
import torch

from .problems import vectors

jax = pytest.importorskip("jax", reason="needs jax: pip install 'ssgd[jax]'")
optax = pytest.importorskip("optax", reason="needs optax: pip install 'ssgd[jax]'")

import jax.numpy as jnp  # noqa: E402

from ssgd.jax import symmetric as symmetric  # noqa: E402

KEY = jax.random.key(5)
LEVELS = {"number": lambda a: a, "schedule": lambda a: lambda step: jnp.asarray(a)}


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
