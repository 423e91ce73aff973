"""One training: net, optimizer and position, a step at a time.

All randomness is a function of seed and position: initialisation, order and augmentation of the data, noise, dropout.
So weights, optimizer and position are the whole state, and a run ends the same however often it was cut, and whatever
ran beside it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...core.noise import mix
from ...core.noise_points import NoisyOptimizer
from ...core.point_optimizer import PointOptimizer
from ...kernels import has_kernels
from ...methods import registry
from ..compilation import compiled_for
from ..data.registry import Source
from .building import autocast, base_options, build_base, build_method, build_net
from .distributed import Ranks, load_whole_state, of_each_rank, total, whole_state, wrap
from .evaluating import averaged_net, evaluate
from .kinds import kind_of
from .phases import Phase
from .recipe import Execution, Recipe
from .steps import GraphOf, GraphSteps, PairStep, Step, can_pair, unchanged

FORMAT = 2  # of the state that goes into checkpoints


class Diverged(ArithmeticError):
    """The loss is no longer a number."""


class Run:
    """Trains ``recipe`` with one seed.

    Of ``execution`` compile, graph, pair and kernels count, where they are true. ``say`` is called with a line where
    something is done in another way than asked.
    """

    def __init__(
        self,
        recipe: Recipe,
        seed: int,
        source: Source,
        device: torch.device,
        ranks: Ranks,
        execution: Execution | None = None,
        say: Any = print,
    ) -> None:
        self.recipe, self.seed, self.source, self.device, self.ranks = recipe, seed, source, device, ranks
        self.execution, self.say = execution or Execution(), say
        self.schedule = recipe.schedule
        self.epoch, self.step_in_epoch = 0, 0
        self.history: list[dict[str, Any]] = []
        on_gpu = device.type == "cuda"
        # torch has 32 streams: a run takes two at most, or runs side by side would share them
        self.stream = torch.cuda.Stream(device) if on_gpu else None  # type: ignore[no-untyped-call]
        self._side = torch.cuda.Stream(device) if on_gpu and self.execution.pair else None  # type: ignore[no-untyped-call]
        self._drawing = torch.cuda.default_generators[device.index or 0].clone_state() if on_gpu else None
        self.sums = torch.zeros(3, device=device)
        self.autocast = partial(autocast, device, recipe.precision)

        self.net = build_net(recipe, seed, source)
        self.kind = kind_of(source)
        self.steps = source.steps(recipe.batch)
        if self.execution.kernels and (not on_gpu or has_kernels(device)):
            from ...kernels.conv2d import use_fast_convolutions

            use_fast_convolutions(self.net)
        self.sharded = ranks.several and recipe.parallel == "fsdp"
        layout = torch.contiguous_format if self.sharded else torch.channels_last  # FSDP takes no other
        self.net.to(device=device, memory_format=layout)  # type: ignore[call-overload]
        self.model = wrap(self.net, recipe.parallel, recipe.sync_batchnorm, device) if ranks.several else self.net
        self.compiled = bool(self.execution.compile) and self.kind.compiles
        self.graph = bool(self.execution.graph) and self.kind.captures
        plain = self.kind.objective
        self.objective = compiled_for(device, plain) if self.compiled else plain
        self.lr: Tensor | float = torch.tensor(recipe.lr[0], device=device) if on_gpu else recipe.lr[0]
        self.opt: PointOptimizer | None = None
        self._noise_stream: str | None = None
        self.test_graph: GraphOf | None = None
        self._step: Step | GraphSteps | None = None
        self._rate: float | None = None  # the number that the tensor lr holds
        self._buckets_laid_out = not ranks.several or self.sharded
        if self.stateful:
            self.net.reset(recipe.batch // ranks.count)  # type: ignore[operator]
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.current_stream(device))
        self._begin_phase()

    # --- position ---------------------------------------------------------------------------------------------------

    @property
    def done(self) -> bool:
        return self.epoch == self.schedule.epochs

    @property
    def phase_index(self) -> int:
        return self.schedule.index(min(self.epoch, self.schedule.epochs - 1))

    @property
    def phase(self) -> Phase:
        return self.schedule.phases[self.phase_index]

    @property
    def position(self) -> int:
        """Steps taken in all."""
        return self.epoch * self.steps + self.step_in_epoch

    @property
    def epoch_is_over(self) -> bool:
        return self.step_in_epoch == self.steps

    @property
    def compiles_next(self) -> bool:
        """Whether the next step has to be compiled and captured first, which can take a minute."""
        return self.compiled and self._step is None

    # --- step -------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Trains on the next batch. At the end of an epoch, finish_epoch() must follow."""
        batch = self._batch()
        with self.on_stream():
            self._set_lr(self.schedule.lr(self.epoch + self.step_in_epoch / self.steps))
            if self.stateful and self.step_in_epoch == 0:
                self.net.reset(len(batch[0]))  # type: ignore[operator]
            if not self._buckets_laid_out:
                self._lay_out_buckets(batch)
            self.seed_layers()
            if self._captured(batch):
                self.seed_layers()
            assert self._step is not None
            self._step(*batch)
        self.step_in_epoch += 1

    def finish_epoch(self) -> dict[str, Any]:
        """Ends the epoch and returns its metrics: means over its passes, and the clean weights on the test set."""
        phase = self.phase
        with self.on_stream():
            sums = total(self.sums) if self.ranks.several else self.sums.clone()
            self.sums.zero_()
            seen = sums.tolist()  # on the stream that filled them: another would not wait
        if not math.isfinite(seen[0]):
            raise Diverged(f"the loss is {seen[0]} after epoch {self.epoch + 1}: lower lr or the level")
        row: dict[str, Any] = {"epoch": self.epoch + 1, "method": phase.method, "level": phase.level}
        row |= {"lr": self.schedule.lr(self.epoch), **self.kind.progress(seen)}
        self.epoch, self.step_in_epoch = self.epoch + 1, 0
        if self.done or self.epoch % self.recipe.evaluate_every == 0:
            for part in self.kind.every_epoch:
                row |= self.evaluate(part)
                if not math.isfinite(loss := row[f"{part}_loss"]):  # of the last step no training loss tells
                    raise Diverged(f"the {part} loss is {loss} after epoch {self.epoch}: lower lr or the level")
        self.history.append(row)
        if (self.phase.method, self.phase.level) != (phase.method, phase.level):
            self._begin_phase()
        return row

    def evaluate(self, part: str, recompute_bn: bool = False) -> dict[str, float]:
        """Measures the clean weights on a part of the data, ``"train"``, ``"valid"`` or ``"test"``.

        ``recompute_bn``: with batch-norm's statistics gathered again for this once, whatever the recipe says.
        """
        return evaluate(self, part, recompute_bn)

    # --- state ------------------------------------------------------------------------------------------------------

    def weights(self) -> dict[str, Tensor]:
        """The weights that are evaluated: the net's, or their average. Every rank must call it."""
        average = averaged_net(self)
        return self.state()["model"] if average is None else average.state_dict()

    def state(self) -> dict[str, Any]:
        """All that decides how the run goes on, for any number of ranks, of which every one must call it."""
        assert self.opt is not None
        with self.on_stream():
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
        """Goes on from what state() returned."""
        if state.get("format") != FORMAT:
            raise ValueError(
                f"the checkpoint is of format {state.get('format')}, and this ssgd reads format {FORMAT}:"
                " go on with the ssgd that wrote it, or delete the run's folder to start again"
            )
        try:
            self._load(state)
        except torch.cuda.OutOfMemoryError:
            raise
        except (KeyError, AttributeError, TypeError, IndexError, ValueError, RuntimeError) as problem:
            raise ValueError(
                f"the checkpoint does not fit the run ({type(problem).__name__}: {problem}): it is damaged, or of"
                " another net; delete the run's folder to start again"
            ) from problem

    def _load(self, state: dict[str, Any]) -> None:
        self.epoch, self.step_in_epoch = state["epoch"], state["step"]
        self.history = list(state["history"])
        if not 0 <= self.position <= self.steps * self.schedule.epochs:
            raise ValueError(f"epoch {self.epoch} of {self.schedule.epochs}")
        self._begin_phase()
        assert self.opt is not None
        with self.on_stream():
            # what was saved may have been cut in another way, and decides where Adam's counters go
            options = base_options(self.recipe, self.device, self.sharded)
            groups = [{**group, **options} for group in state["optimizer"]["param_groups"]]
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
        """Returns when the device has done all that it was asked."""
        if self.stream is not None:
            self.stream.synchronize()

    @property
    def stateful(self) -> bool:
        """Whether the net carries a state from step to step."""
        return hasattr(self.net, "carry")

    # --- batches and randomness -------------------------------------------------------------------------------------

    @property
    def devices_here(self) -> int:
        """How many of the recipe's devices this process does the work of."""
        return 1 if self.ranks.several else self.recipe.devices

    def part_of_batch(self, epoch: int, step: int, size: int, ranks: Ranks) -> tuple[Tensor, ...]:
        """A rank's part of a batch.

        It is made on the device's default stream, where runs share it, and waited for on this run's own.
        """
        with nullcontext() if self.stream is None else torch.cuda.stream(torch.cuda.default_stream(self.device)):
            batch = self.source.epoch(self.seed, epoch).batch(step, size, ranks.rank, ranks.count)
        if self.stream is not None:
            self.stream.wait_stream(torch.cuda.default_stream(self.device))
            for tensor in batch:
                tensor.record_stream(self.stream)
        return batch

    def _batch(self) -> tuple[Tensor, ...]:
        """This rank's part of the next batch; where halves matter a part of each, as they are for one process."""
        size, ranks, here = self.recipe.batch, self.ranks, self.devices_here
        sharing = ranks.count * here
        halves_are_batches = self.source.kind == "images"  # of texts and utterances they are another cut of the data
        if not (self.method.halves and sharing > 1 and halves_are_batches) or size % (2 * sharing):
            return self.part_of_batch(self.epoch, self.step_in_epoch, size, ranks)
        parts = [self.part_of_batch(self.epoch, 2 * self.step_in_epoch + i, size // 2, ranks) for i in (0, 1)]
        with self.on_stream():
            return tuple(torch.cat(_by_device(pair, here)) for pair in zip(*parts, strict=True))

    def seed_layers(self) -> None:
        """Seeds torch's own generators, from which dropout and its like draw."""
        seed = mix(self.seed, 2, self.position, self.ranks.rank)
        if self._drawing is None:
            torch.default_generator.manual_seed(seed)
        else:  # a state of this run's own: its graph reads the seed while others are setting theirs
            generator = torch.cuda.default_generators[self.device.index or 0]
            generator.graphsafe_set_state(self._drawing)
            generator.manual_seed(seed)

    def on_stream(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.stream is None else torch.cuda.stream(self.stream)

    # --- phases and steps -------------------------------------------------------------------------------------------

    def _begin_phase(self) -> None:
        """Puts the phase's method around the base, which keeps its momentum."""
        self.method = registry.get(self.phase.method)
        with self.on_stream():  # methods copy weights, which a step may still be changing
            options = base_options(self.recipe, self.device, self.sharded)
            self._noise_stream = self.noise_stream
            base = build_base(self.recipe, self.net, self.lr, options) if self.opt is None else self.opt.release()
            self.opt = build_method(self.recipe, self.seed, self.phase_index, base, self.model, self.net)
            if self.recipe.per_rank is not False and isinstance(self.opt, NoisyOptimizer):
                self.opt.as_ranks(self.devices_here)
            self._eager = self._make_step()
        self._step = None if self.graph else self._eager

    @property
    def noise_stream(self) -> str | None:
        """The random stream of this phase's noise, else of the last one's that had noise: torch or philox."""
        stream = self.opt.rule.state(self.opt) if isinstance(self.opt, NoisyOptimizer) else None
        return stream or self._noise_stream

    def _make_step(self) -> Step:
        assert self.opt is not None
        rest = self.autocast, self.sums, self.recipe.clip
        two_passes = self.method.one_pass is None
        if self.execution.pair and two_passes and self.devices_here == 1 and can_pair(self.opt, self.model):
            parts = self.method, self.opt, self.model, self.kind.objective
            return PairStep(*parts, *rest, side=self._side, compiled=self.compiled)
        eager = self.kind.objective if self.compiled else None
        return Step(self.method, self.opt, self.model, self.objective, *rest, self.devices_here, eager)

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

    def _set_lr(self, rate: float) -> None:
        if isinstance(self.lr, Tensor):
            if rate != self._rate:
                self.lr.fill_(rate)
                self._rate = rate
            return
        assert self.opt is not None
        for group in self.opt.param_groups:
            group["lr"] = rate

    def _lay_out_buckets(self, batch: tuple[Tensor, ...]) -> None:
        """Makes a pass that leaves no trace, for DDP.

        DDP lays its buckets out again after its first pass, and the bits of sums over ranks depend on the layout. A
        resumed run would otherwise go on with other bits than one that was never cut.
        """
        assert self.opt is not None
        with unchanged(self.net, self.opt, self.sums):
            with self.autocast():
                loss, _ = self.objective(self.model, *batch)
            loss.backward()  # type: ignore[no-untyped-call]
        self._buckets_laid_out = True


def _by_device(halves: Iterable[Tensor], devices: int) -> list[Tensor]:
    """A piece of each half for the first device, for the next, …"""
    pieces = zip(*(half.chunk(devices) for half in halves), strict=True)
    return [piece for two in pieces for piece in two]
