"""A run and its directory: begun, resumed, checkpointed, finished or failed."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ...files import append_line, explained, write_whole
from ...methods import registry
from ...optimizer import SSGD
from ..data.faults import Skipped, counts
from ..data.preprocess import to_json
from ..data.registry import Options, Source, load
from .checkpoint import Checkpoints, write_safetensors
from .distributed import Ranks, by_first, total
from .evaluating import tolerance_figures, with_recomputed_bn
from .kinds import figure
from .recipe import Execution, Recipe
from .rundir import RunDir, check_unchanged, environment, of_files, of_model, of_words
from .running import Diverged, Run

TOLD = 20  # of what was skipped in the data, at the terminal
ROUND = 20  # steps after which ranks ask each other whether to stop or to save


class Job:
    """One recipe with one seed, in a folder of its own. Calling for the same again goes on where it ended."""

    def __init__(
        self, recipe: Recipe, seed: int, execution: Execution, ranks: Ranks, say: Callable[[str], None]
    ) -> None:
        self.recipe = replace(recipe.resolved(execution.kind), seeds=(seed,))
        self.seed, self.execution, self.ranks, self.say = seed, execution, ranks, say
        self.label = f"{recipe.name}/seed-{seed}"
        self.folder = execution.run_folder(recipe, seed)
        self.directory = RunDir(self.folder)
        self.checkpoints = Checkpoints(self.folder / "checkpoints", execution.keep)
        self.run: Run | None = None
        self.result: dict[str, Any] | None = None
        self.failure: BaseException | None = None
        self.divergence: dict[str, Any] | None = None  # the row of a run that failed so
        self.last: dict[str, Any] | None = None  # the metrics of the last epoch
        self.stop_asked = False
        self.stopped = False  # asked to, and saved
        self._events: Any = None  # TensorBoard's writer

    @property
    def samples_to_come(self) -> float:
        """Forward and backward, over all passes."""
        if self.run is None:
            return 0.0
        phases = [phase for phase in self.run.schedule.phases for _ in range(phase.epochs)][self.run.epoch :]
        passes = [phase.passes_a_step for phase in phases]
        steps = sum(passes) * self.run.steps - passes[0] * self.run.step_in_epoch
        return steps * self.recipe.batch

    @property
    def over(self) -> bool:
        return self.result is not None or self.failure is not None

    def begin(self, sources: Sources) -> None:
        """Open the folder and build the run, or take it up from its last checkpoint."""
        self.last = None
        if self.execution.tensorboard and self.ranks.first:
            self._events = _event_writer(self.folder / "tensorboard")
        self.result, saved = by_first(self.ranks, self._open)
        if self.result is not None:
            self._add_to_results(self.result)
            return
        ranks = self.ranks
        device = torch.device("cuda", ranks.on_this_host) if self.execution.kind == "cuda" else torch.device("cpu")
        source = sources.get(self.recipe, device)
        if ranks.first:
            self._note_skipped(source.skipped, sources.untold(source))
        by_first(ranks, partial(self._keep_fingerprint, source))
        execution = self.execution.decided(alone=not ranks.several)
        self.run = Run(self.recipe, self.seed, source, device, ranks, execution, self.say)
        if saved is not None:
            self.run.load(saved)
        if self.ranks.first:
            self.directory.rewrite_metrics(self.run.history)
            self.directory.add_timing({"epoch": self.run.epoch, "seconds": 0.0})
        self._saved = self._began = time.monotonic()
        if self.run.done:  # cut between its last checkpoint and its result
            self._finish(self.run)

    def advance(self) -> float:
        """One step, and what is due after it. Returns the samples passed, forward and backward."""
        run = self.run
        assert run is not None
        passes = run.phase.passes_a_step
        run.step()
        if run.epoch_is_over:
            self._end_epoch(run)
        elif self._due(run):
            self.save()
        if run.done:
            self._finish(run)
        return self.recipe.batch * passes

    def save(self) -> None:
        """A checkpoint of this very moment. With several ranks all must call it."""
        assert self.run is not None
        state = self.run.state()
        if self.ranks.first:
            self.directory.check_mine()
            self.checkpoints.save(self.run.position, state)
            if self.run.step_in_epoch:  # at the end of an epoch it is there already
                self._add_timing(self.run.epoch)
        self._saved = time.monotonic()
        self.stopped = self.stop_asked

    def note_divergence(self, problem: Diverged) -> None:
        """A row all the same, without figures: that its loss is no number any more is what came of a training."""
        if self.run is not None:
            self.divergence = self._row(self.run, {"diverged": str(problem)})

    def close(self) -> None:
        try:
            if self.run is not None:
                self.run.wait()  # memory freed under a step would be another run's too early
        finally:
            self.directory.close()
            self.run = None
            if self._events is not None:
                self._events.close()

    # --- the folder -------------------------------------------------------------------------------------------------

    def _open(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
        """The result, if the run is finished; else what its last checkpoint holds, if there is one."""
        state = self.directory.open(self.recipe.to_json(), environment())
        if known := self.directory.fingerprint():
            model = of_model(self.recipe, known.get("classes", 0), known.get("channels", 0))
            files = of_files(self.recipe, self.execution.folder)
            check_unchanged(known, {**known, **model, **files}, self.recipe, self.folder)
        if state == "finished":
            return self.directory.result(), None
        saved = self.checkpoints.load()
        return None, None if saved is None else saved[1]

    def _keep_fingerprint(self, source: Source) -> None:
        """Keeps what the run is trained with; whoever comes back to it must have the same."""
        words = of_words(getattr(source, "vocabulary", None))
        model = of_model(self.recipe, source.classes, source.channels)
        now = {**model, **of_files(self.recipe, self.execution.folder), **words}
        if known := self.directory.fingerprint():
            check_unchanged(known, now, self.recipe, self.folder)
        else:
            preprocess = None if source.preprocess is None else to_json(source.preprocess)
            self.directory.write_fingerprint({**now, "preprocess": preprocess})

    def _note_skipped(self, skipped: Sequence[Skipped], untold: bool) -> None:
        """All that was skipped in the data goes to a file of the run; the terminal hears of it once."""
        if not skipped:
            return
        file = self.folder / "skipped.jsonl"
        rows = "".join(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in skipped)
        write_whole(file, rows.encode("utf-8", "backslashreplace"))  # names of files need not be text
        for one in skipped[:TOLD] if untold else ():
            self.say(f"skipped: {one.place}: {one.sentence}")
        if untold:
            told = ", ".join(f"{count} × {kind}" for kind, count in counts(skipped).items())
            self.say(f"{self.recipe.data}: {len(skipped)} skipped ({told}); all of them are named in {file}")

    def _end_epoch(self, run: Run) -> None:
        self.last = row = run.finish_epoch()
        if self.ranks.first:
            self.directory.add_metrics(row)
            self._add_timing(row["epoch"])
            if self._events is not None:
                for key, value in row.items():
                    if isinstance(value, float):
                        self._events.add_scalar(key, value, row["epoch"])
        if self._due(run) or run.done:
            self.save()

    def _add_timing(self, epoch: int) -> None:
        self.directory.add_timing({"epoch": epoch, "seconds": round(time.monotonic() - self._began, 3)})

    def _due(self, run: Run) -> bool:
        """Whether to save now; agreed between ranks, which look at their clocks at the same steps only."""
        due = self.stop_asked or time.monotonic() - self._saved >= self.execution.checkpoint_seconds
        if not self.ranks.several:
            return due
        if not run.step_in_epoch or run.step_in_epoch % ROUND == 0:
            flags = total(torch.tensor([due, self.stop_asked], dtype=torch.float32, device=run.device)).tolist()
            self.stop_asked = flags[1] > 0
            return bool(flags[0])
        return False

    def _finish(self, run: Run) -> None:
        result = self._row(run, self._figures(run))
        weights = run.weights()
        if self.ranks.first:
            self.directory.check_mine()
            write_safetensors(self.folder / "weights.safetensors", weights)
            self.directory.write_result(result)
        self._add_to_results(result)
        self.result = result
        self.close()

    def _add_to_results(self, result: dict[str, Any]) -> None:
        """A line, unless it is there: of a run found finished a kill may have swallowed it."""
        if self.execution.results is None or not self.ranks.first:
            return
        file, line = Path(self.execution.results), json.dumps(result)
        with explained(file):
            *lines, torn = file.read_bytes().split(b"\n") if file.is_file() else [b""]
        if line.encode() not in lines:
            append_line(file, ("\n" if torn else "") + line)

    def _stretches(self) -> list[float]:
        """Seconds of training: the clock of timings.jsonl starts at 0 after each resumption."""
        if not self.ranks.first:
            return []
        marks = [row["seconds"] for row in self.directory.timings()]
        return [a for a, b in zip(marks, [*marks[1:], 0.0], strict=True) if b < a]

    def _figures(self, run: Run) -> dict[str, Any]:
        figures = {key: value for part in run.kind.at_the_end for key, value in run.evaluate(part).items()}
        told = {key: value for key, value in run.history[-1].items() if key.startswith(run.kind.every_epoch)}
        return {**figures, **told, **with_recomputed_bn(run), **tolerance_figures(run)}

    def _row(self, run: Run, outcome: Mapping[str, Any]) -> dict[str, Any]:
        """The row of a run: recipe, outcome, environment, and the course it took."""
        recipe, seconds = self.recipe, sum(self._stretches())
        method = registry.get(recipe.method)
        where = environment()
        return {
            "experiment": recipe.name,
            "model": recipe.model,
            "data": recipe.data,
            "method": method.name,
            "mode": "split" if method.halves else method.fixed.get("mode", "both"),
            "level": recipe.level,
            "distribution": _distribution(run),
            "noise_stream": run.noise_stream,
            "phases": recipe.phases,
            "weight_decay": recipe.weight_decay,
            "devices": recipe.devices,
            "seed": self.seed,
            "epochs": run.schedule.epochs,
            "passes": run.schedule.passes,
            "seconds": round(seconds, 1),
            **outcome,
            "skipped": counts(run.source.skipped),
            "device": where["devices"][0] if run.device.type == "cuda" else "cpu",
            "versions": {"ssgd": where["ssgd"], "torch": where["torch"], "python": where["python"]},
            "commit": where["commit"],
            "recipe": recipe.to_json(),
            "curve": [figure(row) for row in run.history],
            "curves": _curves(run.history),
        }


def _distribution(run: Run) -> str | None:
    """Of the noise, also where the last phase has none."""
    at_the_end = getattr(getattr(run.opt, "distribution", None), "name", None)
    noisy = any(registry.get(phase.method).make is SSGD for phase in run.schedule.phases)
    return run.recipe.distribution if at_the_end is None and noisy else at_the_end


def _curves(history: list[dict[str, Any]]) -> dict[str, list[float | None]]:
    """The other figures of each epoch: the loss of its passes, and the validation part where there is one."""
    names = [name for name in (history[-1] if history else {}) if name == "loss" or name.startswith("valid_")]
    return {name: [None if name not in row else round(row[name], 4) for row in history] for name in names}


def _event_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ImportError("tensorboard=true needs the package: pip install tensorboard") from None
    return SummaryWriter(str(folder))


class Sources:
    """The data of all jobs, each set loaded once."""

    def __init__(self, execution: Execution) -> None:
        self.execution = execution
        self._loaded: dict[tuple[str, Options], Source] = {}
        self._told: set[int] = set()

    def get(self, recipe: Recipe, device: torch.device) -> Source:
        dtype = torch.bfloat16 if recipe.precision == "bf16" else torch.float32
        asked = vars(self.execution) | vars(recipe)
        given = {one.name: asked[one.name] for one in fields(Options) if one.name in asked}
        key = recipe.data, Options(**{**given, "device": device, "dtype": dtype})
        if key not in self._loaded:
            self._loaded[key] = load(recipe.data, **vars(key[1]))
        return self._loaded[key]

    def untold(self, source: Source) -> bool:
        """Whether nobody has said yet what was skipped in a source: only the first to ask hears yes."""
        first = id(source) not in self._told
        self._told.add(id(source))
        return first
