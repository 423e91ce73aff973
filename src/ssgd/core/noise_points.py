"""The points of every method whose points are random: noise as a function of seed, step, rank, draw and tensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from . import random_state
from .checks import check_chosen, check_flat, check_level, check_movable, check_seed
from .moving import Chosen
from .noise import Distribution, Fill, as_distribution
from .parallel import agree, check_model_known, find_place, is_sharded, local, reshard, sharded_modules, unwrap_ddp
from .passes import Route, Stage
from .point_optimizer import PointOptimizer, Rule
from .selection import default_selection, magnitudes, trainable
from .weights import Level, NoisyWeights, Values

Draws = Sequence[tuple[int, int]]  # the sign and the number of the draw of each point; (0, 0) is w itself
NOTHING = (
    "nothing to perturb: no trainable tensor of two or more dimensions was found; choose some with "
    "perturb=select(model, ...)"
)
OPTIONS = ("perturb", "per_rank", "seed")


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

    has_noise = True
    saved_as = ("noise_stream",)
    off_without_level = True  # False where points are taken at level 0 too
    _weights: NoisyWeights | None
    _signature: list[tuple[int, int, torch.Size, int]]  # of what they were found for
    _in_graphs: list[NoisyWeights]  # held here, since a graph holds addresses, not references
    _magnitudes: tuple[int, set[int]] | None
    _turn: int  # whose noise the last batch saw

    def __init__(
        self,
        noise: Level,
        points: Draws,
        options: dict[str, Any],
        *,
        distribution: str | Distribution | Fill = "sphere",
        halves: Draws | None = None,
        no_split: str = Rule.no_split,
        shares: Sequence[float] | None = None,
        mirror: bool = False,
        every_tensor: bool = False,
    ) -> None:
        check_level(noise)
        own = {key: options.pop(key, None) for key in OPTIONS}
        self.distribution = as_distribution(distribution)
        self.points, self.halves, self.no_split, self.shares = points, halves, no_split, shares
        self.mirror, self.every_tensor = mirror, every_tensor
        self.perturb = None if own["perturb"] is None else list(own["perturb"])
        self.per_rank = own["per_rank"]
        self.seed_given = own["seed"] is not None
        self.keys = {"noise": noise, "noise_seed": check_seed(own["seed"]), "noise_step": 0}
        self.ranks_here = 1
        self._reset()

    # --- what a rule is ---------------------------------------------------------------------------------------------

    def check(self, opt: PointOptimizer) -> None:
        self._weights = self._magnitudes = None
        check_flat(opt.all_parameters)
        check_chosen(self.perturb, opt.all_parameters)
        self._none_chosen = not self.selected(opt)
        if self._none_chosen and any(map(self._moves, opt.base.param_groups)):
            raise ValueError(NOTHING)
        check_movable(self.selected(opt))
        parameters = opt.all_parameters
        self.place = find_place(opt.model, parameters, self.mirror, self.per_rank)
        ddp = unwrap_ddp(opt.model)
        if not self.seed_given and (ddp or any(map(is_sharded, parameters))):
            self._set_everywhere(opt, "noise_seed", agree(opt.base.param_groups[0]["noise_seed"], ddp, parameters))

    def is_off(self, opt: PointOptimizer) -> bool:
        return not self.weights(opt).buckets

    def can_split(self) -> bool:
        return self.halves is not None

    def route(self, opt: PointOptimizer, halve: Callable[[], Sequence[float]] | None, batch: int) -> Route:
        weights = self.weights(opt)
        if not weights.buckets:
            return Route([0])
        self._turn = batch % self.ranks_here
        if batch >= self.ranks_here and random_state.capturing():
            raise RuntimeError("a CUDA graph holds one batch a step: capture step() with it, or accumulate eagerly")
        if halve is None or self.halves is None:
            return NoiseRoute(self, opt, weights, self.points, self.shares)
        shares = halve()
        return NoiseRoute(self, opt, weights, self.halves, self.shares or shares)

    def selected(self, opt: PointOptimizer) -> list[Tensor]:
        if self.perturb is not None:
            return self.perturb
        parameters = opt.all_parameters
        if self.every_tensor:
            return trainable(parameters)
        if self._magnitudes is None or self._magnitudes[0] != len(parameters):
            # found once: looking at their values would make the host wait at every step
            self._magnitudes = len(parameters), magnitudes(parameters, opt.model)
        return default_selection(parameters, self._magnitudes[1])

    def end_batches(self, opt: PointOptimizer) -> None:
        self._set_everywhere(opt, "noise_step", opt.base.param_groups[0]["noise_step"] + 1)

    def state(self, opt: PointOptimizer) -> dict[str, Any]:
        weights = self.weights(opt)
        return {"noise_stream": weights.stream} if weights.buckets else {}

    def load(self, opt: PointOptimizer, state: Mapping[str, Any]) -> None:
        saved, here = state.get("noise_stream"), self.state(opt).get("noise_stream")
        if saved and here and saved != here:
            warnings.warn(
                f"the checkpoint's noise is of the stream {saved!r}, and here it is drawn from {here!r}, as with and "
                "without Triton: training goes on with other noise than it would have had",
                stacklevel=3,
            )

    # --- the noise --------------------------------------------------------------------------------------------------

    def weights(self, opt: PointOptimizer) -> NoisyWeights:
        """Return the weights that move, found again when a tensor, its memory or the choice has changed."""
        opt._levels()  # checks them
        index: dict[int, tuple[int, int]] = {}  # the group and the position of each parameter
        moving = []  # groups
        for number, group in enumerate(opt.base.param_groups):
            if self._moves(group):
                moving.append(number)
            for p in group["params"]:
                index.setdefault(id(p), (number, len(index)))
        if moving and self._none_chosen and not self.selected(opt):
            raise ValueError(NOTHING)
        chosen, signature = [], []
        for p in self.selected(opt):
            number, position = index[id(p)]
            if number in moving:
                chosen.append(Chosen(p, number, position))
                here = p if type(p) is nn.Parameter else local(p)
                signature.append((id(p), here.data_ptr(), p.shape, number))
        if self._weights is None or signature != self._signature:
            check_model_known(opt.model, self.selected(opt))
            self._weights = self.make_weights(opt, chosen)
            self._signature = signature
        return self._weights

    def numbers(self, opt: PointOptimizer, turn: int | None = None) -> tuple[int, int, int]:
        """Return seed, step and rank of this batch's noise, or of a rank that this process takes the place of."""
        group = opt.base.param_groups[0]
        rank = self.place.key * self.ranks_here + (self._turn if turn is None else turn)
        return group["noise_seed"], group["noise_step"], rank

    def make_weights(self, opt: PointOptimizer, chosen: list[Chosen]) -> NoisyWeights:
        """Return what moves these weights: kernels where there are some for them, else torch's operations."""
        kind = NoisyWeights
        if chosen:
            from ..kernels import noise_kernels

            kind = noise_kernels(chosen, self.distribution) or kind
        return kind(chosen, self.distribution)

    def as_ranks(self, opt: PointOptimizer, ranks: int) -> None:
        self.ranks_here = ranks

    def ratios(self, opt: PointOptimizer) -> list[Tensor]:
        return self.weights(opt).ratios()

    def both(self, opt: PointOptimizer, out: Sequence[Mapping[Tensor, Tensor]] | None) -> tuple[Values, Values]:
        """Return w + n and w − n of this batch, by parameter; its passes have begun."""
        return self.weights(opt).both(self.numbers(opt), opt._levels(), out)

    def register_graph(self, opt: PointOptimizer, graph: torch.cuda.CUDAGraph) -> None:
        weights = self.weights(opt)
        self._seed(opt, weights)
        weights.register(graph)
        if weights not in self._in_graphs:
            self._in_graphs.append(weights)

    def before_replay(self, opt: PointOptimizer) -> None:
        for weights in dict.fromkeys([*self._in_graphs, self.weights(opt)]):
            self._seed(opt, weights)
        self.end_batches(opt)

    @contextmanager
    def looked_at(self, opt: PointOptimizer) -> Iterator[Callable[[int], NoisyWeights]]:
        """Yield a function that moves the weights to w + sign · n, with the next step's noise, outside training."""
        opt._refuse_inside("this")
        if opt._passes is not None and opt._passes.stage is Stage.BETWEEN:
            raise RuntimeError(
                "this between two points would change the noise of those to come: call it after the last"
            )
        weights = self.weights(opt)
        if not weights.buckets:
            raise RuntimeError("every noise level is 0, so there is no point beside w to look at")
        if weights.kept:
            raise RuntimeError("this inside the loss of symmetric_excess() would see perturbed weights: call it after")
        self._turn = 0
        sharded = sharded_modules(opt.model)

        def move(sign: int) -> NoisyWeights:
            weights.restore()
            reshard(sharded)
            if sign:
                weights.move(sign, self.numbers(opt), 0, opt._levels(), again=True)
            return weights

        try:
            yield move
        finally:
            move(0).release()

    # --- below here: how --------------------------------------------------------------------------------------------

    def _moves(self, group: dict[str, Any]) -> bool:
        return isinstance(group["noise"], Tensor) or group["noise"] > 0 or not self.off_without_level

    def _seed(self, opt: PointOptimizer, weights: NoisyWeights) -> None:
        draws = 1 + max(draw for _, draw in [*self.points, *(self.halves or [])])
        for rank in range(self.ranks_here):
            weights.seed(self.numbers(opt, rank), draws)

    def _set_everywhere(self, opt: PointOptimizer, key: str, value: int) -> None:
        for group in opt.base.param_groups:
            group[key] = value

    def _reset(self) -> None:
        self._weights = None
        self._signature = []
        self._in_graphs = []
        self._magnitudes = None
        self._turn = 0

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what a copy finds for itself."""
        caches = ("_weights", "_signature", "_in_graphs", "_magnitudes")
        return {key: value for key, value in self.__dict__.items() if key not in caches}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._reset()
        self.__dict__.update(state)


class NoiseRoute(Route):
    """w + sign · n, for a sign and a draw at each point."""

    def __init__(
        self,
        rule: NoisePoints,
        opt: PointOptimizer,
        weights: NoisyWeights,
        draws: Draws,
        shares: Sequence[float] | None,
    ) -> None:
        turned = rule.place.sign if rule.mirror else 1
        super().__init__([sign * turned for sign, _ in draws], shares, weights)
        self.weights, self.draws = weights, draws
        self.numbers, self.levels = rule.numbers(opt), opt._levels()

    def enter(self, index: int) -> None:
        draw = self.draws[index]
        if draw[0]:
            again = draw[1] in [number for sign, number in self.draws[index + 1 :] if sign]
            self.weights.move(self.signs[index], self.numbers, draw[1], self.levels, again)

    def release(self) -> None:
        self.weights.release()
