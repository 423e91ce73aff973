"""S-SGD in Lightning's Trainer, also where its closure alone would not do: float16, accumulation, clipping, split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..core.checks import check_count, check_level
from ..core.noise_points import NoisyOptimizer
from ..core.passes import Point
from ..core.point_optimizer import PointOptimizer
from ..core.weights import Level
from ..optimizer import SSGD

try:
    from lightning.pytorch import Callback, LightningModule, Trainer
    from lightning.pytorch.strategies import DeepSpeedStrategy, FSDPStrategy
except ImportError as error:
    raise ImportError("ssgd.integrations.lightning needs lightning: pip install 'ssgd[lightning]'") from error


class SymmetricNoise(Callback):  # type: ignore[misc, unused-ignore]
    """Every batch, accumulated ones too, at w + n and at w − n; the Trainer scales, clips and steps with the mean.

    Logs ``loss_plus`` and ``loss_minus``. ::

        Trainer(callbacks=[SymmetricNoise(noise=0.29)], precision="16-mixed", accumulate_grad_batches=4)

    With manual optimization, ``self.optimizers()`` has ``points()`` and ``split()``.

    Args:
        noise: the level, as in :class:`ssgd.SSGD`, for what ``configure_optimizers`` returns. None: that is an SSGD.
        split: +n with the first half of each batch and −n with the other, for the work of plain training.
        excess_every: log ``symmetric_excess`` every so many steps, for three more calls of ``training_step`` without
            gradient, whose own logs are dropped.
        **options: of :class:`ssgd.SSGD`, such as ``distribution`` or ``bn_stats``.
    """

    def __init__(
        self, noise: Level | None = None, *, split: bool = False, excess_every: int | None = None, **options: Any
    ) -> None:
        if noise is not None:
            check_level(noise)
        if excess_every is not None:
            check_count("excess_every", excess_every)
        self.noise = noise
        self.split = split
        self.excess_every = excess_every
        self.options = options
        self._found: dict[str, Tensor | float] = {}  # to be logged when the batch is over

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        strategy: Any = trainer.strategy
        if isinstance(strategy, FSDPStrategy):
            raise ValueError(
                "FSDPStrategy keeps the weights flat, and layers cannot be told apart: use "
                "ModelParallelStrategy, with fully_shard in configure_model"
            )
        if isinstance(strategy, DeepSpeedStrategy):
            raise ValueError("DeepSpeed steps on weights of its own, which S-SGD cannot move: use DDP or FSDP2")
        strategy.optimizers = [self._around(optimizer, strategy.model) for optimizer in strategy.optimizers]
        for proxy in strategy._lightning_optimizers:
            proxy.points, proxy.split = proxy.optimizer.points, proxy.optimizer.split
        loop: Any = trainer.fit_loop.epoch_loop.automatic_optimization
        loop._make_closure = partial(self._make_closure, loop)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *args: Any) -> None:
        pl_module.log_dict(self._found)
        self._found = {}

    # --- below here: how --------------------------------------------------------------------------------------------

    def _around(self, optimizer: Optimizer, model: nn.Module) -> PointOptimizer:
        if not isinstance(optimizer, PointOptimizer):
            if self.noise is None:
                raise ValueError(
                    "S-SGD needs a level: give SymmetricNoise(noise=...), or return an SSGD from configure_optimizers"
                )
            optimizer = SSGD(optimizer, self.noise, model=model, **self.options)
        elif self.noise is not None or self.options:
            raise ValueError(
                f"configure_optimizers returned a {type(optimizer).__name__}, which has its own level and options: "
                "leave them out of SymmetricNoise(), or return the base optimizer"
            )
        else:
            optimizer.attach(model)
        name = type(optimizer).__name__
        if self.split and optimizer.rule.no_split is not None:
            raise ValueError(f"{name} has no split(): leave it out of SymmetricNoise()")
        if self.excess_every is not None and not isinstance(optimizer, NoisyOptimizer):
            raise ValueError(f"{name} has no symmetric_excess(): leave it out of SymmetricNoise()")
        optimizer.closure_has_points = True
        return optimizer

    def _make_closure(self, loop: Any, kwargs: dict[str, Any], optimizer: Any, number: int) -> Any:
        """In place of the loop's own: its closure, once for each point."""
        once = type(loop)._make_closure(loop, kwargs, optimizer, number)
        if once._backward_fn is None:  # a pass for batch-norm, which ends with a step all the same
            if not optimizer.rule.is_off(optimizer):
                optimizer.zero_grad()
            return once
        if "batch" not in kwargs:
            raise ValueError(
                "training_step(dataloader_iter) draws a batch at each point, and the points need the same: "
                "write training_step(batch, batch_idx)"
            )
        return type(once)(partial(self._at_every_point, loop, once, kwargs, optimizer))

    def _at_every_point(self, loop: Any, once: Any, kwargs: dict[str, Any], optimizer: Any) -> Any:
        """Forward and backward at every point. Returns the last one's output, with the mean loss.

        Where ``training_step`` skips the batch at a point, all of it is skipped.
        """
        if once._zero_grad_fn is not None:  # the first batch of a step
            self._measure_excess(loop.trainer, kwargs, optimizer)
            once._zero_grad_fn()
        losses: list[Any] = []
        for point, part in self._passes(optimizer, kwargs):
            point.passes.by_closure = True
            with point:
                if len(losses) < point.index:
                    continue  # skipped at one before it
                output = loop._training_step(part)
                if output.loss is not None:
                    once._backward_fn(output.closure_loss)
                    losses.append(output.loss)
                elif losses and once._zero_grad_fn is None:
                    raise RuntimeError(
                        "training_step returned None after a loss at another point, whose gradient has joined those of "
                        "earlier batches: skip a batch at all its points, or leave out accumulate_grad_batches"
                    )
        points = point.passes.points
        if len(losses) == len(points):
            for point, loss in zip(points, losses, strict=True):
                self._note(point, loss * loop.trainer.accumulate_grad_batches)
            output.loss = sum(point.share * loss for point, loss in zip(points, losses, strict=True))
        elif once._zero_grad_fn is not None:
            optimizer.zero_grad()  # drops the gradients of points before the one that was skipped
        return output

    def _passes(self, optimizer: Any, kwargs: dict[str, Any]) -> Iterator[tuple[Point, dict[str, Any]]]:
        if not self.split:
            yield from ((point, kwargs) for point in optimizer.points())
        else:
            for point, half in optimizer.split(kwargs["batch"]):
                yield point, {**kwargs, "batch": half}

    def _note(self, point: Point, loss: Tensor) -> None:
        name = {1: "loss_plus", -1: "loss_minus"}.get(point.sign)
        if name is not None:
            passes = list(point.passes.route.signs).count(point.sign)
            self._found[name] = self._found.get(name, 0.0) + loss / passes

    def _measure_excess(self, trainer: Trainer, kwargs: dict[str, Any], optimizer: Any) -> None:
        if self.excess_every is None or trainer.global_step % self.excess_every or optimizer.rule.is_off(optimizer):
            return

        def loss() -> Any:
            output = trainer.strategy.training_step(*kwargs.values())
            value = output["loss"] if isinstance(output, Mapping) else output
            return float("nan") if value is None else value  # a batch that is skipped

        with _silent(trainer.lightning_module):
            self._found["symmetric_excess"] = optimizer.symmetric_excess(loss)


@contextmanager
def _silent(module: LightningModule) -> Iterator[None]:
    """``self.log`` does nothing in here."""
    module.__dict__["log"] = lambda *args, **kwargs: None
    try:
        yield
    finally:
        del module.__dict__["log"]
