"""Tolerance: how accurate a solution stays when its weights or inputs are damaged.

Every figure comes twice where the model has batch-norm: with the statistics as training left them, and "recalibrated",
with statistics gathered again after the damage, from a few batches and without labels.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..core.batchnorm import tracking_layers
from ..core.checks import check_choice, check_count, check_seed
from ..core.noise import mix
from ..core.parallel import bare
from .acceleration import Captured, widest
from .damage import DAMAGES, Damage, Weights, float_tensors, noisy_inputs
from .results import Header, Row, complete
from .task import NO_BATCHES, PRECISIONS, Again, Task, check_task, samples, seeded, unmoved

Array = NDArray[np.float64]
Strengths = Mapping[str, Sequence[float] | None]
AS_IS, RECALIBRATED = "as it is", "recalibrated"
FIGURES = ("loss", "error", "ece")
BY_DEFAULT = tuple(name for name in DAMAGES if name != "fresh-filter-noise")
SHORT = ("noise", "pruning", "channel-bits")
BINS = 15  # of confidence, for the calibration error


@dataclass(frozen=True, eq=False)
class Tolerance:
    """Loss, error (in percent) and calibration error of a solution under each damage; the first row is without any.

    The arrays have the dimensions damage, draw, column. They are nan beyond a damage's draws, and for figures that the
    task does not count: the error, and the ECE, which needs ``Task.logits``. With these, the loss is the negative log
    likelihood.
    """

    damages: list[str]  # the name of each row, "none" for the first
    strengths: Array
    columns: list[str]  # "as it is" and, for a model with batch-norm, "recalibrated"
    losses: Array
    errors: Array
    eces: Array  # expected calibration error, in percent, over 15 bins of confidence
    draws: int
    recalibration: int  # samples that the statistics were gathered from
    seed: int
    precision: str
    digest: str  # of the model's tensors
    seconds: float | None = None  # all evaluations together; not in the file

    def values(self, what: str) -> Array:
        """Returns ``"loss"``, ``"error"``, ``"accuracy"``, ``"perplexity"`` or ``"ece"``."""
        check_choice("what", what, ("loss", "error", "accuracy", "perplexity", "ece"))
        if what == "accuracy":
            return 100 - self.errors
        if what == "perplexity":
            return np.exp(np.minimum(self.losses, 700))
        return {"loss": self.losses, "error": self.errors, "ece": self.eces}[what]

    def summary(self, what: str) -> tuple[Array, Array, Array]:
        """Returns mean, standard deviation (nan for one draw) and worst over the draws, by damage and column."""
        rows = [row[: _draws(name, self.draws)] for name, row in zip(self.damages, self.values(what), strict=True)]
        mean = np.array([row.mean(0) for row in rows])
        sd = np.array([row.std(0, ddof=1) if len(row) > 1 else np.full(row.shape[1], math.nan) for row in rows])
        worst = np.array([row.min(0) if what == "accuracy" else row.max(0) for row in rows])
        return mean, sd, worst

    def curve(self, damage: str, what: str, column: str) -> tuple[Array, Array, Array]:
        """Returns strengths, mean and standard deviation of a damage; strength 0 is the solution without damage."""
        check_choice("damage", damage, tuple(dict.fromkeys(self.damages[1:])))
        rows = np.array([name == damage for name in self.damages])
        if not damage.endswith("bits"):
            rows[0] = True
        mean, sd, _ = self.summary(what)
        place = self.columns.index(column)
        return self.strengths[rows], mean[rows, place], sd[rows, place]

    def figures(self) -> dict[str, Any]:
        """Returns means, standard deviations and worst draws as plain JSON: damage → strength → figure → columns."""
        found: dict[str, Any] = {"columns": self.columns, "draws": self.draws, "recalibration": self.recalibration}
        for what in FIGURES:
            for kind, values in zip(("", "_sd", "_worst"), self.summary(what), strict=True):
                for damage, strength, row in zip(self.damages, self.strengths, values, strict=True):
                    if not np.isnan(row).all():
                        plain = [float(value) if math.isfinite(value) else None for value in row]
                        found.setdefault(damage, {}).setdefault(f"{strength:g}", {})[f"{what}{kind}"] = plain
        return found


def tolerance(
    task: Task,
    damages: Strengths | Iterable[str] | None = None,
    *,
    draws: int = 25,
    recalibrate: int = 2000,
    weights: Iterable[Tensor] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    progress: bool = True,
    precision: str = "fp32",
    graph: bool = False,
    data: object = None,
) -> Tolerance:
    """Measures a solution under each damage, and leaves the model bit for bit as it was, also after an interrupt.

    Args:
        task: judged on its batches. Give it ``logits`` for calibration, ``as_trained`` for batches of training inputs
            to recalibrate on, by default its own.
        damages: names of ``DAMAGES``, with strengths or None for the usual ones; by default nearly all of them.
        draws: of random damage, the same directions at every strength.
        recalibrate: batch-norm's statistics are gathered from so many samples, in whole batches.
        weights: those that are damaged, such as ``ssgd.select(...)`` gives; by default all tensors of two or more
            dimensions.
        out: evaluations are written to ``out.jsonl`` as they are done, and the same call goes on where it was cut; at
            the end ``out.npz`` and ``out.json`` hold the result.
        precision: ``"fp32"`` without TF32, ``"tf32"`` or ``"bf16"``, which are faster.
        graph: replay the passes of a batch as CUDA graphs, for nets too small to keep a GPU busy.
        data: what the data are, as text or as JSON, for ``out.jsonl``: evaluations of others are then not taken up.

    Under ``torchrun`` the evaluations are shared out; every process returns the whole.
    """
    check_task(task)
    check_count("draws", draws)
    check_count("recalibrate", recalibrate)
    check_choice("precision", precision, PRECISIONS)
    seed, model = check_seed(seed), bare(task.model)
    with unmoved(task.model, precision=precision, stream=seeded(model)) as stream:
        task = task.replaying(stream)
        points = [("none", 0.0, 0), *_points(task, damages, draws)]
        measurement = _Measurement(task, Weights(model, weights), recalibrate, seed, graph)
        header: Header = {
            "damages": points,
            "draws": draws,
            "columns": measurement.columns,
            "recalibration": measurement.recalibration,
            "seed": seed,
            "precision": precision,
            "digest": _digest(model, measurement.weights),
            "data": data,
        }
        return complete(out, header, points, measurement, _result, "evaluations", progress)


def tolerance_of(task: Task, draws: int = 10) -> dict[str, Any]:
    """Returns the figures of a run's row: noise, pruning and bits, with few draws."""
    return tolerance(task, SHORT, draws=draws, progress=False).figures()


class _Measurement:
    """Evaluates the task under one damage after another."""

    def __init__(self, task: Task, weights: Weights, recalibrate: int, seed: int, graph: bool) -> None:
        model = bare(task.model)
        layers = tracking_layers(model)
        self.task, self.weights, self.seed = task, weights, seed
        self.statistics = [buffer for layer in layers for buffer in layer.buffers(recurse=False)]
        self.trained = [buffer.clone() for buffer in self.statistics]
        self.columns = [AS_IS, RECALIBRATED] if layers else [AS_IS]
        self.inputs, self.recalibration = _few(task, recalibrate) if layers else ([], 0)
        counters = [layer.num_batches_tracked for layer in layers if layer.num_batches_tracked is not None]
        faster: Callable[..., Any] = partial(Captured, counters=counters) if graph else lambda function: function
        self.sums = faster(lambda batch: _sums(task, batch))
        self.forward = faster(lambda inputs: task.model(inputs))

    def __call__(self, point: tuple[str, float, int]) -> list[list[float | None]]:
        """Returns the figures of each column, for a damage, its strength and the draw."""
        name, strength, draw = point
        if self.statistics:
            torch._foreach_copy_(self.statistics, self.trained)
        damage = DAMAGES.get(name)
        prepare = self._prepared(damage, strength, draw)
        found = [self._figures(prepare)]
        if len(self.columns) > 1:
            inputs = Again(lambda: (prepare(given, given) for given in self.inputs))
            replace(self.task, as_trained=inputs, inputs=lambda given: given).recompute_batchnorm(self.forward)
            found.append(self._figures(prepare))
        return found

    def _prepared(self, damage: Damage | None, strength: float, draw: int) -> Callable[[Any, Any], Any]:
        """Does the damage, or returns the function of a batch and its inputs that does it for each batch."""
        weights, as_it_is = self.weights, lambda batch, inputs: batch
        if damage is None:
            weights.load(weights.clean)
            return as_it_is
        seeds = (mix(self.seed, draw, pass_) for pass_ in count())  # the same directions for every kind and strength
        generator = torch.Generator(weights.device).manual_seed(next(seeds))
        damaged = damage.weights
        if damaged is None:
            weights.load(weights.clean)
            return lambda batch, inputs: noisy_inputs(batch, inputs, strength, generator)
        if not damage.each_batch:
            weights.load(damaged(weights, strength, generator))
            return as_it_is

        def drawn(batch: Any, inputs: Any) -> Any:
            weights.load(damaged(weights, strength, generator))
            return batch

        return drawn

    def _figures(self, prepare: Callable[[Any, Any], Any]) -> list[float | None]:
        task = replace(self.task, batches=Again(lambda: (prepare(b, self.task.inputs(b)) for b in self.task.batches)))
        sums, total = task.total(self.sums)
        error = 100 * sums[1] / sums[2] if task.counts_errors or task.logits is not None else None
        ece = None
        if task.logits is not None:
            right, confidence = np.array(sums[3:]).reshape(2, BINS)
            ece = float(100 * np.abs(right - confidence).sum() / total)
        return [sums[0] / total, error, ece]


@torch.no_grad()
def _sums(task: Task, batch: Any) -> Tensor:
    """Returns a batch's ``Task.sums``; with logits also right answers and confidence, in each bin of it."""
    if task.logits is None:
        return task.sums(task.model, batch)
    scores, labels = task.logits(task.model, batch)
    scores = scores.to(widest(scores.device))
    confidence, chosen = scores.softmax(1).max(1)
    right = (chosen == labels).to(scores)
    bins = F.one_hot((confidence * BINS).long().clamp_(0, BINS - 1), BINS).to(scores)
    by_bin = torch.stack([right, confidence]) @ bins
    loss = F.cross_entropy(scores, labels, reduction="sum")
    answers = torch.full_like(loss, len(labels))
    return torch.cat([torch.stack([loss, answers - right.sum(), answers]), by_bin.flatten()])


def _points(task: Task, damages: Strengths | Iterable[str] | None, draws: int) -> Iterator[tuple[str, float, int]]:
    """Yields name, strength and draw of every evaluation."""
    first = next(iter(task.batches), None)
    if first is None:
        raise ValueError(NO_BATCHES)
    inputs = {id(leaf) for leaf in float_tensors(task.inputs(first))}
    noisy = any(id(leaf) in inputs for leaf in tree_leaves(first))
    if damages is None:
        damages = [name for name in BY_DEFAULT if noisy or name != "input-noise"]
    asked = damages if isinstance(damages, Mapping) else dict.fromkeys(damages)
    for name, strengths in asked.items():
        check_choice("a damage", name, tuple(DAMAGES))
        if name == "input-noise" and not noisy:
            raise ValueError("input-noise needs inputs that are floating-point tensors of the batches")
        for strength in DAMAGES[name].strengths if strengths is None else strengths:
            DAMAGES[name].check(strength)
            for draw in range(_draws(name, draws)):
                yield name, float(strength), draw


def _draws(name: str, draws: int) -> int:
    return draws if name != "none" and DAMAGES[name].random else 1


def _few(task: Task, recalibrate: int) -> tuple[list[Any], int]:
    """Returns the inputs that the statistics are gathered from, and the number of their samples."""
    found, seen = [], 0
    for inputs in task.inputs_for_batchnorm():
        found.append(inputs)
        seen += samples(inputs)
        if seen >= recalibrate:
            break
    return found, seen


def _digest(model: nn.Module, weights: Weights) -> str:
    """Returns a hash of the model's tensors, and of which are damaged."""
    damaged = {t.data_ptr() for t in weights.tensors}
    found = hashlib.sha256()
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        found.update(repr((name, tensor.dtype, tuple(tensor.shape), tensor.data_ptr() in damaged)).encode())
        found.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _result(header: Header, found: Sequence[Row]) -> Tolerance:
    rows = list(dict.fromkeys((name, strength) for name, strength, _ in header["damages"]))
    values = np.full((len(FIGURES), len(rows), header["draws"], len(header["columns"])), math.nan)
    place = {row: number for number, row in enumerate(rows)}
    for (name, strength, draw), row in zip(header["damages"], found, strict=True):
        values[:, place[name, strength], draw] = np.array(row["measured"], dtype=float).T
    copied = ("columns", "draws", "recalibration", "seed", "precision", "digest")
    return Tolerance(
        **{key: header[key] for key in copied},
        damages=[name for name, _ in rows],
        strengths=np.array([strength for _, strength in rows]),
        losses=values[0],
        errors=values[1],
        eces=values[2],
    )
