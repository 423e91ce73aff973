"""symmetric(): any optax optimizer, with gradients taken at w + n and w − n."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import optax

from ..core.checks import check_choice, check_count, check_level
from .halves import halves
from .noise import Draw, as_distribution, ratio
from .points import Params, Points, Predicate

Loss = Callable[..., Any]
Level: TypeAlias = "float | jax.Array | Callable[[jax.Array], Any]"


def symmetric(
    base: optax.GradientTransformation,
    noise: Level,
    *,
    key: jax.Array,
    mode: str = "both",
    distribution: str | Draw = "sphere",
    pairs: int = 1,
    perturb: Predicate | None = None,
    per_device: str | tuple[str, ...] | None = None,
) -> Symmetric:
    """Symmetrical SGD (Sung et al., 2020) around an optax optimizer. ::

        opt = symmetric(optax.sgd(0.1, momentum=0.9), noise=0.29, key=jax.random.key(0))
        state = opt.init(params)
        value, grads = opt.value_and_grad(loss_fn)(params, state, x, y)  # at w + n and w − n
        updates, state = opt.update(grads, state, params)
        params = optax.apply_updates(params, updates)

    Args:
        base: the optimizer that updates w.
        noise: the level, ``||n|| / ||w||`` in each leaf (for ``distribution="uniform"`` its expectation;
            :func:`ssgd.paper_level` converts the paper's unit): a number, a scalar array, which may be traced, or an
            optax schedule, called with the step's number. At level 0 the loss is taken once, at w, and the step is
            that of the base.
        key: of the noise, which is a function of key, step, pair and leaf.
        mode: ``"both"``: both signs on the whole batch; ``"split"``: +n on its first half, −n on the other.
        distribution: ``"sphere"``, ``"sign"``, ``"uniform"``, or a function ``draw(key, shape, dtype)``.
        pairs: noise pairs a step.
        perturb: ``perturb(path, leaf)`` says which leaves get noise, the path being such as ``"dense/kernel"``. By
            default those of two or more dimensions. Integers, masks and random keys never get any (and
            ``value_and_grad`` takes them no more than JAX's does). Inside ``optax.masked`` or ``multi_transform`` it
            should be given: frozen leaves are among the ``params`` of the loss.
        per_device: the axis of ``shard_map`` or ``pmap`` whose devices each draw noise of their own; losses and
            gradients are then means over it. None: the noise is the same everywhere, and the means are the caller's.
    """
    _check_base(base)
    _check_key(key)
    _check_noise(noise)
    check_choice("mode", mode, ("both", "split"))
    check_count("pairs", pairs)
    if perturb is not None and not callable(perturb):
        raise TypeError(f"perturb must be a function perturb(path, leaf), not {type(perturb).__name__}")
    if mode == "split" and pairs > 1:
        raise ValueError('split has two halves for one pair of signs: use pairs=1, or mode="both"')
    inner = optax.with_extra_args_support(base)

    def init(params: Params) -> SymmetricState:
        if perturb is None:
            _check_whole(params)
        fresh = jnp.copy(key)  # so that a state given away to jit does not take the caller's key along
        return SymmetricState(fresh, jnp.zeros((), jnp.int32), inner.init(params))

    def update(
        grads: Params, state: SymmetricState, params: Params | None = None, **extra: Any
    ) -> tuple[Params, SymmetricState]:
        updates, base_state = inner.update(grads, state.base_state, params, **extra)
        return updates, SymmetricState(state.noise_key, state.noise_step + 1, base_state)

    opt = Symmetric(init, update)
    opt._noise, opt._split = noise, mode == "split"
    opt._points = Points(as_distribution(distribution), pairs, perturb, per_device)
    return opt


class SymmetricState(NamedTuple):
    """All that a step depends on: a saved one resumes exactly."""

    noise_key: jax.Array
    noise_step: jax.Array
    base_state: Any


class Value(NamedTuple):
    """The mean loss, the loss at each point (w + n, w − n, then the next pair's) and what else it returned there."""

    loss: jax.Array
    losses: jax.Array
    aux: tuple[Any, ...]


class Symmetric(optax.GradientTransformationExtraArgs):  # type: ignore[misc]  # optax has no types
    """An optax optimizer, ``init`` and ``update``, with functions that take the loss at the points of its next step.

    Their ``state`` is that of ``init`` and ``update``, alone or inside the state of what holds this optimizer, such as
    :func:`optax.chain` or :class:`optax.MultiSteps`.
    """

    _noise: Level
    _split: bool
    _points: Points

    def value_and_grad(self, loss: Loss, has_aux: bool = False) -> Callable[..., tuple[Value, Params]]:
        """As :func:`jax.value_and_grad`, at the points: ``f(params, state, *batch, **rest)`` gives value and gradient.

        ``loss(params, *batch, **rest)`` is a mean over the batch. ``mode="split"`` halves the positional arguments,
        along their first dimension, and weighs each half by its share of the samples; what is passed by keyword stays
        whole. With ``has_aux`` the loss returns a pair, and ``value.aux`` is a tuple with the second of each point.
        """
        with_aux = loss if has_aux else lambda *args, **kwargs: (loss(*args, **kwargs), None)
        evaluate = jax.value_and_grad(with_aux, has_aux=True)
        count = 2 * self._points.pairs

        def at_points(params: Params, state: Any, *batch: Any, **rest: Any) -> tuple[Value, Params]:
            own = _own_state(state)
            params = self._own_copy(params)
            level = self._level(own)

            def clean() -> tuple[Value, Params]:
                (value, aux), grads = evaluate(params, *batch, **rest)
                return Value(value, jnp.stack([value] * count), (aux,) * count), grads

            def noisy() -> tuple[Value, Params]:
                parts = halves(batch) if self._split else ((batch, 1 / count),) * count
                points = self._points(params, own.noise_key, own.noise_step, level)
                found = [evaluate(point, *part, **rest) for point, (part, _) in zip(points, parts, strict=True)]
                shares = [share for _, share in parts]
                losses = [value for (value, _), _ in found]
                grads = jax.tree.map(lambda *each: _weighted(shares, each), *(grads for _, grads in found))
                return Value(_weighted(shares, losses), jnp.stack(losses), tuple(aux for (_, aux), _ in found)), grads

            if isinstance(level, (int, float)):
                value, grads = noisy() if level else clean()
            else:
                if self._split:
                    _check_aux(noisy, clean)
                value, grads = jax.lax.cond(level != 0, noisy, clean)
            mean, losses, grads = self._mean((value.loss, value.losses, grads))
            return Value(mean, losses, value.aux), grads

        return at_points

    def points(self, params: Params, state: Any) -> tuple[Params, ...]:
        """w + n and w − n of the next step, for a loop that takes its gradients itself; then those of further pairs."""
        own = _own_state(state)
        return self._points(params, own.noise_key, own.noise_step, self._level(own))

    def realised_ratios(self, params: Params, state: Any) -> Params:
        """``||n|| / ||w||`` in the next step, as a tree like ``params`` with None for what gets no noise."""
        plus, *_ = self.points(params, state)
        leaves, structure = jax.tree.flatten(params)
        moved = zip(self._points.selected(params), jax.tree.leaves(plus), leaves, strict=True)
        return jax.tree.unflatten(structure, [ratio(p, w) if selected else None for selected, p, w in moved])

    def symmetric_excess(self, loss: Loss, has_aux: bool = False) -> Callable[..., jax.Array]:
        """``f(params, state, *batch, **rest)``: the mean loss at the next step's points less that at w, about ½ nᵀHn.

        The whole batch is taken at every point, in ``mode="split"`` too.
        """

        def excess(params: Params, state: Any, *batch: Any, **rest: Any) -> jax.Array:
            def value(point: Params) -> jax.Array:
                found = loss(point, *batch, **rest)
                return jnp.asarray(found[0] if has_aux else found)

            losses = jnp.stack([value(point) for point in self.points(params, state)])
            found: jax.Array = self._mean(losses.mean() - value(params))
            return found

        return excess

    def _level(self, own: SymmetricState) -> Any:
        return self._noise(own.noise_step) if callable(self._noise) else self._noise

    def _own_copy(self, params: Params) -> Params:
        """Inside shard_map, a gradient with respect to what the devices share is summed over them unasked."""
        if self._points.axis is None:
            return params
        here = jax.lax.axis_index(self._points.axis) >= 0
        return jax.tree.map(lambda w: jnp.where(here, w, w), params)

    def _mean(self, tree: Any) -> Any:
        axis = self._points.axis
        return tree if axis is None else jax.tree.map(partial(jax.lax.pmean, axis_name=axis), tree)


def _own_state(state: Any) -> SymmetricState:
    """The noise's part of the state of whatever optimizer holds it."""
    leaves = jax.tree.leaves(state, is_leaf=lambda part: isinstance(part, SymmetricState))
    found = [part for part in leaves if isinstance(part, SymmetricState)]
    if len(found) != 1:
        raise ValueError(
            f"the state holds {len(found)} symmetric optimizers, not one: "
            "pass the state of the optimizer that was made with symmetric(), or of the chain that holds it"
        )
    return found[0]


def _weighted(shares: list[float], values: Any) -> Any:
    return sum(share * value for share, value in zip(shares, values, strict=True))


def _check_aux(noisy: Callable[[], Any], clean: Callable[[], Any]) -> None:
    """XLA needs the same shapes of either branch, and at level 0 the batch is not halved."""
    of_halves, of_whole = (jax.tree.map(jnp.shape, jax.eval_shape(f)[0].aux) for f in (noisy, clean))
    if of_halves != of_whole:
        raise ValueError(
            "with split and a level that may become 0, aux must have the same shapes for half a batch and for a whole "
            f"one, not {of_halves} and {of_whole}: return sums or means over the samples, or give noise as a number"
        )


def _check_whole(params: Params) -> None:
    """Warn where optax hides leaves from this optimizer: it does not train them, and should not give them noise."""
    leaves = jax.tree.leaves(params, is_leaf=lambda leaf: isinstance(leaf, optax.MaskedNode))
    if any(isinstance(leaf, optax.MaskedNode) for leaf in leaves):
        warnings.warn(
            "optax.masked or multi_transform gives this optimizer a part of the parameters only: say with "
            "perturb=lambda path, leaf: ... which leaves get noise, or all of two or more dimensions do",
            stacklevel=3,
        )


def _check_base(base: object) -> None:
    if isinstance(base, Symmetric):
        raise TypeError("the base is symmetric already: wrap the optimizer inside it instead")
    if not isinstance(base, optax.GradientTransformation):
        raise TypeError(f"the base must be an optax optimizer, such as optax.sgd(0.1), not {type(base).__name__}")


def _check_key(key: object) -> None:
    typed = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key) and key.ndim == 0
    raw = isinstance(key, jax.Array) and key.dtype == jnp.uint32 and key.ndim == 1
    if not (typed or raw):
        raise TypeError(f"key must be one random key of JAX's, such as jax.random.key(0), not {key!r}")


def _check_noise(noise: Any) -> None:
    if callable(noise):
        return
    if hasattr(noise, "shape"):
        if noise.shape:
            raise ValueError(f"the noise level is ||n|| / ||w||: an array must be a scalar, not of {noise.shape}")
        if isinstance(noise, jax.core.Tracer):
            return
        noise = noise.item()
    check_level(noise)
