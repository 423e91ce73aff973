"""Damage to weights: Gaussian noise, pruning by magnitude, rounding to a few bits; and noise on inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..core.selection import magnitudes
from .task import WeightVector

CLIPS = 100  # tried for each channel or tensor, from 1 % to 100 % of its largest weight


class Weights(WeightVector):
    """The weights of a model that damage is done to, as one vector: by default all tensors of two or more dimensions.

    ``clean`` holds their values at first. Biases, normalisation and weight-norm's magnitudes stay as they are.
    """

    def __init__(self, model: nn.Module, chosen: Iterable[Tensor] | None = None) -> None:
        known = list(model.parameters())
        skipped = magnitudes(known, model)
        found = [p for p in known if p.dim() >= 2 and id(p) not in skipped] if chosen is None else list(chosen)
        if not found:
            raise ValueError("there are no weights to damage: choose some with weights=ssgd.select(model, ...)")
        if not {id(p) for p in found} <= {id(p) for p in known}:
            raise ValueError("weights names a tensor that is not a parameter of the task's model")
        if any(not p.is_floating_point() for p in found):
            raise ValueError("only real floating-point weights can be damaged: leave the others out with weights=...")
        super().__init__(found, torch.promote_types(found[0].dtype, torch.float32))
        self.clean = self.now()
        if not self.clean.isfinite().all():
            raise ValueError("the weights are not finite: there is nothing to measure the tolerance of")
        self._rms: dict[str, Tensor] = {}

    def noisy(self, ratio: float, by: str, generator: torch.Generator) -> Tensor:
        """Returns the weights plus Gaussian noise of ``ratio`` times their rms in each ``"tensor"`` or ``"filter"``.

        Its expected norm is ``ratio`` times that of the weights. A filter is a row of the tensor.
        """
        if by not in self._rms:
            mean = [rows.square().mean(1, keepdim=True).expand_as(rows) for rows in self._rows(by)]
            self._rms[by] = torch.cat([part.reshape(-1) for part in mean]).sqrt()
        noise = torch.randn(len(self.clean), generator=generator, device=self.device, dtype=self.dtype)
        return noise.mul_(self._rms[by]).mul_(ratio).add_(self.clean)

    def pruned(self, share: float, by: str) -> Tensor:
        """Returns the weights without the smallest ``share`` of all (``"model"``) or of each ``"tensor"``."""
        values = self.clean.clone()
        for part in [values] if by == "model" else torch.split(values, self.sizes):
            part[part.abs().argsort(stable=True)[: round(share * len(part))]] = 0
        return values

    def rounded(self, bits: int, by: str) -> Tensor:
        """Returns the weights rounded to 2^bits − 1 evenly spaced values, from −clip to clip.

        Each ``"filter"`` (an output channel) or ``"tensor"`` has the clip of the least squared error among ``CLIPS``.
        """
        return torch.cat([_with_best_clip(rows, 2 ** (bits - 1) - 1).reshape(-1) for rows in self._rows(by)])

    def _rows(self, by: str) -> list[Tensor]:
        """Returns each tensor as a matrix whose rows are its filters, or as one row."""
        parts = zip(torch.split(self.clean, self.sizes), self.tensors, strict=True)
        return [part.view(len(p) if by == "filter" else 1, -1) for part, p in parts]


def _with_best_clip(rows: Tensor, top: int) -> Tensor:
    largest = rows.abs().amax(1, keepdim=True)
    best = rows.new_full(largest.shape, torch.inf)
    found = torch.zeros_like(rows)
    for step in range(CLIPS, 0, -1):
        tried = rounded_to(rows, largest * (step / CLIPS / top), top)
        error = (tried - rows).square().sum(1, keepdim=True)
        better = error < best
        found, best = torch.where(better, tried, found), torch.where(better, error, best)
    return found


def rounded_to(values: Tensor, scale: Tensor, top: int) -> Tensor:
    """Returns the nearest of the values −top · scale, …, 0, …, top · scale; zero where the scale is zero."""
    return (values / scale).nan_to_num(0.0).round().clamp(-top, top) * scale


def noisy_inputs(batch: Any, inputs: Any, ratio: float, generator: torch.Generator) -> Any:
    """Returns the batch with noise on those of its floating-point tensors that are ``inputs``.

    The noise of a sample is Gaussian, of ``ratio`` times the sample's rms.
    """
    chosen = {id(leaf) for leaf in float_tensors(inputs)}

    def noisy(leaf: Any) -> Any:
        if id(leaf) not in chosen:
            return leaf
        rms = leaf.flatten(1).square().mean(1).sqrt().view(-1, *[1] * (leaf.dim() - 1))
        noise = torch.randn(leaf.shape, generator=generator, device=leaf.device, dtype=leaf.dtype)
        return leaf + ratio * rms * noise

    return tree_map(noisy, batch)


def float_tensors(inputs: Any) -> list[Tensor]:
    """Returns the inputs that noise can be added to."""
    return [t for t in tree_leaves(inputs) if isinstance(t, Tensor) and t.is_floating_point() and t.dim() > 1]


@dataclass(frozen=True)
class Damage:
    """A kind of damage: its strengths by default, and how the weights come out, if they change.

    ``weights(weights, strength, generator)`` returns the damaged weights. ``random`` damage has several draws; that of
    ``each_batch`` is drawn again for every batch, in the weights or, where those stay, in the inputs.
    """

    name: str
    strengths: Sequence[float]
    axis: str  # of a picture
    weights: Callable[[Weights, Any, torch.Generator], Tensor] | None
    random: bool = False
    each_batch: bool = False

    def check(self, strength: float) -> None:
        if self.name.endswith("bits"):
            fits, wanted = strength in range(2, 17), "a whole number of bits from 2 to 16"
        elif self.name.endswith("pruning"):
            fits, wanted = 0 <= strength < 1, "a share of the weights, from 0 to below 1"
        else:
            fits, wanted = 0 <= strength < float("inf"), "a ratio of norms, a finite number of at least 0"
        if not fits:
            raise ValueError(f"{self.name} takes {wanted}, not {strength!r}")


RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5)
SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
BITS = (8, 6, 5, 4, 3, 2)
NOISE = "norm of noise / norm of weights"
PRUNED = "share of weights pruned"
DAMAGES = {
    damage.name: damage
    for damage in (
        Damage("noise", RATIOS, NOISE, lambda w, s, g: w.noisy(s, "tensor", g), random=True),
        Damage("filter-noise", RATIOS, NOISE, lambda w, s, g: w.noisy(s, "filter", g), random=True),
        Damage("fresh-noise", RATIOS, NOISE, lambda w, s, g: w.noisy(s, "tensor", g), random=True, each_batch=True),
        Damage("fresh-filter-noise", RATIOS, NOISE, lambda w, s, g: w.noisy(s, "filter", g), True, True),
        Damage("pruning", SHARES, PRUNED, lambda w, s, g: w.pruned(s, "model")),
        Damage("layer-pruning", SHARES, f"{PRUNED} in each layer", lambda w, s, g: w.pruned(s, "tensor")),
        Damage("channel-bits", BITS, "bits a weight, clip per channel", lambda w, s, g: w.rounded(int(s), "filter")),
        Damage("tensor-bits", BITS, "bits a weight, clip per tensor", lambda w, s, g: w.rounded(int(s), "tensor")),
        Damage("input-noise", RATIOS, "norm of noise / norm of inputs", None, random=True, each_batch=True),
    )
}
