"""A method whose points are random: noise as a function of seed and step, around any base."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import random_state
from .batchnorm import RunningStatistics, check_policy
from .buckets import Bucket, make_buckets
from .checks import check_choice, check_chosen, check_count, check_level, check_seed
from .halves import halves
from .noise import Distribution, Fill, as_distribution, mix
from .parallel import agree, check_model_known, find_place, is_sharded, local, reshard, sharded_modules, unwrap_ddp
from .points import Damping, DeviceSeed, FusedTwoPoints, Level, SignedMoves, TwoPoints, two_points
from .selection import default_selection, magnitudes, trainable
from .walk import Point, Walk
from .wrapper import Loss, Wrapper, capturing


class Noisy(Wrapper):
    """What S-SGD and the other methods with weight noise have in common. A method says which signs a batch takes."""

    own_keys = ("noise", "noise_seed", "noise_step")
    not_copied = (*Wrapper.not_copied, "_two_points", "_signature", "_generators", "_in_graphs", "_magnitudes")
    every_tensor = False  # True where biases and the like get noise too
    flat_aliases = True  # False where a method needs the tensors in the shape of their gradients
    _ranks_here = 1  # data parallel ranks that this process stands for
    _turn = 0  # whose batch the last walk was
    _two_points: TwoPoints | None
    _signature: list[tuple[int, int, torch.Size, int]]
    _generators: dict[Any, torch.Generator]
    _in_graphs: list[TwoPoints]
    _magnitudes: set[int] | None

    def __init__(
        self,
        base: Optimizer,
        noise: Level,
        *,
        distribution: str | Distribution | Fill,
        model: nn.Module | None = None,
        perturb: Iterable[Tensor] | None = None,
        bn_stats: str = "both",
        rng: str = "independent",
        per_rank: bool | None = None,
        seed: int | None = None,
        nonfinite: str = "step",
        foreach: bool | None = None,
        mirror: bool = False,
    ) -> None:
        check_level(noise)
        check_policy(bn_stats, model)
        check_choice("rng", rng, ("independent", "same"))
        self.distribution = as_distribution(distribution)
        self.bn_stats = bn_stats
        self.rng = rng
        self.foreach = foreach is not False
        self._perturb = None if perturb is None else list(perturb)
        self._mirror = mirror
        self._per_rank = per_rank
        self._seed_given = seed is not None
        own = {"noise": noise, "noise_seed": check_seed(seed), "noise_step": 0}
        loaded = any("noise_seed" in group for group in getattr(base, "param_groups", ()))
        super().__init__(base, own, model, nonfinite)
        if loaded:
            warnings.warn(
                "the base's groups have the noise of an S-SGD checkpoint, which goes on instead of the level and seed "
                "given here: wrap the base first, then load_state_dict()",
                stacklevel=3,
            )

    def attach(self, model: nn.Module) -> None:
        super().attach(model)
        self._magnitudes = None
        self._settle()

    def stand_for(self, ranks: int) -> None:
        """Be so many data parallel ranks in one process: a step's batches see, in turn, the noise each would draw."""
        check_count("ranks", ranks)
        self._refuse_inside("stand_for()")
        self._ranks_here = ranks

    @property
    def selected(self) -> list[Tensor]:
        """The tensors that get noise where their group's level is above 0."""
        if self._perturb is None:
            return self._default_selection()
        return [p for p in self._perturb if p.requires_grad]

    # --- for logging ------------------------------------------------------------------------------------------------

    def realised_ratios(self) -> list[Tensor]:
        """``||n|| / ||w||`` of each tensor that gets noise: at the point entered, else for the next step's noise."""
        if self._walk is not None and self._walk.inside:
            return self._moving_weights().ratios()
        with self._excursion() as weights:
            return weights.ratios()

    @torch.no_grad()
    def symmetric_excess(self, loss: Callable[[], Loss]) -> Loss:
        """``(L(w+n) + L(w−n)) / 2 − L(w)`` for the next step's noise: about ½ nᵀHn, the sharpness that S-SGD sees.

        ``loss()`` runs the forward pass three times with the same dropout masks and moves nothing: no weight, no
        gradient, no random stream, and with ``model`` given no running statistic.
        """
        statistics = RunningStatistics(self.model, "none")
        statistics.begin()
        random = random_state.snapshot({p.device for p in self._parameters()})
        sharded = sharded_modules(self.model)

        def again() -> Loss:
            random_state.put_back(random)
            statistics.undo()
            reshard(sharded)
            return loss()

        try:
            with self._excursion() as weights:
                plus = again()
                weights.rest()
                clean = again()
                weights.minus()
                minus = again()
        finally:
            random_state.put_back(random)
            statistics.undo()
        return (plus + minus) / 2 - clean

    # --- CUDA graphs ------------------------------------------------------------------------------------------------

    def register_graph(self, graph: torch.cuda.CUDAGraph) -> None:
        """Before capture: let ``graph`` draw this optimizer's noise. Call :meth:`before_replay` before each replay."""
        weights = self._moving_weights()
        self._seed_generators(weights)
        for rank in range(self._ranks_here):
            for bucket in weights.buckets:
                generator = self._generator(weights, bucket, rank)
                if not isinstance(generator, DeviceSeed):
                    graph.register_generator_state(generator)
        self._in_graphs.append(weights)  # a graph holds addresses, not references

    def before_replay(self) -> None:
        """Give the graph's next replay the noise of the next step: on the stream that replays it."""
        self._seed_generators(self._moving_weights())
        self._advance()

    # --- for the methods --------------------------------------------------------------------------------------------

    def _over(self, signs: Sequence[int], shares: Sequence[float] | None = None) -> Walk:
        """A walk with these signs over the batch; at level 0 the clean point alone."""
        weights = self._moving_weights()
        if not weights.buckets:
            signs, shares = [0], None
        return self._begin(lambda: self._make_walk(weights, signs, shares or [1 / len(signs)] * len(signs)))

    def _over_halves(
        self, batch: tuple[Any, ...], signs: Sequence[int], shares: Sequence[float] | None = None
    ) -> Iterator[tuple[Point, Any]]:
        """One sign for the first half of the batch, one for the other; at level 0 the batch as it is."""
        whole = batch[0] if len(batch) == 1 else batch
        if not self._noisy():
            yield from zip(self._over([0]), (whole,), strict=True)
            return
        (first, first_share), (second, second_share) = halves(whole)
        yield from zip(self._over(signs, shares or [first_share, second_share]), (first, second), strict=True)

    def _default_selection(self) -> list[Tensor]:
        if self.every_tensor:
            return trainable(self._parameters())
        if self._magnitudes is None:  # found once: looking at their values would make the host wait at every step
            self._magnitudes = magnitudes(self._parameters(), self.model)
        return default_selection(self._parameters(), self._magnitudes)

    def _plus(self, weights: TwoPoints, draw: int = 0) -> None:
        """w → w + n, with a noise of this step for each number ``draw``."""
        weights.plus(*self._levels_and_generators(weights), draw)

    def _levels_and_generators(self, weights: TwoPoints) -> tuple[list[Level], list[torch.Generator]]:
        """The level of each parameter group, and what this step's noise is drawn from for each bucket."""
        return self._levels(), [self._generator(weights, bucket, self._turn) for bucket in weights.buckets]

    def _damping(self) -> Damping | None:
        """What a parameter's noise is divided by, if anything."""
        return None

    # --- below here: how --------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        check_level(param_group.get("noise", 0.0))
        for group in self.param_groups[:1]:  # seed and counter are the same in all groups
            param_group.update(noise_seed=group["noise_seed"], noise_step=group["noise_step"])
        super().add_param_group(param_group)
        self._magnitudes = None

    def _settle(self) -> None:
        """What depends on how the model is wrapped: which tensors get noise, and this process's share in it."""
        self._check_selection()
        parameters = self._parameters()
        self._place = find_place(self.model, parameters, self._mirror, self._per_rank)
        ddp = unwrap_ddp(self.model)
        if not self._seed_given and (ddp or any(map(is_sharded, parameters))):
            self._set_everywhere("noise_seed", agree(self.param_groups[0]["noise_seed"], ddp, parameters))

    def _clean(self) -> bool:
        return not self._noisy()

    def _make_walk(self, weights: TwoPoints, signs: Sequence[int], shares: Sequence[float]) -> Walk:
        first = self._walk is None
        self._turn = 0 if first else (self._turn + 1) % self._ranks_here
        if not capturing():
            self._seed_generators(weights)
        elif self._turn == 0 and not first:
            raise RuntimeError("a CUDA graph holds one batch a step: capture step() with it, or accumulate eagerly")
        elif self.rng == "same":
            raise RuntimeError('rng="same" puts random states back on the host, which a CUDA graph cannot hold')
        return Walk(
            moves=SignedMoves(weights, signs, self._plus),
            shares=shares,
            parameters=self._parameters(),
            model=self.model,
            statistics=RunningStatistics(self.model, self.bn_stats if any(signs) else "both"),
            same_rng=self.rng == "same",
        )

    @contextmanager
    def _excursion(self) -> Iterator[TwoPoints]:
        """A look at w + n outside training, with the noise of the next step."""
        self._refuse_inside("this")
        if self._walk is not None and self._walk.half_way:
            raise RuntimeError(
                "this between two points would change the noise of those to come: call it after the last"
            )
        weights = self._moving_weights()
        if not weights.buckets:
            raise RuntimeError("every noise level is 0, so there is no point beside w to look at")
        if weights.kept:
            raise RuntimeError("this inside the loss of symmetric_excess() would see perturbed weights: call it after")
        self._seed_generators(weights)
        sharded = sharded_modules(self.model)
        reshard(sharded)
        try:
            self._plus(weights)
            yield weights
        finally:
            weights.restore()
            reshard(sharded)

    def _moving_weights(self) -> TwoPoints:
        """The weights to move, as flat aliases; made anew when a tensor, its place or the choice has changed."""
        self._levels()  # checks them
        index = {id(p): i for i, group in enumerate(self.param_groups) for p in group["params"]}
        active = self._active()
        chosen = [(p, index[id(p)]) for p in self.selected if active[index[id(p)]]]
        signature = [(id(p), local(p).data_ptr(), p.shape, group) for p, group in chosen]
        if self._two_points is None or signature != self._signature:
            check_model_known(self.model, self.selected)
            flat = self.flat_aliases and self.distribution.unit != "filter"
            rest = make_buckets(chosen, flat), self.distribution, self.foreach
            self._two_points = two_points(*rest) if flat else TwoPoints(*rest, self._damping())
            self._signature = signature
        return self._two_points

    def _noisy(self) -> bool:
        """Whether any tensor gets noise: chosen, trainable, and of a level above 0."""
        return bool(self._moving_weights().buckets)

    def _active(self) -> list[bool]:
        """Which groups get noise; a tensor is never looked at, and so never taken for zero."""
        return [isinstance(group["noise"], Tensor) or group["noise"] > 0 for group in self.param_groups]

    def _generator(self, weights: TwoPoints, bucket: Bucket, rank: int = 0) -> torch.Generator:
        """That of one of the ranks this process stands for."""
        kind = DeviceSeed if isinstance(weights, FusedTwoPoints) else torch.Generator
        if (kind, bucket.key, rank) not in self._generators:
            self._generators[kind, bucket.key, rank] = kind(bucket.tensors[0].device)
        return self._generators[kind, bucket.key, rank]

    def _seed_generators(self, weights: TwoPoints) -> None:
        """Noise is a function of seed, step, rank and shard: all batches of one step see the same."""
        group = self.param_groups[0]
        for index, bucket in enumerate(weights.buckets):
            shard = [] if bucket.sharding is None else bucket.sharding.coordinates
            for rank in range(self._ranks_here):
                place = self._place.key * self._ranks_here + rank
                numbers = group["noise_seed"], group["noise_step"], place, index, *shard
                self._generator(weights, bucket, rank).manual_seed(mix(*numbers))

    def _end_step(self) -> None:
        if self._walk is not None and not capturing():
            self._advance()
        super()._end_step()

    def _advance(self) -> None:
        self._set_everywhere("noise_step", self.param_groups[0]["noise_step"] + 1)

    def _set_everywhere(self, key: str, value: int) -> None:
        for group in self.param_groups:
            group[key] = value

    def _reset(self) -> None:
        super()._reset()
        self._two_points = None
        self._signature = []
        self._generators = {}
        self._in_graphs = []
        self._magnitudes = None

    def _check_selection(self) -> None:
        check_chosen(self._perturb, self._parameters())
        if not self.selected:
            raise ValueError(
                "nothing to perturb: no trainable tensor of two or more dimensions was found; "
                "choose some with perturb=select(model, ...)"
            )
