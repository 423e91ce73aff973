"""One training: net, optimizer and position, a step at a time.

All randomness is a function of seed and position: initialisation, order and augmentation of the data, noise, dropout.
So weights, optimizer and position are the whole state, and a run ends the same however often it was cut, and whatever
ran beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from ...core.batchnorm import recompute_bn, tracking_layers
from ...core.noise import mix
from ...core.point_optimizer import PointOptimizer
from ...core.selection import select
from ...kernels import has_kernels
from ...methods import registry
from ...methods.averaging import Averaging
from ...methods.dropconnect import dropconnect
from ...methods.sam import SAM
from .. import models
from ..compilation import compiled_for
from ..data.images import DeviceImages
from ..data.registry import Source
from ..models.registry import set_dropout
from .convolutions import use_fast_convolutions
from .distributed import Ranks, in_step, load_whole_state, of_each_rank, same_buffers, total, whole_state, wrap
from .graphs import GraphOf, GraphSteps, unchanged
from .kinds import kind_of
from .pair import PairStep, can_pair
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
        pair: bool = False,
        kernels: bool = False,
        say: Any = print,
    ) -> None:
        check_kind(recipe.model, recipe.data, source.kind)
        self.recipe, self.seed, self.source, self.device, self.ranks = recipe, seed, source, device, ranks
        self.pair, self.say = pair, say
        self.schedule = recipe.schedule
        self.epoch, self.step_in_epoch = 0, 0
        self.steps = source.steps(recipe.batch)
        self.history: list[dict[str, Any]] = []
        on_gpu = device.type == "cuda"
        # torch has 32 streams: a run takes two at most, or runs side by side would share them
        self.stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._side = torch.cuda.Stream(device) if on_gpu and pair else None  # type: ignore[no-untyped-call]
        self._drawing = torch.cuda.default_generators[device.index or 0].clone_state() if on_gpu else None
        self.sums = torch.zeros(3, device=device)

        torch.manual_seed(mix(seed, 0))
        self.net = models.build(recipe.model, source.classes, source.channels)
        self.kind = kind_of(source)
        if recipe.devices > 1 and source.kind != "images":
            raise ValueError(f"devices={recipe.devices} is for images: {recipe.data} needs torchrun and devices=1")
        if recipe.dropout is not None:
            set_dropout(self.net, recipe.dropout)
        self._transform()
        if kernels and (not on_gpu or has_kernels(device)):
            use_fast_convolutions(self.net)
        self.sharded = ranks.several and recipe.parallel == "fsdp"
        layout = torch.contiguous_format if self.sharded else torch.channels_last  # FSDP takes no other
        self.net.to(device=device, memory_format=layout)  # type: ignore[call-overload]
        self.model = wrap(self.net, recipe.parallel, recipe.sync_batchnorm, device) if ranks.several else self.net
        self.compiled = compiled and self.kind.COMPILES
        self.graph = graph and self.kind.CAPTURES
        plain = self.kind.objective
        self.objective = compiled_for(device, plain) if self.compiled else plain
        self.lr: Tensor | float = torch.tensor(recipe.lr[0], device=device) if on_gpu else recipe.lr[0]
        self.opt: PointOptimizer | None = None
        self._step: Step | GraphSteps | None = None
        self._test: GraphOf | None = None
        self._rate: float | None = None  # what the tensor lr holds
        self._settled = not ranks.several or self.sharded
        if self.stateful:
            self.net.reset(recipe.batch // ranks.count)  # type: ignore[operator]
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))
        self._take_up(self.phase)

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
        batch = self._batch()
        with self._on_stream():
            self._set_lr(self.schedule.lr(self.epoch + self.step_in_epoch / self.steps))
            if self.stateful and self.step_in_epoch == 0:
                self.net.reset(len(batch[0]))  # type: ignore[operator]
            if not self._settled:
                self._settle(batch)
            self._seed_layers()
            if self._captured(batch):
                self._seed_layers()
            assert self._step is not None
            self._step(*batch)
        self.step_in_epoch += 1

    @property
    def compiles_next(self) -> bool:
        """Whether the next step has to be compiled and captured first, which can take a minute."""
        return self.compiled and self._step is None

    @property
    def epoch_is_over(self) -> bool:
        return self.step_in_epoch == self.steps

    def finish_epoch(self) -> dict[str, Any]:
        """The epoch's metrics: means over its passes, and the clean weights on the test set."""
        phase = self.phase
        with self._on_stream():
            sums = total(self.sums) if self.ranks.several else self.sums.clone()
            self.sums.zero_()
            seen = sums.tolist()  # on the stream that filled them: another would not wait
        if not math.isfinite(seen[0]):
            raise Diverged(f"the loss is {seen[0]} after epoch {self.epoch + 1}: lower lr or the level")
        row: dict[str, Any] = {"epoch": self.epoch + 1, "method": phase.method, "level": phase.level}
        row |= {"lr": self.schedule.lr(self.epoch), **self.kind.progress(seen)}
        self.epoch, self.step_in_epoch = self.epoch + 1, 0
        if self.done or self.epoch % self.recipe.evaluate_every == 0:
            for part in self.kind.EVERY_EPOCH:
                row |= self._judged(part)
        self.history.append(row)
        if (self.phase.method, self.phase.level) != (phase.method, phase.level):
            self._take_up(self.phase)
        return row

    def _judged(self, part: str) -> dict[str, float]:
        found = self.evaluate(part)
        loss = found[f"{part}_loss"]
        if not math.isfinite(loss):  # of the last step no training loss tells
            raise Diverged(f"the {part} loss is {loss} after epoch {self.epoch}: lower lr or the level")
        return found

    def evaluate(self, part: str, anew: bool = False) -> dict[str, float]:
        """What the clean weights make of a part of the data, ``"test"`` or another, as it is.

        ``anew``: with batch-norm's statistics gathered again for this once, whatever the recipe says.
        """
        ranks, batches = self.ranks, self._batches_of(part)
        with self._on_stream(), self._evaluated_net(anew) as net:
            mine = batches(rank=ranks.rank, ranks=ranks.count)
            if self.sharded:
                mine = in_step(mine, lambda: self._spare_pass(net, next(batches(size=1))), ranks, self.device)
            if part == "test" and net is self.net and self.graph and isinstance(self.source, DeviceImages):
                sums = self._test_graph()
            else:
                sums = self.kind.count(net, mine, self._autocast, self.device)
            sums = total(sums) if ranks.several else sums
            return self.kind.summary(sums.tolist(), part, self.source.classes)

    def with_statistics_anew(self) -> dict[str, float]:
        """The test accuracy if batch-norm's statistics, which were gathered under noise, are gathered again.

        Nothing where there are none, or where the run is judged so anyway.
        """
        if self.source.kind != "images" or not tracking_layers(self.net) or self._always_anew:
            return {}
        return {"test_accuracy_recomputed_bn": self.evaluate("test", anew=True)["test_accuracy"]}

    def weights(self) -> dict[str, Tensor]:
        """What was judged: the net, or the average where there is one. Every rank must call it."""
        average = self._average
        return self.state()["model"] if average is None else average.state_dict()

    # --- state ------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that decides how the run goes on, for any number of ranks, of which every one must call it."""
        assert self.opt is not None
        with self._on_stream():
            found = {
                "format": FORMAT,
                "epoch": self.epoch,
                "step": self.step_in_epoch,
                "sums": of_each_rank(self.sums, self.ranks),
                "history": self.history,
                "carried": of_each_rank(self.net.carried(), self.ranks) if self.stateful else None,  # type: ignore[operator]
                **whole_state(self.net, self.opt),
            }
        self.wait()  # whoever reads these tensors does so on another stream
        return found

    def load(self, state: dict[str, Any]) -> None:
        if state.get("format") != FORMAT:
            raise ValueError(f"the checkpoint is of format {state.get('format')}, this ssgd reads {FORMAT}")
        self.epoch, self.step_in_epoch = state["epoch"], state["step"]
        self.history = list(state["history"])
        self._take_up(self.phase)
        assert self.opt is not None
        with self._on_stream():
            # what was saved may have been cut in another way, and decides where Adam's counters go
            groups = [{**group, **self._stepping} for group in state["optimizer"]["param_groups"]]
            state = {**state, "optimizer": {**state["optimizer"], "param_groups": groups}}
            load_whole_state(self.net, self.opt, state)
            rows = list(state["sums"])
            if len(rows) != self.ranks.count:  # cut with another number of ranks: the first goes on from their sum
                rows = [state["sums"].sum(0)] + [torch.zeros(3)] * (self.ranks.count - 1)
            self.sums.copy_(rows[self.ranks.rank])
            if self.stateful and self.step_in_epoch:
                mine = state["carried"].flatten(0, 1).chunk(self.ranks.count)[self.ranks.rank]
                self.net.carry_from(mine)  # type: ignore[operator]
            for group in self.opt.param_groups:
                group["lr"] = self.lr  # the tensor that a graph reads, not a loaded copy

    def wait(self) -> None:
        """Until the device has done all that it was asked."""
        if self.stream is not None:
            self.stream.synchronize()

    # --- below here: how --------------------------------------------------------------------------------------------

    @property
    def stateful(self) -> bool:
        """Whether the net carries a state from step to step."""
        return hasattr(self.net, "carry")

    @property
    def devices_here(self) -> int:
        """Those that this process stands for."""
        return 1 if self.ranks.several else self.recipe.devices

    def _batches_of(self, part: str) -> Callable[..., Iterator[tuple[Tensor, ...]]]:
        names = {"train": "clean_train_batches", "valid": "valid_batches", "test": "test_batches"}
        found: Callable[..., Iterator[tuple[Tensor, ...]]] = getattr(self.source, names[part])
        return found

    def _batch(self) -> tuple[Tensor, ...]:
        """This rank's part of the next batch; where halves matter a part of each, as they are for one process."""
        size, ranks, here = self.recipe.batch, self.ranks, self.devices_here
        sharing = ranks.count * here
        halves_are_batches = self.source.kind == "images"  # of texts and utterances they are another cut of the data
        if not (self.method.halves and sharing > 1 and halves_are_batches) or size % (2 * sharing):
            return self._part(self.epoch, self.step_in_epoch, size, ranks)
        parts = [self._part(self.epoch, 2 * self.step_in_epoch + i, size // 2, ranks) for i in (0, 1)]
        with self._on_stream():
            return tuple(torch.cat(_in_turn(pair, here)) for pair in zip(*parts, strict=True))

    def _part(self, epoch: int, step: int, size: int, ranks: Ranks) -> tuple[Tensor, ...]:
        """Made on the device's default stream, where runs share what is made, and waited for on this run's own."""
        with nullcontext() if self.stream is None else torch.cuda.stream(torch.cuda.default_stream(self.device)):
            batch = self.source.epoch(self.seed, epoch).batch(step, size, ranks.rank, ranks.count)
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.default_stream(self.device))
            for tensor in batch:
                tensor.record_stream(self.stream)
        return batch

    def _settle(self, batch: tuple[Tensor, ...]) -> None:
        """A pass that leaves no trace, for DDP: it lays its buckets out anew after the first one, and the bits of sums
        over ranks depend on the layout. A run taken up would otherwise go on with other bits than one never cut.
        """
        assert self.opt is not None
        with unchanged(self.net, self.opt, self.sums):
            with self._autocast():
                loss, _ = self.objective(self.model, *batch)
            loss.backward()  # type: ignore[no-untyped-call]
        self._settled = True

    def _spare_pass(self, net: nn.Module, batch: tuple[Tensor, ...]) -> None:
        """For ranks that have more batches, and nothing comes of it."""
        with self._autocast():
            net(*batch[: self.kind.INPUTS])

    def _take_up(self, phase: Phase) -> None:
        """The phase's method around the base, which keeps its momentum."""
        with self._on_stream():  # methods copy weights, which a step may still be changing
            self.opt = self._make_opt(phase)
            if self.recipe.per_rank is not False:
                self.opt.as_ranks(self.devices_here)
            self._eager = self._make_step()
        self._step = None if self.graph else self._eager

    def _make_opt(self, phase: Phase) -> PointOptimizer:
        base = self._base() if self.opt is None else self.opt.release()
        self.method = registry.get(phase.method)
        options: dict[str, Any] = {}
        if self.method.settings and self.method.transform is None:
            options = dict(self.recipe.settings) if phase.method == self.recipe.method else {}
            options[self.method.settings[0].name] = self.method.settled_level(phase.level, self.recipe.distribution)
        if self.method.make is SAM:
            options |= self._perturbation_options()
        if any(setting.name == "noise" for setting in self.method.settings):
            options["seed"] = mix(self.seed, 1, self.schedule.index(min(self.epoch, self.schedule.epochs - 1)))
            options |= self._noise_options()
        if self.method.transform is not None:
            return self.method.make(base, model=self.model, **self.method.fixed)
        return self.method.build(base, self.model, **options)

    def _make_step(self) -> Step:
        assert self.opt is not None
        rest = self._autocast, self.sums, self.recipe.clip
        if self.pair and self.devices_here == 1 and can_pair(self.opt, self.model):
            what = self.method, self.opt, self.model, self.kind.objective
            return PairStep(*what, *rest, side=self._side, compiled=self.compiled)
        return Step(self.method, self.opt, self.model, self.objective, *rest, self.devices_here)

    def _noise_options(self) -> dict[str, Any]:
        recipe = self.recipe
        found: dict[str, Any] = {}
        if self.method.takes_distribution():
            found["distribution"] = recipe.distribution
        if recipe.per_rank is not None:
            found["per_rank"] = recipe.per_rank
        return found | self._perturbation_options()

    def _perturbation_options(self) -> dict[str, Any]:
        recipe = self.recipe
        found: dict[str, Any] = {}
        if recipe.perturb != "all":
            found["perturb"] = select(self.net, recipe.perturb)
        if recipe.bn_stats != "both":
            found["bn_stats"] = recipe.bn_stats
        return found

    def _transform(self) -> None:
        """Dropout and its like are part of the model, in all phases or none."""
        kinds = dict.fromkeys((phase.method, phase.level) for phase in self.schedule.phases)
        for name, level in kinds:
            method = registry.get(name)
            if method.transform is None:
                continue
            if len(kinds) > 1:
                raise ValueError(f"{name} changes the model and so needs all phases for itself, at one level")
            share = method.settings[0].default if level is None else level
            if method.transform is dropconnect and self.recipe.perturb != "all":
                dropconnect(self.net, share, self.recipe.perturb)
            else:
                method.transform(self.net, share)

    def _base(self) -> Optimizer:
        recipe, parameters = self.recipe, self._grouped()
        if recipe.optimizer == "sgd":
            return SGD(
                parameters,
                self.lr,
                recipe.momentum,
                nesterov=recipe.nesterov,
                weight_decay=recipe.weight_decay,
                **self._stepping,
            )
        kind = Adam if recipe.optimizer == "adam" else AdamW
        return kind(parameters, self.lr, weight_decay=recipe.weight_decay, **self._stepping)

    def _grouped(self) -> list[Any]:
        """The parameters, those without weight decay in a group of their own."""
        parameters = list(self.net.parameters())
        if self.recipe.decayed == "all":
            return parameters
        weights, others = ([p for p in parameters if (p.dim() > 1) is heavy] for heavy in (True, False))
        return [{"params": weights}, {"params": others, "weight_decay": 0.0}]

    @property
    def _stepping(self) -> dict[str, Any]:
        """How the base steps: fused where its tensors are whole, and Adam so that a CUDA graph can hold it."""
        whole = not self.sharded
        adam = {} if self.recipe.optimizer == "sgd" else {"capturable": whole and self.device.type == "cuda"}
        return {"fused": whole, **adam}

    def _captured(self, batch: tuple[Tensor, ...]) -> bool:
        """Whether something had to be captured for a batch of this shape."""
        assert self.opt is not None
        if self._step is None:
            self._step = GraphSteps(self._eager, self.net)
        if not isinstance(self._step, GraphSteps):
            return False
        reason = self.opt.rule.not_capturable
        if reason is None:
            try:
                return self._step.capture(batch)
            except torch.cuda.OutOfMemoryError:
                raise
            except RuntimeError as problem:
                reason = str(problem).partition("\n")[0]
        self.say(f"{self.method.name}: no CUDA graph ({reason}); stepping eagerly")
        self._step = self._eager
        return True

    def _test_graph(self) -> Tensor:
        """The sums over the test images, from a graph: it is asked for after every epoch."""
        if self._test is None:
            self._test = GraphOf(
                lambda: self.kind.count(self.net, self.source.test_batches(), self._autocast, self.device)
            )
        return self._test()

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
        if self._drawing is None:
            torch.default_generator.manual_seed(seed)
        else:  # a state of this run's own: its graph reads the seed while others are setting theirs
            generator = torch.cuda.default_generators[self.device.index or 0]
            generator.graphsafe_set_state(self._drawing)
            generator.manual_seed(seed)

    def _autocast(self) -> AbstractContextManager[None]:
        return torch.autocast(
            self.device.type, torch.bfloat16, enabled=self.recipe.precision == "bf16", cache_enabled=False
        )

    def _on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    @contextmanager
    def _evaluated_net(self, anew: bool = False) -> Iterator[nn.Module]:
        """The net as it is judged: clean weights, or their average; running statistics of rank 0, or recomputed."""
        average = self._average
        net = self.net if average is None else average
        again = self._always_anew or anew
        kept = [buffer.clone() for buffer in net.buffers()] if again else []
        if again:
            self._seed_layers()
            with self._autocast():
                recompute_bn(net, self._batches_for_bn())
        if self.ranks.several:
            same_buffers(net)
        try:
            yield net
        finally:
            if again and not (self._always_anew and self.done):
                with torch.no_grad():
                    for buffer, value in zip(net.buffers(), kept, strict=True):
                        buffer.copy_(value)

    @property
    def _always_anew(self) -> bool:
        """Whether every evaluation gathers batch-norm's statistics again; those of the last one stay in the net."""
        return self.recipe.recompute_bn or self._average is not None

    @property
    def _average(self) -> nn.Module | None:
        """The mean of the weights, of the methods that take one."""
        opt = self.opt
        return opt.averaged.module if isinstance(opt, Averaging) and opt.averaged.n_averaged > 0 else None

    def _batches_for_bn(self) -> Iterator[Tensor]:
        """Augmented images of the epoch just trained, the same on all ranks."""
        size = self.recipe.batch
        for step in range(max(1, min(self.steps, IMAGES_FOR_BN // size))):
            yield self._part(self.epoch - 1, step, size, Ranks())[0]


def check_kind(model: str, data: str, kind: str) -> None:
    """A model of ssgd's own is for data of one kind; of yours nothing is known."""
    known = models.MODELS.get(model)
    if known is not None and known.kind != kind:
        raise ValueError(f"{model} is for {known.kind}, and {data} is {kind}: choose another of `ssgd models`")


def _in_turn(halves: Iterable[Tensor], devices: int) -> list[Tensor]:
    """A piece of each half for the first device, for the next, …"""
    pieces = zip(*(half.chunk(devices) for half in halves), strict=True)
    return [piece for two in pieces for piece in two]
