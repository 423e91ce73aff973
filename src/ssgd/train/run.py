"""One training: net, optimizer and position, a step at a time.

All randomness is a function of seed and position: initialisation, order and augmentation of the data, noise, dropout.
So weights, optimizer and position are the whole state, and a run ends the same however often it was cut, and whatever
ran beside it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from .. import models
from ..core.batchnorm import recompute_bn
from ..core.noise import mix
from ..core.noisy import Noisy
from ..core.selection import select
from ..core.wrapper import Wrapper
from ..data.registry import Source
from ..methods import registry
from ..methods.averaging import Averaging
from . import classify
from .distributed import Ranks, load_whole_state, same_buffers, total, whole_state, wrap
from .graphs import GraphStep
from .phases import Phase
from .recipe import Recipe
from .steps import Step

FORMAT = 1  # of the state that goes into checkpoints
IMAGES_FOR_BN = 20_000


class Diverged(ArithmeticError):
    """The loss is no longer a number."""


class Run:
    """Trains ``recipe`` with one seed. ``say`` gets a line where something is done in another way than asked."""

    def __init__(
        self,
        recipe: Recipe,
        seed: int,
        source: Source,
        device: torch.device,
        ranks: Ranks,
        *,
        compiled: bool = False,
        graph: bool = False,
        say: Any = print,
    ) -> None:
        self.recipe, self.seed, self.source, self.device, self.ranks = recipe, seed, source, device, ranks
        self.graph, self.say = graph, say
        self.schedule = recipe.schedule
        self.epoch, self.step_in_epoch = 0, 0
        self.steps = source.steps(recipe.batch)
        self.history: list[dict[str, Any]] = []
        on_gpu = device.type == "cuda"
        self.stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self.sums = torch.zeros(3, device=device)

        torch.manual_seed(mix(seed, 0))
        self.net = models.build(recipe.model, source.classes, source.channels)
        self._transform()
        self.sharded = ranks.several and recipe.parallel == "fsdp"
        layout = torch.contiguous_format if self.sharded else torch.channels_last  # FSDP takes no other
        self.net.to(device=device, memory_format=layout)  # type: ignore[call-overload]
        self.model = wrap(self.net, recipe.parallel, recipe.sync_batchnorm, device) if ranks.several else self.net
        self.objective = torch.compile(classify.objective, dynamic=False) if compiled else classify.objective
        self.lr: Tensor | float = torch.tensor(recipe.lr[0], device=device) if on_gpu else recipe.lr[0]
        self.opt: Wrapper | None = None
        self._step: Step | GraphStep | None = None
        self._rate: float | None = None  # what the tensor lr holds
        self._take_up(self.phase)
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))

    # --- training ---------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return self.epoch == self.schedule.epochs

    @property
    def phase(self) -> Phase:
        return self.schedule.phases[self.schedule.index(min(self.epoch, self.schedule.epochs - 1))]

    @property
    def position(self) -> int:
        """Steps taken in all."""
        return self.epoch * self.steps + self.step_in_epoch

    def step(self) -> None:
        """The next batch. At the end of an epoch, finish_epoch() must follow."""
        epoch = self.source.epoch(self.seed, self.epoch)
        x, y = epoch.batch(self.step_in_epoch, self.recipe.batch, self.ranks.rank, self.ranks.count)
        with self._on_stream(x, y):
            self._set_lr(self.schedule.lr(self.epoch + self.step_in_epoch / self.steps))
            self._seed_layers()
            if self._step is None:
                self._step = self._captured(x, y)
            self._step(x, y)
        self.step_in_epoch += 1

    @property
    def epoch_is_over(self) -> bool:
        return self.step_in_epoch == self.steps

    def finish_epoch(self) -> dict[str, Any]:
        """The epoch's metrics: means over its passes, and the clean weights on the test set."""
        phase = self.phase
        with self._on_stream():
            sums = total(self.sums) if self.ranks.several else self.sums.clone()
            self.sums.zero_()
        loss, right, images = sums.tolist()
        if loss != loss or loss in (float("inf"), float("-inf")):
            raise Diverged(f"the loss is {loss} after epoch {self.epoch + 1}: lower lr or the level")
        row: dict[str, Any] = {"epoch": self.epoch + 1, "method": phase.method, "level": phase.level}
        row |= {"lr": self.schedule.lr(self.epoch), "loss": loss / images, "accuracy": 100 * right / images}
        self.epoch, self.step_in_epoch = self.epoch + 1, 0
        if self.done or self.epoch % self.recipe.evaluate_every == 0:
            row |= self.evaluate("test")
        self.history.append(row)
        if (self.phase.method, self.phase.level) != (phase.method, phase.level):
            self._take_up(self.phase)
        return row

    def evaluate(self, part: str) -> dict[str, float]:
        """Loss and accuracy of the clean weights on the ``"test"`` or ``"train"`` images, not augmented."""
        ranks = self.ranks
        batches = self.source.test_batches if part == "test" else self.source.clean_train_batches
        with self._on_stream(), self._evaluated_net() as net:
            sums = classify.count(net, batches(rank=ranks.rank, ranks=ranks.count), self._autocast, self.device)
            return classify.summary(total(sums) if ranks.several else sums, part, self.source.classes)

    # --- state ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that decides how the run goes on, for any number of ranks. With FSDP every rank must call it."""
        assert self.opt is not None
        with self._on_stream():
            found = whole_state(self.net, self.opt, self.sharded)
            sums = total(self.sums) if self.ranks.several else self.sums.clone()
            return {
                "format": FORMAT,
                "epoch": self.epoch,
                "step": self.step_in_epoch,
                "sums": sums,
                "history": self.history,
                **found,
            }

    def load(self, state: dict[str, Any]) -> None:
        if state.get("format") != FORMAT:
            raise ValueError(f"the checkpoint is of format {state.get('format')}, this ssgd reads {FORMAT}")
        self.epoch, self.step_in_epoch = state["epoch"], state["step"]
        self.history = list(state["history"])
        self._take_up(self.phase)
        assert self.opt is not None
        with self._on_stream():
            load_whole_state(self.net, self.opt, state, self.sharded)
            self.sums.copy_(state["sums"] if self.ranks.first else torch.zeros_like(self.sums))
            for group in self.opt.param_groups:
                group["lr"] = self.lr  # the tensor that a graph reads, not a loaded copy

    # --- below here: how --------------------------------------------------------------------------------------------

    def _take_up(self, phase: Phase) -> None:
        """The phase's method around the base, which keeps its momentum."""
        base = self._base() if self.opt is None else self.opt.release()
        self.method = registry.get(phase.method)
        options: dict[str, Any] = {}
        if self.method.settings and self.method.transform is None:
            options = dict(self.recipe.settings) if phase.method == self.recipe.method else {}
            if phase.level is not None:
                options[self.method.settings[0].name] = phase.level
        if issubclass_of(self.method.make, Noisy):
            options["seed"] = mix(self.seed, 1, self.schedule.index(min(self.epoch, self.schedule.epochs - 1)))
            options |= self._noise_options()
        if self.method.transform is not None:
            self.opt = self.method.make(base, model=self.model, **self.method.fixed)
        else:
            self.opt = self.method.build(base, self.model, **options)
        step = Step(self.method, self.opt, self.model, self.objective, self._autocast, self.sums)
        self._eager = step
        self._step = None if self.graph else step

    def _noise_options(self) -> dict[str, Any]:
        recipe = self.recipe
        found: dict[str, Any] = {}
        if "law" not in self.method.fixed and self.method.make.__name__ == "SSGD":
            found["law"] = recipe.law
        if recipe.perturb != "all":
            found["perturb"] = select(self.net, recipe.perturb)
        if recipe.bn_stats != "both":
            found["bn_stats"] = recipe.bn_stats
        if recipe.per_rank is not None:
            found["per_rank"] = recipe.per_rank
        return found

    def _transform(self) -> None:
        """Dropout and its like are part of the model, in all phases or none."""
        names = {phase.method for phase in self.schedule.phases}
        for method in map(registry.get, sorted(names)):
            if method.transform is None:
                continue
            if len(names) > 1:
                raise ValueError(f"{method.name} changes the model and so needs all phases for itself")
            level = self.recipe.level
            method.transform(self.net, method.settings[0].default if level is None else level)

    def _base(self) -> Optimizer:
        recipe, parameters = self.recipe, self.net.parameters()
        if recipe.optimizer == "sgd":
            return SGD(
                parameters,
                self.lr,
                recipe.momentum,
                nesterov=recipe.nesterov,
                weight_decay=recipe.weight_decay,
                fused=not self.sharded,
            )
        kind = Adam if recipe.optimizer == "adam" else AdamW
        return kind(parameters, self.lr, weight_decay=recipe.weight_decay, fused=not self.sharded)

    def _captured(self, x: Tensor, y: Tensor) -> Step | GraphStep:
        assert self.opt is not None
        reason = self.opt.not_capturable
        if reason is None:
            try:
                return GraphStep(self._eager, self.net, x, y)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError as problem:
                reason = str(problem).partition("\n")[0]
        self.say(f"{self.method.name}: no CUDA graph ({reason}); stepping eagerly")
        return self._eager

    def _set_lr(self, rate: float) -> None:
        if isinstance(self.lr, Tensor):
            if rate != self._rate:
                self.lr.fill_(rate)
                self._rate = rate
            return
        assert self.opt is not None
        for group in self.opt.param_groups:
            group["lr"] = rate

    def _seed_layers(self) -> None:
        """Dropout and its like draw from torch's own generators."""
        seed = mix(self.seed, 2, self.position, self.ranks.rank)
        if self.device.type == "cuda":
            torch.cuda.default_generators[self.device.index or 0].manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)

    def _autocast(self) -> AbstractContextManager[None]:
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16", cache_enabled=False
        )

    @contextmanager
    def _on_stream(self, *tensors: Tensor) -> Iterator[None]:
        """This run's own stream, after what was asked for on the current one; ``tensors`` come from there."""
        if self.stream is None:
            yield
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self.stream):
            for tensor in tensors:
                tensor.record_stream(self.stream)
            yield

    @contextmanager
    def _evaluated_net(self) -> Iterator[nn.Module]:
        """The net as it is judged: clean weights, or their average; running statistics of rank 0, or recomputed."""
        net: nn.Module = self.net
        again = self.recipe.recompute_bn
        if isinstance(self.opt, Averaging) and self.opt.averaged.n_averaged > 0:
            net, again = self.opt.averaged.module, True
        if self.ranks.several:
            same_buffers(net)
        kept = [buffer.clone() for buffer in net.buffers()]
        if again:
            recompute_bn(net, self._batches_for_bn())
        try:
            yield net
        finally:
            if again and not self.done:
                with torch.no_grad():
                    for buffer, value in zip(net.buffers(), kept, strict=True):
                        buffer.copy_(value)

    def _batches_for_bn(self) -> Iterator[Tensor]:
        """Augmented images of the epoch just trained, the same on all ranks."""
        epoch = self.source.epoch(self.seed, self.epoch - 1)
        wanted = max(1, min(self.steps, IMAGES_FOR_BN // self.recipe.batch))
        for step in islice(range(self.steps), wanted):
            with self._autocast():
                yield epoch.batch(step, self.recipe.batch)[0]


def issubclass_of(make: Any, kind: type) -> bool:
    return isinstance(make, type) and issubclass(make, kind)
