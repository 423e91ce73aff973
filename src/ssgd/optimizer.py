"""SSGD: any torch optimizer, with gradients taken at w + n and w − n."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils import _pytree as pytree

from .core.checks import check_choice, check_count
from .core.noise import Distribution, Fill
from .core.noisy import Noisy
from .core.one_pass import OnePass
from .core.parallel import is_sharded
from .core.points import Level
from .core.walk import Point


class SSGD(Noisy):
    """Symmetrical SGD (Sung et al., 2020) around an optimizer instance.

    Each step averages the gradients at w + n and w − n, where the noise n has in every selected weight tensor the norm
    ``noise * ||w||``; ``base`` then updates w. ::

        opt = SSGD(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), noise=0.2)

        for point in opt.points():              # +n, then −n
            with point:
                loss_fn(model(x), y).backward()
        opt.step()
        opt.zero_grad()

    ``opt.step(closure)`` does the same with a closure; ``opt.split(x, y)`` takes +n on one half of the batch and −n on
    the other, for the work of plain SGD. A level of 0 is the base optimizer itself, bitwise and at its cost.

    Args:
        base: the optimizer that updates w. Its parameter groups and state are shared, not copied.
        noise: the level, ``||n|| / ||w||`` in each tensor (for ``distribution="uniform"`` the peak in units of the
            tensor's rms). It is the key ``"noise"`` of every parameter group and may be changed there at any time; a
            0-dim tensor can be changed under a CUDA graph, and is then never taken for zero.
        model: the module trained, as it is called: the DDP or FSDP module. Needed for DDP's single all-reduce, for
            sharded parameters, for ``bn_stats``, and where another optimizer updates a part of it.
        mode: ``"both"``: every process takes both signs; ``"mirror"``: even ranks take +n, odd ranks −n.
        distribution: ``"sphere"``, ``"sign"``, ``"uniform"``, a :class:`ssgd.Distribution`, or a function
            ``fill(z, generator)``.
        perturb: the tensors that get noise, such as :func:`ssgd.select` returns. By default every trainable tensor of
            two or more dimensions in the base's groups, without weight-norm's magnitudes, which only ``model`` tells
            for sure.
        pairs: noise pairs a step.
        bn_stats: what the passes do to batch-norm's running statistics: ``"both"``, ``"once"``, ``"first"``,
            ``"none"``.
        rng: ``"independent"`` dropout masks in the passes, or the ``"same"``.
        per_rank: whether each data parallel rank draws noise of its own. None: under DDP, in mode ``"both"``.
        seed: of the noise. None: that of torch's global generator, which is read, not drawn from. Give each of
            several instances one of its own, or their noise is alike.
        nonfinite: what to do with a gradient that is not finite: ``"step"`` all the same, ``"skip"`` or ``"raise"``.
        foreach: False to move the weights in loops instead of by torch's foreach operations.
    """

    not_copied = (*Noisy.not_copied, "_one_pass")
    _one_pass: tuple[Any, OnePass] | None = None

    def __init__(
        self,
        base: Optimizer,
        noise: Level,
        *,
        model: nn.Module | None = None,
        mode: str = "both",
        distribution: str | Distribution | Fill = "sphere",
        perturb: Iterable[Tensor] | None = None,
        pairs: int = 1,
        bn_stats: str = "both",
        rng: str = "independent",
        per_rank: bool | None = None,
        seed: int | None = None,
        nonfinite: str = "step",
        foreach: bool | None = None,
    ) -> None:
        check_choice("mode", mode, ("both", "mirror"))
        check_count("pairs", pairs)
        self.mode = mode
        self.pairs = pairs
        super().__init__(
            base,
            noise,
            model=model,
            distribution=distribution,
            perturb=perturb,
            bn_stats=bn_stats,
            rng=rng,
            per_rank=per_rank,
            seed=seed,
            nonfinite=nonfinite,
            foreach=foreach,
            mirror=mode == "mirror",
        )

    def points(self) -> Iterator[Point]:
        """The points to take this batch's gradient at; run forward and backward inside ``with point:``."""
        signs = [1, -1] if self.mode == "both" else [self._place.sign]
        yield from self._over(signs * self.pairs)

    def split(self, *batch: Any) -> Iterator[tuple[Point, Any]]:
        """+n with the first half of the batch, −n with the other: ``(point, half)`` twice.

        The batch is any nested structure of tensors with one entry a sample. Each half's gradient is weighed by its
        share of the samples, as the mean loss of the whole batch would.
        """
        if self.pairs > 1:
            raise ValueError("split() has two halves for one pair of signs: use pairs=1, or points()")
        if self.mode == "mirror":
            raise ValueError('split() takes both signs on every rank: use mode="both", or points()')
        yield from self._over_halves(batch, [1, -1])

    @contextmanager
    def one_pass(
        self, *, batch_norm: str = "halves", signs: Any = None, dim: int = 0, strict: bool = False
    ) -> Iterator[None]:
        """Forward and backward inside ``with opt.one_pass():`` are one of each: half of the samples sees w + n. ::

            with opt.one_pass():
                loss_fn(model(x), y).backward()

        The first half of the samples is computed with w + n and the rest with w − n, inside the layers; the weights
        are not written to. The first forward with arguments of new ranks is preceded by a dry run over five samples.
        ``model=`` must have been given. Several blocks before a step(), and several forwards in a block, see the same n.

        Args:
            batch_norm: ``"halves"``: each half is normalised by its own statistics, as with split(); ``"batch"``: by
                those of the whole batch, which see both points.
            signs: +1 or −1 for each sample, in place of halves. It costs two gathers a layer.
            dim: the dimension of the model's arguments that has the samples.
            strict: whether a weight that cannot be served is an error, rather than left without noise with a warning.
                It is one anyway where the weights were chosen by ``perturb=``.
        """
        check_choice("batch_norm", batch_norm, ("halves", "batch"))
        if self.pairs > 1:
            raise ValueError("one_pass() has two halves for one pair of signs: use pairs=1, or points()")
        if self.mode == "mirror":
            raise ValueError('one_pass() takes both signs on every rank: use mode="both", or points()')
        if self.rng == "same":
            raise ValueError('one_pass() draws one dropout mask for the batch: use rng="independent", or split()')
        engine = self._engine()
        walk = self._over([0] if engine is None else [1, -1])
        try:
            if engine is not None:
                weights = self._moving_weights()
                engine.set_values(*weights.both(*self._levels_and_generators(weights)))
                engine.batch_norm, engine.policy, engine.dim, engine.strict = batch_norm, self.bn_stats, dim, strict
                engine.open(signs)
            walk.inside = True
            try:
                yield
            finally:
                if engine is not None:
                    engine.close()
            if engine is not None:
                engine.check_gradients()
        except BaseException:
            walk.abandon()
            raise
        finally:
            if engine is not None and engine.out:
                self.param_groups[0]["without_noise"] = sorted(engine.out)
        walk.inside = False
        walk.done = len(walk.points)

    def dry_run(self, call: Callable[..., Any], *args: Any, dim: int = 0, **kwargs: Any) -> dict[str, str]:
        """How one_pass() serves each weight: ``"fast"``, ``"pair"``, ``"refused: …"`` or ``"not used"``.

        ``call(*args, **kwargs)`` is the model, or a function that calls it and what else uses its weights, such as the
        loss; one_pass() does the same by itself for the model alone. It changes nothing. Under DDP, every rank calls it.
        """
        self._refuse_inside("dry_run()")
        engine = self._engine()
        if engine is None:
            return {}
        engine.dim, engine.strict = dim, False
        engine.open()
        try:
            return engine.dry_run(call, args, kwargs)
        finally:
            engine.close()

    def repeated(self, *batch: Any) -> Any:
        """The batch twice, so that one_pass() takes every sample at w + n and at w − n, as points() does.

        At level 0 the batch as it is. The batch is any nested structure of tensors with one entry a sample.
        """
        whole = batch[0] if len(batch) == 1 else batch
        if not self._noisy():
            return whole
        return pytree.tree_map(lambda a: torch.cat([a, a]) if isinstance(a, Tensor) and a.dim() else a, whole)

    def _engine(self) -> OnePass | None:
        """What one_pass() keeps, made anew when the weights with noise, or their places, have changed; None at level 0."""
        active = {
            id(p) for group, on in zip(self.param_groups, self._active(), strict=True) if on for p in group["params"]
        }
        weights = [p for p in self.selected if id(p) in active]
        if not weights:
            return None
        if self.model is None:
            raise ValueError("one_pass() needs the model: pass model=...")
        key = [id(self.model), *((id(p), p.dtype, p.device, p.shape) for p in weights)]
        if self._one_pass is None or self._one_pass[0] != key:
            self._one_pass = key, OnePass(self.model, weights, chosen=self._perturb is not None)
        return self._one_pass[1]

    @torch.no_grad()
    def both_points(self) -> tuple[dict[Tensor, Tensor], dict[Tensor, Tensor]]:
        """w + n and w − n as tensors of their own, by parameter, for passes that run at the same time.

        In place of points(): w stays, the caller leaves the mean gradient in ``p.grad``, and step() follows.
        """
        in_turn = self.bn_stats != "both" or self.rng == "same"  # these reach from one pass to the next
        one_pair = self.pairs == 1 and self.mode == "both" and self._noisy()
        if in_turn or not one_pair or any(map(is_sharded, self.selected)):
            raise ValueError(
                'both_points() needs whole tensors, one pair, mode="both", bn_stats="both", rng="independent" and '
                "a level above 0: use points()"
            )
        walk = self._over([1, -1])
        weights = self._moving_weights()
        found = weights.both(*self._levels_and_generators(weights))
        walk.done = len(walk.points)
        return found

    def __repr__(self) -> str:
        options = f"mode={self.mode!r}, distribution={self.distribution.name!r}, pairs={self.pairs}"
        more = f"bn_stats={self.bn_stats!r}, rng={self.rng!r}, nonfinite={self.nonfinite!r}"
        return f"SSGD({options}, {more}) around {self.base!r}"
