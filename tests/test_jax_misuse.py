"""ssgd.jax: misuse, and an environment without JAX."""

import importlib
import sys
import warnings

import numpy as np
import pytest
import torch

from .jax_problems import KEY, batch, jax, jnp, loss_fn, net, optax, symmetric

pytestmark = pytest.mark.usefixtures("quick_compilation")


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
        ({"distribution": "cauchy"}, r"use one of sphere, sign, uniform, or a function draw\(key, shape, dtype\)"),
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
    short = symmetric(optax.sgd(0.1), 0.3, key=KEY, distribution=lambda key, shape, dtype: jnp.ones((), dtype))
    with pytest.raises(ValueError, match=r"distribution drew noise of the shape \(\) where \(5, 8\) was asked for"):
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


def test_a_part_of_the_parameters_needs_a_choice():
    """Frozen leaves would get noise else: they are among the loss's parameters, and hidden from the optimizer."""
    params = {"frozen": jnp.ones((2, 2)), "w": jnp.ones((2, 2))}
    labels = {"frozen": "f", "w": "t"}
    for perturb in (None, lambda path, leaf: path == "w"):
        opt = symmetric(optax.sgd(0.1), 0.2, key=KEY, perturb=perturb)
        parts = optax.multi_transform({"t": opt, "f": optax.set_to_zero()}, labels)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            ratios = opt.realised_ratios(params, parts.init(params))
        told = [
            str(one.message) for one in heard if "a part of the parameters only: say with perturb=" in str(one.message)
        ]
        assert (len(told), ratios["frozen"] is None) == ((1, False) if perturb is None else (0, True))
        assert np.isclose(ratios["w"], 0.2)
