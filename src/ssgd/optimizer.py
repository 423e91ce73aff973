"""SSGD: any torch optimizer, with gradients taken at w + n and w − n."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .core import one_pass
from .core.checks import check_choice, check_count
from .core.noise import Distribution, Fill
from .core.noise_points import NoisePoints, NoisyOptimizer
from .core.weights import Level


class SSGD(NoisyOptimizer):
    """Symmetrical SGD (Sung et al., 2020) around an optimizer instance.

    Each step averages the gradients at w + n and w − n, where the noise n has in every selected weight tensor the norm
    ``noise * ||w||``; ``base`` then updates w. ::

        opt = SSGD(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), noise=0.29)

        for point in opt.points():              # +n, then −n
            with point:
                loss_fn(model(x), y).backward()
        opt.step()
        opt.zero_grad()

    ``opt.step(closure)`` does the same with a closure; ``opt.split(x, y)`` takes +n on one half of the batch and −n on
    the other, for the work of plain SGD. A level of 0 is the base optimizer itself, bitwise and at its cost.

    Args:
        base: the optimizer that updates w. Its parameter groups and state are shared, not copied.
        noise: the level, ``||n|| / ||w||`` in each tensor (for ``distribution="uniform"`` its expectation;
            :func:`ssgd.paper_level` converts the paper's unit). It is the key ``"noise"`` of every parameter group and
            may be changed there at any time; a 0-dim tensor can be changed under a CUDA graph, and counts as above 0
            even while it is 0.
        model: the module trained, as it is called: the DDP or FSDP module. Needed for DDP's single all-reduce, for
            sharded parameters, for ``bn_stats``, and where another optimizer updates a part of it.
        mode: ``"both"``: every process takes both signs; ``"mirror"``: even ranks take +n, odd ranks −n.
        distribution: ``"sphere"``, ``"sign"``, ``"uniform"``, ``"gaussian"``, whose level is the deviation of each
            element and no ratio, a :class:`ssgd.Distribution`, or a function ``fill(z, generator)``.
        perturb: the tensors that get noise, trained or frozen, such as :func:`ssgd.select` returns. By default every
            trainable tensor of two or more dimensions in the base's groups, without weight-norm's magnitudes, which
            only ``model`` tells for sure.
        pairs: noise pairs a step.
        bn_stats: which passes move batch-norm's running statistics: ``"both"``, each; ``"once"``, all together as one
            would; ``"first"``, the first alone; ``"none"``. All but ``"both"`` need ``model``.
        rng: ``"independent"`` dropout masks in the passes, or the ``"same"``.
        per_rank: whether each data parallel rank draws noise of its own. None: under DDP in mode ``"both"`` alone.
        seed: of the noise. None: ``torch.initial_seed()``, of the first rank where there are several. Give each of
            several instances one of its own, or their noise is alike.
        nonfinite: what to do with a gradient that is not finite: ``"step"`` all the same, ``"skip"`` or ``"raise"``.
    """

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
    ) -> None:
        check_choice("mode", mode, ("both", "mirror"))
        check_count("pairs", pairs)
        both = [(sign, pair) for pair in range(pairs) for sign in (1, -1)]
        if mode == "mirror":
            points, halves = [(1, pair) for pair in range(pairs)], None  # NoisePoints turns the sign on odd ranks
            no_split = 'split() takes both signs on every rank: use mode="both", or points()'
        else:
            points, halves = both, both if pairs == 1 else None  # with one pair split() has a half for each point
            no_split = "split() has two halves for one pair of signs: use pairs=1, or points()"
        rule = NoisePoints(
            noise,
            points,
            {"perturb": perturb, "per_rank": per_rank, "seed": seed},
            distribution=distribution,
            halves=halves,
            no_split=no_split,
            mirror=mode == "mirror",
        )
        super().__init__(base, rule, model=model, bn_stats=bn_stats, rng=rng, nonfinite=nonfinite)
        self.mode, self.pairs, self.distribution = mode, pairs, rule.distribution

    def one_pass(
        self, *, batch_norm: str = "halves", signs: Any = None, dim: int = 0, strict: bool = False
    ) -> AbstractContextManager[None]:
        """Have half of the samples see w + n and the other half w − n, in one forward and one backward. ::

            with opt.one_pass():
                loss_fn(model(x), y).backward()

        The first half is computed with w + n and the rest with w − n inside the layers; the weights are not written
        to. A dry run over five samples precedes the first forward whose arguments have new ranks. ``model=`` must have
        been given. Several blocks before a step(), and several forwards in a block, see the same n.

        Args:
            batch_norm: ``"halves"``: each half is normalised by its own statistics, as with split(); ``"batch"``: by
                those of the whole batch, which see both points.
            signs: +1 or −1 for each sample, in place of halves. It costs two gathers a layer.
            dim: the dimension of the model's arguments that has the samples.
            strict: whether a weight that cannot be served is an error, rather than left without noise with a warning.
                It is one anyway where the weights were chosen by ``perturb=``.
        """
        return one_pass.block(self, batch_norm, signs, dim, strict)

    def dry_run(self, call: Callable[..., Any], *args: Any, dim: int = 0, **kwargs: Any) -> dict[str, str]:
        """Tell how one_pass() serves each weight: ``"fast"``, ``"pair"``, ``"refused: …"`` or ``"not used"``.

        ``call(*args, **kwargs)`` is the model, or a function that calls it and what else uses its weights, such as the
        loss; one_pass() does the same by itself for the model alone. Under DDP, every rank calls it.
        """
        return one_pass.dry_run(self, call, args, kwargs, dim)

    def repeated(self, *batch: Any, dim: int = 0) -> Any:
        """Return the batch twice over, so that one_pass() takes every sample at w + n and at w − n, as points() does.

        At level 0 it is the batch as it is. The batch is any nested structure of tensors, which have one entry a sample
        in their first dimension, or in the one that one_pass() is given as ``dim``; a tensor of labels has only one.
        """
        whole = batch[0] if len(batch) == 1 else batch
        return whole if self.rule.is_off(self) else one_pass.twice(whole, dim)

    def __repr__(self) -> str:
        options = f"mode={self.mode!r}, distribution={self.distribution.name!r}, pairs={self.pairs}"
        more = f"bn_stats={self.bn_stats!r}, rng={self.rng!r}, nonfinite={self.nonfinite!r}"
        return f"SSGD({options}, {more}) around {self.base!r}"
