"""The points of every method whose points are random: noise as a function of seed, step, rank, draw and tensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from . import random_state
from .batchnorm import RunningStatistics
from .checks import check_chosen, check_count, check_level, check_movable, check_seed
from .moving import Chosen
from .noise import Distribution, Fill, as_distribution
from .parallel import agree, check_sharded, find_place, is_sharded, local, reshard, sharded_modules, unwrap_ddp
from .passes import Route, Stage
from .point_optimizer import Loss, PointOptimizer, Rule
from .selection import default_selection, magnitudes, trainable
from .weights import Level, NoisyWeights, Values

Draws = Sequence[tuple[int, int]]  # the sign and the number of the draw of each point; (0, 0) is w itself
NOTHING = (
    "nothing to perturb: no trainable tensor of two or more dimensions was found; choose some with "
    "perturb=select(model, ...)"
)


class NoisyOptimizer(PointOptimizer):
    """A PointOptimizer whose points are random, with what only noise needs: a look at it, CUDA graphs and ranks."""

    rule: NoisePoints

    @torch.no_grad()
    def both_points(
        self, out: Sequence[Mapping[Tensor, Tensor]] | None = None
    ) -> tuple[dict[Tensor, Tensor], dict[Tensor, Tensor]]:
        """Return w + n and w − n as tensors of their own, by parameter, for passes that run at the same time.

        In place of points(): w stays, the caller leaves the mean gradient in ``p.grad``, and step() follows. ``out``:
        two mappings from each tensor of ``selected`` to one of its shape, dtype, device and strides, to write to.
        """
        in_turn = self.bn_stats != "both" or self.rng == "same"  # these reach from one pass to the next
        one_pair = list(self.rule.points) == [(1, 0), (-1, 0)] and not self.rule.is_off(self)
        if in_turn or not one_pair or any(map(is_sharded, self.selected)):
            raise ValueError(
                'both_points() needs whole tensors, one pair, mode="both", bn_stats="both", rng="independent" and '
                "a level above 0: use points()"
            )
        for p, value in [(p, values[p]) for values in out or () for p in self.selected]:
            if (value.shape, value.dtype, value.device, value.stride()) != (p.shape, p.dtype, p.device, p.stride()):
                raise ValueError("a tensor of out= must have its parameter's shape, dtype, device and strides")
        self._begin(None).finish()
        return self.rule.both(self, out)

    # --- for logging ------------------------------------------------------------------------------------------------

    def realised_ratios(self) -> list[Tensor]:
        """``||n|| / ||w||`` of each tensor that gets noise: at the point entered, else for the next step's noise."""
        if self._stage is Stage.INSIDE:
            return self.rule.weights(self).ratios()
        with self._looking() as move:
            return move(1).ratios()

    @torch.no_grad()
    def symmetric_excess(self, loss: Callable[[], Loss]) -> Loss:
        """``(L(w+n) + L(w−n)) / 2 − L(w)`` for the next step's noise: about ½ nᵀHn, the sharpness that S-SGD sees.

        ``loss()`` runs the forward pass three times with the same dropout masks and moves nothing: no weight, no
        gradient, no random stream, and with ``model`` given no running statistic.
        """
        statistics = RunningStatistics(self.model, "none")
        statistics.begin()
        random = random_state.snapshot({p.device for p in self.all_parameters})
        try:
            with self._looking() as move:
                losses = []
                for sign in (1, 0, -1):
                    move(sign)
                    random_state.put_back(random)
                    statistics.undo()
                    losses.append(loss())
        finally:
            random_state.put_back(random)
            statistics.undo()
        plus, clean, minus = losses
        return (plus + minus) / 2 - clean

    @contextmanager
    def _looking(self) -> Iterator[Callable[[int], NoisyWeights]]:
        """Yield a function that moves the weights to w + sign · n, with the next step's noise, outside training."""
        self._refuse_inside("this")
        if self._stage is Stage.BETWEEN:
            raise RuntimeError(
                "this between two points would change the noise of those to come: call it after the last"
            )
        weights = self.rule.weights(self)
        if not weights.buckets:
            raise RuntimeError("every noise level is 0, so there is no point beside w to look at")
        if weights.kept:
            raise RuntimeError("this inside the loss of symmetric_excess() would see perturbed weights: call it after")
        sharded = sharded_modules(self.model)

        def move(sign: int) -> NoisyWeights:
            weights.restore()
            reshard(sharded)
            if sign:
                weights.move(sign, self.rule.numbers(self, 0), 0, self._levels(), again=True)
            return weights

        try:
            yield move
        finally:
            move(0).release()

    # --- CUDA graphs, and several ranks in one process --------------------------------------------------------------

    def register_graph(self, graph: torch.cuda.CUDAGraph) -> None:
        """Before capture: let ``graph`` draw this optimizer's noise. Call :meth:`before_replay` before each replay."""
        weights = self.rule.weights(self)
        self.rule.seed(self, weights)
        weights.register(graph)
        self.rule.in_graphs = tuple(dict.fromkeys([*self.rule.in_graphs, weights]))

    def before_replay(self) -> None:
        """Give the graph's next replay the noise of the next step: on the stream that replays it."""
        for weights in dict.fromkeys([*self.rule.in_graphs, self.rule.weights(self)]):
            self.rule.seed(self, weights)
        self._count_step()

    def as_ranks(self, ranks: int) -> None:
        """Take the place of so many data parallel ranks: a step's batches see, in turn, the noise each would draw."""
        check_count("ranks", ranks)
        self._refuse_inside("as_ranks()")
        self.rule.ranks_here = ranks


class NoisePoints(Rule):
    """Points w + sign · n, with noise n drawn afresh for every step.

    Args:
        noise: the level.
        points: of points(), a sign and a draw each. Two points of one draw have the same n.
        halves: the same for the halves of split(); None where there is no split(), for the reason ``no_split``.
        shares: of each point's gradient in the mean, alike by default; those of halves are their shares of the samples.
        options: ``perturb``, ``per_rank`` and ``seed`` of :class:`ssgd.SSGD` are taken out of it.
        mirror: odd ranks take every sign the other way round.
        every_tensor: biases and the like get noise too.
    """

    saved_as = "noise_stream"
    counts_steps_in = "noise_step"
    off_without_level = True  # False where points are taken at level 0 too
    _weights: NoisyWeights | None = None
    _found_for: Sequence[tuple[Any, ...]] = ()  # what they were found for
    in_graphs: tuple[NoisyWeights, ...] = ()  # held here, since a graph holds addresses, not references

    def __init__(
        self,
        noise: Level,
        points: Draws,
        options: dict[str, Any],
        *,
        distribution: str | Distribution | Fill = "sphere",
        halves: Draws | None = None,
        no_split: str | None = None,
        shares: Sequence[float] | None = None,
        mirror: bool = False,
        every_tensor: bool = False,
    ) -> None:
        check_level(noise)
        perturb, seed, self.per_rank = (options.pop(key, None) for key in ("perturb", "seed", "per_rank"))
        self.distribution = as_distribution(distribution)
        self.points, self.halves, self.shares = points, halves, shares
        self.no_split = no_split if halves is None else None
        self.mirror, self.every_tensor = mirror, every_tensor
        self.perturb = None if perturb is None else list(perturb)
        self.seed_given = seed is not None
        self.keys = {"noise": noise, "noise_seed": check_seed(seed), "noise_step": 0}
        self.ranks_here = 1

    # --- what a rule is ---------------------------------------------------------------------------------------------

    def check(self, opt: PointOptimizer) -> None:
        parameters = opt.all_parameters
        check_sharded(opt.model, parameters)
        check_chosen(self.perturb, parameters)
        self._weights = None
        self._magnitudes = magnitudes(parameters, opt.model)  # which looks at values: the host would wait at every step
        if any(map(self._moves, opt.base.param_groups)) and not self.selected(opt):
            raise ValueError(NOTHING)
        check_movable(self.selected(opt))
        self.first_sign, self.rank = find_place(opt.model, parameters, self.mirror, self.per_rank)
        ddp = unwrap_ddp(opt.model)
        if not self.seed_given and (ddp or any(map(is_sharded, parameters))):
            seed = agree(opt.base.param_groups[0]["noise_seed"], ddp, parameters)
            for group in opt.base.param_groups:
                group["noise_seed"] = seed

    def selected(self, opt: PointOptimizer) -> list[Tensor]:
        if self.perturb is not None:
            return self.perturb
        parameters = opt.all_parameters
        return trainable(parameters) if self.every_tensor else default_selection(parameters, self._magnitudes)

    def is_off(self, opt: PointOptimizer) -> bool:
        return not self.weights(opt).buckets

    def route(self, opt: PointOptimizer, halve: Callable[[], Sequence[float]] | None) -> Route:
        weights = self.weights(opt)
        if not weights.buckets:
            return Route([0])
        if opt.batches >= self.ranks_here and random_state.capturing():
            raise RuntimeError("a CUDA graph holds one batch a step: capture step() with it, or accumulate eagerly")
        if halve is None or self.halves is None:
            return NoiseRoute(self, opt, weights, self.points, self.shares)
        shares = halve()
        return NoiseRoute(self, opt, weights, self.halves, self.shares or shares)

    def state(self, opt: PointOptimizer) -> str | None:
        weights = self.weights(opt)
        return weights.stream if weights.buckets else None

    def load(self, opt: PointOptimizer, state: str | None) -> None:
        here = self.state(opt)
        if state and here and state != here:
            warnings.warn(
                f"the checkpoint's noise is of the stream {state!r}, and here it is drawn from {here!r}, as with and "
                "without Triton: training goes on with other noise than it would have had",
                stacklevel=3,
            )

    # --- the noise --------------------------------------------------------------------------------------------------

    def weights(self, opt: PointOptimizer) -> NoisyWeights:
        """Return the weights that move, found again when a tensor, its memory or the choice has changed."""
        self.levels = opt._levels()
        index: dict[int, tuple[int, int]] = {}  # the group and the position of each parameter
        moving = []  # groups
        for number, group in enumerate(opt.base.param_groups):
            if self._moves(group):
                moving.append(number)
            for p in group["params"]:
                index.setdefault(id(p), (number, len(index)))
        selected = self.selected(opt) if moving else []
        if moving and not selected and not any(p.dim() > 1 for p in opt.all_parameters):  # else they are frozen for now
            raise ValueError(NOTHING)
        chosen, found_for = [], []
        for p in selected:
            number, position = index[id(p)]
            if number in moving:
                chosen.append(Chosen(p, number, position))
                here = p if type(p) is nn.Parameter else local(p)
                found_for.append((id(p), here.data_ptr(), p.shape, number))
        if self._weights is None or found_for != self._found_for:
            check_sharded(opt.model, selected)
            self._weights, self._found_for = self.make_weights(opt, chosen), found_for
        return self._weights

    def make_weights(self, opt: PointOptimizer, chosen: list[Chosen]) -> NoisyWeights:
        """Return what moves these weights: kernels where there are some for them, else torch's operations."""
        kind = NoisyWeights
        if chosen:
            from ..kernels import noise_kernels

            kind = noise_kernels(chosen, self.distribution) or kind
        return kind(chosen, self.distribution)

    def numbers(self, opt: PointOptimizer, turn: int) -> tuple[int, int, int]:
        """Return seed, step and rank of a batch's noise; ``turn``: for which of the ranks that are taken here."""
        group = opt.base.param_groups[0]
        return group["noise_seed"], group["noise_step"], self.rank * self.ranks_here + turn

    def both(self, opt: PointOptimizer, out: Sequence[Mapping[Tensor, Tensor]] | None) -> tuple[Values, Values]:
        """Return w + n and w − n of this batch, by parameter; its passes have begun."""
        return self.weights(opt).both(self.numbers(opt, (opt.batches - 1) % self.ranks_here), opt._levels(), out)

    def seed(self, opt: PointOptimizer, weights: NoisyWeights) -> None:
        """Seed what draws this step's noise, for a CUDA graph."""
        draws = 1 + max(draw for _, draw in [*self.points, *(self.halves or [])])
        for turn in range(self.ranks_here):
            weights.seed(self.numbers(opt, turn), draws)

    def _moves(self, group: dict[str, Any]) -> bool:
        return isinstance(group["noise"], Tensor) or group["noise"] > 0 or not self.off_without_level

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a copy finds for itself."""
        return {k: v for k, v in self.__dict__.items() if k not in ("_weights", "_found_for", "in_graphs")}


class NoiseRoute(Route):
    """w + sign · n, for a sign and a draw at each point."""

    weights: NoisyWeights

    def __init__(
        self,
        rule: NoisePoints,
        opt: PointOptimizer,
        weights: NoisyWeights,
        draws: Draws,
        shares: Sequence[float] | None,
    ) -> None:
        super().__init__([sign * rule.first_sign for sign, _ in draws], shares, weights)
        self.draws = draws
        self._last_use = {draw: index for index, (sign, draw) in enumerate(draws) if sign}  # of each draw's noise
        self.numbers, self.levels = rule.numbers(opt, opt.batches % rule.ranks_here), rule.levels

    def enter(self, index: int) -> None:
        sign, draw = self.signs[index], self.draws[index][1]
        if sign:
            self.weights.move(sign, self.numbers, draw, self.levels, again=index < self._last_use[draw])

    def release(self) -> None:
        self.weights.release()
