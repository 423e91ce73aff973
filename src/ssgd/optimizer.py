"""SSGD: any torch optimizer, with gradients taken at w + n and w − n."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .core import random_state
from .core.batchnorm import POLICIES, RunningStatistics
from .core.buckets import Bucket, make_buckets
from .core.checks import check_choice, check_count, check_level, check_seed
from .core.halves import halves
from .core.noise import Fill, Law, as_law, mix
from .core.parallel import agree, find_place, is_sharded, local, reshard, unwrap_ddp
from .core.points import Level, TwoPoints
from .core.selection import default_selection
from .core.walk import Point, Walk
from .core.wrapper import Loss, Wrapper, capturing


class SSGD(Wrapper):
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
        noise: the level, ``||n|| / ||w||`` in each tensor (for ``law="uniform"`` the peak in units of the tensor's
            rms). It is the key ``"noise"`` of every parameter group and may be changed there at any time; a 0-dim
            tensor can be changed under a CUDA graph, and is then never taken for zero.
        model: the module trained, as it is called: the DDP or FSDP module. Needed for DDP's single all-reduce, for
            sharded parameters and for ``bn_stats``.
        mode: ``"both"``: every process takes both signs; ``"mirror"``: even ranks take +n, odd ranks −n.
        law: ``"sphere"``, ``"sign"``, ``"uniform"``, a :class:`ssgd.Law`, or a function ``fill(z, generator)``.
        perturb: the tensors that get noise, such as :func:`ssgd.select` returns. By default every trainable tensor of
            two or more dimensions in the base's groups, weight-norm's magnitudes left out.
        pairs: noise pairs a step.
        bn_stats: what the passes do to batch-norm's running statistics: ``"both"``, ``"once"``, ``"first"``,
            ``"none"``.
        rng: ``"independent"`` dropout masks in the passes, or the ``"same"``.
        per_rank: whether each data parallel rank draws noise of its own. None: under DDP, in mode ``"both"``.
        seed: of the noise. None: that of torch's global generator, which is read, not drawn from.
        nonfinite: what to do with a gradient that is not finite: ``"step"`` all the same, ``"skip"`` or ``"raise"``.
        foreach: False to use loops instead of torch's foreach operations.
    """

    own_keys = ("noise", "noise_seed", "noise_step")
    not_copied = ("_walk", "_two_points", "_signature", "_generators")
    _two_points: TwoPoints | None
    _signature: list[tuple[int, int, int]]
    _generators: dict[Any, torch.Generator]

    def __init__(
        self,
        base: Optimizer,
        noise: Level,
        *,
        model: nn.Module | None = None,
        mode: str = "both",
        law: str | Law | Fill = "sphere",
        perturb: Iterable[Tensor] | None = None,
        pairs: int = 1,
        bn_stats: str = "both",
        rng: str = "independent",
        per_rank: bool | None = None,
        seed: int | None = None,
        nonfinite: str = "step",
        foreach: bool | None = None,
    ) -> None:
        check_level(noise)
        check_choice("mode", mode, ("both", "mirror"))
        check_count("pairs", pairs)
        check_choice("bn_stats", bn_stats, POLICIES)
        check_choice("rng", rng, ("independent", "same"))
        if bn_stats != "both" and model is None:
            raise ValueError(f"bn_stats={bn_stats!r} needs the model: pass model=...")
        self.mode = mode
        self.law = as_law(law)
        self.pairs = pairs
        self.bn_stats = bn_stats
        self.rng = rng
        self.foreach = foreach is not False
        self._perturb = None if perturb is None else list(perturb)
        super().__init__(base, {"noise": noise, "noise_seed": check_seed(seed), "noise_step": 0}, model, nonfinite)

        self._check_selection()
        self._place = find_place(model, self.selected, mirror=mode == "mirror", per_rank=per_rank)
        if seed is None and (unwrap_ddp(model) or any(map(is_sharded, self.selected))):
            self._set_everywhere("noise_seed", agree(self.defaults["noise_seed"], unwrap_ddp(model)))

    def points(self) -> Iterator[Point]:
        signs = [1, -1] * self.pairs if self.mode == "both" else [self._place.sign] * self.pairs
        yield from self._begin(lambda: self._walk_over(signs if self._noisy() else [0]))

    def split(self, *batch: Any) -> Iterator[tuple[Point, Any]]:
        """+n with the first half of the batch, −n with the other: ``(point, half)`` twice.

        The batch is any nested structure of tensors with one entry a sample. Each half's gradient is weighed by its
        share of the samples, as the mean loss of the whole batch would.
        """
        whole = batch[0] if len(batch) == 1 else batch
        if self.pairs > 1:
            raise ValueError("split() has two halves for one pair of signs: use pairs=1, or points()")
        if self.mode == "mirror":
            raise ValueError('split() takes both signs on every rank: use mode="both", or points()')
        if self._noisy():
            (first, first_share), (second, second_share) = halves(whole)
            walk = self._begin(lambda: self._walk_over([1, -1], [first_share, second_share]))
            yield from zip(walk, (first, second), strict=True)
        else:
            yield from zip(self._begin(lambda: self._walk_over([0])), (whole,), strict=True)

    # --- for logging ------------------------------------------------------------------------------------------------

    @property
    def selected(self) -> list[Tensor]:
        """The tensors that get noise where their group's level is above 0."""
        if self._perturb is None:
            return default_selection(self._parameters())
        return [p for p in self._perturb if p.requires_grad]

    def realised_ratios(self) -> list[Tensor]:
        """``||n|| / ||w||`` of each tensor that gets noise: at the point entered, else for the next step's noise."""
        if self._walk is not None and self._walk.inside and self._walk.weights.away:
            return self._walk.weights.ratios()
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

        def again() -> Loss:
            random_state.put_back(random)
            statistics.undo()
            reshard(self.model)
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

    def __repr__(self) -> str:
        options = f"mode={self.mode!r}, law={self.law.name!r}, pairs={self.pairs}, bn_stats={self.bn_stats!r}"
        return f"SSGD({options}, rng={self.rng!r}, nonfinite={self.nonfinite!r}) around {self.base!r}"

    # --- CUDA graphs ------------------------------------------------------------------------------------------------

    def register_graph(self, graph: torch.cuda.CUDAGraph) -> None:
        """Before capture: let ``graph`` draw this optimizer's noise. Call :meth:`before_replay` before each replay."""
        self._seed_generators()
        for bucket in self._moves().buckets:
            graph.register_generator_state(self._generator(bucket))

    def before_replay(self) -> None:
        """Give the graph's next replay the noise of the next step."""
        self._seed_generators()
        self._advance()

    # --- below here: how --------------------------------------------------------------------------------------------

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        check_level(param_group.get("noise", 0.0))
        for group in self.param_groups[:1]:  # seed and counter are the same in all groups
            param_group.update(noise_seed=group["noise_seed"], noise_step=group["noise_step"])
        super().add_param_group(param_group)

    def _walk_over(self, signs: list[int], shares: list[float] | None = None) -> Walk:
        if not capturing():
            self._seed_generators()
        elif self._walk is not None:
            raise RuntimeError("a CUDA graph holds one batch a step: capture step() with it, or accumulate eagerly")
        elif self.rng == "same":
            raise RuntimeError('rng="same" puts random states back on the host, which a CUDA graph cannot hold')
        return Walk(
            signs=signs,
            shares=shares or [1 / len(signs)] * len(signs),
            weights=self._moves(),
            plus=self._plus,
            parameters=self._parameters(),
            model=self.model,
            statistics=RunningStatistics(self.model, self.bn_stats if any(signs) else "both"),
            same_rng=self.rng == "same",
        )

    @contextmanager
    def _excursion(self) -> Iterator[TwoPoints]:
        """A look at w + n outside training, with the noise of the next step."""
        self._refuse_inside("this")
        if not self._noisy():
            raise RuntimeError("every noise level is 0, so there is no point beside w to look at")
        self._seed_generators()
        reshard(self.model)
        weights = self._moves()
        try:
            self._plus()
            yield weights
        finally:
            weights.restore()
            reshard(self.model)

    def _plus(self) -> None:
        """w → w + n, with the next noise of this step."""
        weights = self._moves()
        levels = [group["noise"] for group in self.param_groups]
        weights.plus(levels, [self._generator(bucket) for bucket in weights.buckets])

    def _moves(self) -> TwoPoints:
        """The weights to move, as flat aliases; made anew when a tensor, its place or the choice has changed."""
        index = {id(p): i for i, group in enumerate(self.param_groups) for p in group["params"]}
        noisy = [isinstance(group["noise"], Tensor) or group["noise"] > 0 for group in self.param_groups]
        chosen = [(p, index[id(p)]) for p in self.selected if noisy[index[id(p)]]]
        signature = [(id(p), local(p).data_ptr(), group) for p, group in chosen]
        if self._two_points is None or signature != self._signature:
            self._two_points = TwoPoints(make_buckets(chosen), self.law, self.foreach)
            self._signature = signature
        return self._two_points

    def _noisy(self) -> bool:
        """Whether any level is above 0."""
        levels = [group["noise"] for group in self.param_groups]
        for level in levels:
            check_level(level)
        return any(isinstance(level, Tensor) or level > 0 for level in levels)

    def _generator(self, bucket: Bucket) -> torch.Generator:
        if bucket.key not in self._generators:
            self._generators[bucket.key] = torch.Generator(bucket.tensors[0].device)
        return self._generators[bucket.key]

    def _seed_generators(self) -> None:
        """Noise is a function of seed, step, rank and shard: all batches of one step see the same."""
        group = self.param_groups[0]
        for index, bucket in enumerate(self._moves().buckets):
            shard = [] if bucket.sharding is None else bucket.sharding.coordinates
            numbers = group["noise_seed"], group["noise_step"], self._place.key, index, *shard
            self._generator(bucket).manual_seed(mix(*numbers))

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

    def _check_selection(self) -> None:
        known = {id(p) for p in self._parameters()}
        if self._perturb is not None and any(id(p) not in known for p in self._perturb):
            raise ValueError("perturb names a tensor that is in none of the base optimizer's parameter groups")
        if not self.selected:
            raise ValueError(
                "nothing to perturb: no trainable tensor of two or more dimensions was found; "
                "choose some with perturb=select(model, ...)"
            )
