"""S-SGD in Hugging Face's Trainer: every micro-batch of an update at w + n and at w − n, or one half at each."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from ..core.checks import check_level
from ..core.halves import batch_size
from ..core.noise import Distribution, Fill, as_distribution
from ..core.passes import Point
from ..core.point_optimizer import PointOptimizer
from ..core.weights import Level
from ..optimizer import SSGD

try:
    from transformers import Trainer

    from .accelerate import refuse, unwrapped
except ImportError as error:
    raise ImportError("ssgd.integrations.transformers needs transformers: pip install 'ssgd[transformers]'") from error


class SymmetricTrainer(Trainer):  # type: ignore[misc, unused-ignore]
    """``transformers.Trainer`` with S-SGD around its optimizer.

    Logs ``loss_plus`` and ``loss_minus`` beside ``loss``, their mean. For another trainer, put this one first:
    ``class Translator(SymmetricTrainer, Seq2SeqTrainer): pass``.

    Args:
        noise: the level, as in :class:`ssgd.SSGD`. None: that of ``optimizers=(SSGD(...), None)``.
        split: +n with the first half of each micro-batch and −n with the other, for the work of plain training.
        distribution: of the noise, as in :class:`ssgd.SSGD`, ``"sphere"`` by default. Its seed is that of the training
            arguments.

    The other arguments are the trainer's own.
    """

    optimizer: Any  # the SSGD, from train() on inside Accelerate's wrapper

    def __init__(
        self,
        *args: Any,
        noise: Level | None = None,
        split: bool = False,
        distribution: str | Distribution | Fill | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        if noise is None and not isinstance(self.optimizer, PointOptimizer):
            raise ValueError("S-SGD needs a level: give noise=..., or optimizers=(SSGD(...), None)")
        if (noise is not None or distribution is not None) and isinstance(self.optimizer, PointOptimizer):
            raise ValueError(
                "the optimizer given has its own level and distribution: leave out noise=... and distribution=..."
            )
        if noise is not None:
            check_level(noise)
        elif split and self.optimizer.rule.no_split is not None:
            raise ValueError(f"{type(self.optimizer).__name__} has no split(): leave out split=True, or use SSGD")
        self.noise = noise
        self.split = split
        self.distribution = as_distribution("sphere" if distribution is None else distribution)
        self._sums: dict[str, Tensor] = {}  # of the losses at each sign since they were last logged
        self._steps: set[int] = set()  # that these come from

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        refuse(self.accelerator)
        optim = str(getattr(self.args.optim, "value", self.args.optim))
        if "lomo" in optim or "layerwise" in optim:
            raise ValueError(f"optim={optim!r} updates weights during backward(), while they are moved: use another")
        optimizer: Optimizer = super().create_optimizer(*args, **kwargs)
        if self.noise is not None and not isinstance(unwrapped(optimizer), PointOptimizer):
            optimizer = self.optimizer = SSGD(
                optimizer, self.noise, distribution=self.distribution, seed=self.args.seed
            )
        return optimizer

    def training_step(
        self, model: nn.Module, inputs: dict[str, Tensor | Any], num_items_in_batch: Tensor | int | None = None
    ) -> Tensor:
        opt = unwrapped(self.optimizer)
        if opt.model is not model:
            opt.attach(model)
        opt.train()  # the Trainer calls it inside the points, where a schedule-free base would move the weights
        losses: list[Tensor] = []
        tokens = getattr(self, "_total_train_tokens", None)  # as TRL's SFTTrainer counts those it has seen
        for point, part in opt.split(dict(inputs)) if self.split else ((p, inputs) for p in opt.points()):
            items: Any = num_items_in_batch
            if (
                items is not None and self.split and len(point.passes.points) > 1
            ):  # a sum over the items of a half, which will count by its share
                items = items * batch_size(part) / batch_size(dict(inputs))
            if tokens is not None and not self.split:
                self._total_train_tokens = tokens  # those of the batch count once
            with point:
                loss: Tensor = super().training_step(model, part, items)
            self._note(point, loss)
            losses.append(point.share * loss)
        return sum(losses[1:], losses[0])

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        if "loss" in logs:
            for name, losses in self._sums.items():
                logs[name] = self.accelerator.reduce(losses, reduction="mean").item() / len(self._steps)
        if "loss" in logs or "train_loss" in logs:  # the latter ends the training
            self._sums, self._steps = {}, set()
        super().log(logs, *args, **kwargs)

    def _note(self, point: Point, loss: Tensor) -> None:
        point.loss = loss
        name = {1: "loss_plus", -1: "loss_minus"}.get(point.sign)
        if name is not None:
            passes = list(point.passes.route.signs).count(point.sign)
            self._sums[name] = self._sums.get(name, 0) + loss / passes
            self._steps.add(self.state.global_step)
