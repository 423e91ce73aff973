"""SGD against S-SGD in JAX, on the 8×8 digits that come with the package: pip install '.[jax]'."""

import argparse
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
import optax

from ssgd.jax import symmetric
from ssgd.lab.data import digits


def init(key):
    layers = []
    for inputs, outputs in pairwise((64, 64, 64, 10)):
        key, own = jax.random.split(key)
        layers.append({"w": jax.random.normal(own, (inputs, outputs)) * (2 / inputs) ** 0.5, "b": jnp.zeros(outputs)})
    return layers


def logits(params, x):
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


def loss_fn(params, x, y):
    return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()


def last_test_accuracy(mode, noise, epochs=60, seed=0):
    data = digits(train=100, seed=seed)
    x, test_x = (jnp.asarray(images.flatten(1)) for images in (data.train_images, data.test_images))
    y, test_y = jnp.asarray(data.train_labels), jnp.asarray(data.test_labels)
    weights_key, noise_key, order_key = jax.random.split(jax.random.key(seed), 3)
    params = init(weights_key)
    opt = symmetric(optax.sgd(0.1, momentum=0.9), noise, mode=mode, key=noise_key)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, x, y):
        value, grads = opt.value_and_grad(loss_fn)(params, state, x, y)
        updates, state = opt.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value.loss

    state = opt.init(params)
    for epoch in range(epochs):
        for batch in jax.random.permutation(jax.random.fold_in(order_key, epoch), len(x)).reshape(-1, 25):
            params, state, _ = step(params, state, x[batch], y[batch])
    return 100 * float((logits(params, test_x).argmax(1) == test_y).mean())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=60)
    options = parser.parse_args()
    for name, mode, noise in (("SGD", "both", 0.0), ("S-SGD both", "both", 0.3), ("S-SGD split", "split", 0.3)):
        print(f"{name:12} {last_test_accuracy(mode, noise, options.epochs):.2f} % of the test digits")
