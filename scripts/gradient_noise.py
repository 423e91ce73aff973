"""Measures the noise that a level puts into the gradient of a batch, along a training:
``python scripts/gradient_noise.py front-text/split-0.2 --levels 0.1 0.2``.

The batch is cut in halves A and B, as `split` cuts it. For each draw n the gradient g of a half at w + n and at w − n
gives its odd part (g(w + n) − g(w − n)) / 2, which is linear in n but for a cubic rest, and its even part
(g(w + n) + g(w − n)) / 2, which is constant but for a quadratic rest. From these follows the variance of each way to
take the gradient, summed over all parameters:

- one-sided: n on both halves;
- independent: a draw of its own for each half;
- pair: +n on A, −n on B, whose odd parts cancel as far as the halves agree;
- both: both signs on the whole batch, without an odd part.

The expected gradient is the same for all of them. ``batch`` is the variance that the choice of the batch brings, from
the difference of the clean halves. All are divided by the squared norm of the clean gradient. Figures go to
results/gradient-noise.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ssgd import select
from ssgd.core.noise import mix
from ssgd.lab.data import load
from ssgd.lab.experiments import get
from ssgd.lab.train import Recipe
from ssgd.lab.train.distributed import Ranks
from ssgd.lab.train.rundir import environment
from ssgd.lab.train.running import Run

ROOT = Path(__file__).parent.parent
Loss = Callable[[Any], Tensor]


def gradient_noise(
    net: nn.Module, loss: Loss, halves: tuple[Any, Any], level: float, draws: int, seed: int = 0
) -> dict[str, dict[str, float]]:
    """Returns the variances of each way, ``{"pair": {"odd": …, "even": …}, …}``; the net is left as it was."""
    weights = select(net)
    clean = [p.detach().clone() for p in weights]
    plain = [_gradient(net, loss, half) for half in halves]
    odd, even = [], []
    for draw in range(draws):
        noise = _sphere(clean, level, mix(seed, draw))
        parts = []
        for half in halves:
            ends = []
            for sign in (1, -1):
                _move(weights, [w + sign * n for w, n in zip(clean, noise, strict=True)])
                ends.append(_gradient(net, loss, half))
            parts.append(((ends[0] - ends[1]) / 2, (ends[0] + ends[1]) / 2))
        odd.append(torch.stack([part[0] for part in parts]))
        even.append(torch.stack([part[1] for part in parts]))
    _move(weights, clean)
    o, e = torch.stack(odd), torch.stack(even)  # [draws, halves, parameters]
    whole = _variance(e.mean(1))
    found = {
        "one-sided": {"odd": _square(o.mean(1)), "even": whole},
        "independent": {"odd": _square(o).mean() / 2, "even": _variance(e).mean() / 2},
        "pair": {"odd": _square((o[:, 0] - o[:, 1]) / 2), "even": whole},
        "both": {"odd": torch.zeros(()), "even": whole},
        "batch": {"all": _square((plain[0] - plain[1])[None] / 2)},
    }
    norm = (plain[0] + plain[1]).square().sum() / 4
    return {way: {part: float(value / norm) for part, value in parts.items()} for way, parts in found.items()}


def _square(values: Tensor) -> Tensor:
    """The mean square over draws, summed over the parameters."""
    return values.square().mean(0).sum(-1)


def _variance(values: Tensor) -> Tensor:
    return values.var(0).sum(-1)


def _gradient(net: nn.Module, loss: Loss, batch: Any) -> Tensor:
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss(batch), list(net.parameters()))])


@torch.no_grad()
def _move(weights: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for weight, value in zip(weights, values, strict=True):
        weight.copy_(value)


def _sphere(weights: Sequence[Tensor], level: float, seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(w.shape, generator=generator) for w in weights]
    return [level * w.norm() / z.norm() * z for w, z in zip(weights, drawn, strict=True)]


def along(
    recipe: Recipe,
    levels: Sequence[float],
    batches: Sequence[int] | None,
    draws: int,
    at: Sequence[int],
    folder: str | None,
) -> list[dict[str, Any]]:
    """Trains a recipe with its first seed, and returns the figures at its steps ``at``, by size of batch and level."""
    seed = recipe.seeds[0]
    limits = {"train_limit": recipe.train_limit, "test_limit": recipe.test_limit}
    source = load(recipe.data, folder, device="cpu", dtype=torch.float32, augment=recipe.augment, **limits)
    run = Run(recipe, seed, source, torch.device("cpu"), Ranks())

    def loss(batch: Sequence[Tensor]) -> Tensor:
        return run.kind.objective(run.net, *batch)[0]

    found = []
    while not run.done:
        if run.position in at:
            where = {"recipe": recipe.name, "seed": seed, "step": run.position}
            for size, level in product(batches or [recipe.batch], levels):
                batch = source.epoch(seed, run.epoch).batch(run.step_in_epoch * recipe.batch // size, size)
                halves = tuple(zip(*(part.chunk(2) for part in batch), strict=True))
                noise = gradient_noise(run.net, loss, halves, level, draws, mix(seed, run.position))
                found.append({**where, "batch": size, "level": level, "of": noise})
                print(json.dumps(found[-1]), flush=True)
        run.step()
        if run.epoch_is_over:
            run.finish_epoch()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="of a net without batch-norm that carries no state")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--levels", type=float, nargs="+", default=[0.1, 0.2])
    parser.add_argument("--batches", type=int, nargs="+", help="sizes of the batch that is measured (default: its own)")
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--at", type=int, nargs="+", default=[50, 250, 500, 750, 950], help="steps")
    parser.add_argument("--folder", help="of the data; without it $SSGD_DATA")
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "gradient-noise.json")
    options = parser.parse_args()
    recipe = get(options.recipe).with_changes(options.changes)
    found = along(recipe, options.levels, options.batches, options.draws, options.at, options.folder)
    where = {key: value for key, value in environment().items() if key in ("commit", "torch", "python")}
    options.out.write_text(json.dumps({**where, "draws": options.draws, "rows": found}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
