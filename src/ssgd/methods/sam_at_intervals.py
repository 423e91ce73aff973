"""SAM at intervals: every tenth step climbs, and those between are the base's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from torch import Tensor, nn
from torch.optim import Optimizer

from ..core.checks import check_count
from ..core.passes import Route
from ..core.point_optimizer import PointOptimizer
from ..core.weights import Level
from .sam import SteepestPoint


class SAMAtIntervals(PointOptimizer):
    """SAM in every ``interval``-th step, and the clean gradient in those between, as MosaicML's Composer has it.

    With ``interval=10`` a step takes 1.1 passes on average; step 10 is the first to climb. The other options are those
    of :class:`SAM`. The steps are counted in the group key ``rho_step``, so that a resumed training climbs where it
    would have; all batches of an accumulated step climb, or none.
    """

    def __init__(
        self,
        base: Optimizer,
        rho: Level = 0.05,
        *,
        interval: int = 10,
        adaptive: bool = False,
        model: nn.Module | None = None,
        perturb: Iterable[Tensor] | None = None,
        bn_stats: str = "both",
        rng: str = "independent",
        reduce_slope: bool = True,
        nonfinite: str = "step",
    ) -> None:
        check_count("interval", interval)
        rule = SteepestPointAtIntervals(rho, adaptive, perturb, reduce_slope)
        rule.interval = interval
        rule.keys = {**rule.keys, "rho_step": 0}
        super().__init__(base, rule, model=model, bn_stats=bn_stats, rng=rng, nonfinite=nonfinite)


class SteepestPointAtIntervals(SteepestPoint):
    """w in most steps; in every ``interval``-th w, then w + e."""

    interval: int
    counts_steps_in = "rho_step"
    no_split = "SAMAtIntervals has no split(): the slope needs the whole batch; use points()"
    not_capturable = "which steps climb is counted on the host"

    def route(self, opt: PointOptimizer, halve: Callable[[], Sequence[float]] | None) -> Route:
        climbs = (opt.param_groups[0]["rho_step"] + 1) % self.interval == 0
        return super().route(opt, halve) if climbs else Route([0])
