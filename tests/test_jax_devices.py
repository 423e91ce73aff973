"""ssgd.jax on two devices."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from .jax_problems import KEY, jax, loss_fn, optax, symmetric

pytestmark = pytest.mark.usefixtures("quick_compilation")
ROOT = Path(__file__).parent.parent


def test_on_two_devices():
    script = """
from functools import partial
import jax, numpy as np, optax
from jax.sharding import Mesh, PartitionSpec as P
from ssgd.jax import symmetric
from tests.jax_problems import KEY, LEVELS, batch, close, loss_fn, net
from tests.test_jax_devices import by_hand

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
