"""How good find_level's suggestion is: small nets on the 8×8 digits, trained at every level and at the suggested one.

    PYTHONPATH=src python benchmarks/find_level.py --seeds 4 --out FILE.json

For each seed, a quarter of the epochs of plain SGD leads to the weights at which a level is suggested; then S-SGD
(both signs) trains from scratch at each level and at that suggestion. Test accuracies are those of the last epoch, with
clean weights.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from measure import Row, report
from ssgd import SSGD
from ssgd.analysis import Task, find_level
from ssgd.lab import models
from ssgd.lab.data import ImageSet, digits

LEVELS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.8)
BATCH = 20


@dataclass(frozen=True)
class Setting:
    name: str
    net: Callable[[], nn.Module]
    images: int
    epochs: int
    mislabelled: float = 0.0


SETTINGS = (
    Setting("CNN, 100 images", lambda: models.build("small-cnn", 10, 1), 100, 40),
    Setting("CNN, 400 images", lambda: models.build("small-cnn", 10, 1), 400, 15),
    Setting("CNN, 200 images, 30 % mislabelled", lambda: models.build("small-cnn", 10, 1), 200, 25, 0.3),
    Setting("MLP, 100 images", lambda: mlp(), 100, 40),
    Setting("MLP, 200 images, 30 % mislabelled", lambda: mlp(), 200, 25, 0.3),
)


def main() -> None:
    options = parse_options()
    torch.set_num_threads(1)
    rows = []
    print(
        "| setting | suggested | SGD | " + " | ".join(f"at {a:g}" for a in LEVELS[1:]) + " | at the suggestion | best |"
    )
    print("|---|" + "---|" * (len(LEVELS) + 3))
    for setting in SETTINGS:
        began = time.perf_counter()
        found = [measured(setting, seed) for seed in range(options.seeds)]
        suggestions = [level for level, _, _ in found if level is not None]
        means = {level: statistics.mean(curve[level] for _, curve, _ in found) for level in LEVELS}
        at = statistics.mean(accuracy for _, _, accuracy in found)
        best = max(means, key=lambda level: means[level])
        suggested = statistics.mean(suggestions) if suggestions else float("nan")
        cells = [f"{means[level]:.2f}" for level in LEVELS]
        print(f"| {setting.name} | {suggested:.2f} | {' | '.join(cells)} | {at:.2f} | {best:g} |", flush=True)
        rows.append(
            Row(
                setting.name,
                at - means[best],
                "% of accuracy, at the suggestion less at the best level",
                options.seeds,
                detail={
                    "suggestions": [level for level, _, _ in found],
                    "at_suggestion": [accuracy for _, _, accuracy in found],
                    "curves": [{str(level): curve[level] for level in LEVELS} for _, curve, _ in found],
                    "best": best,
                    "seconds": round(time.perf_counter() - began, 1),
                },
            )
        )
    report(rows, torch.device("cpu"), options.out)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/find-level-cpu.json"))
    return parser.parse_args()


def measured(setting: Setting, seed: int) -> tuple[float | None, dict[float, float], float]:
    """A seed's suggestion, its accuracy at each level, and at the suggestion (without one: at 0)."""
    data = digits(setting.images, seed)
    labels = mislabelled(data.train_labels, setting.mislabelled, seed)
    suggestion = suggested(setting, seed, data.train_images, labels)
    curve = {level: accuracy(trained(setting, seed, data.train_images, labels, level), data) for level in LEVELS}
    if suggestion is None:
        return None, curve, curve[0.0]
    return suggestion, curve, accuracy(trained(setting, seed, data.train_images, labels, suggestion), data)


def suggested(setting: Setting, seed: int, images: Tensor, labels: Tensor) -> float | None:
    net = trained(setting, seed, images, labels, 0.0, stop=setting.epochs // 4)
    batches = list(zip(images.split(BATCH), labels.split(BATCH), strict=True))
    task = Task(net, lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]), batches)
    return find_level(task, seed=seed).suggestion


def trained(
    setting: Setting, seed: int, images: Tensor, labels: Tensor, level: float, stop: int | None = None
) -> nn.Module:
    """By S-SGD, at level 0 by SGD; the same initialisation and order for all levels of a seed."""
    torch.manual_seed(seed)
    net = setting.net()
    opt = SSGD(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9), noise=level, seed=seed)
    schedule = CosineAnnealingLR(opt, setting.epochs)
    order = torch.Generator().manual_seed(seed)
    for _ in range(setting.epochs if stop is None else stop):
        for chosen in torch.randperm(len(images), generator=order).split(BATCH):
            x, y = images[chosen], labels[chosen]
            for point in opt.points():
                with point:
                    F.cross_entropy(net(x), y).backward()
            opt.step()
            opt.zero_grad()
        schedule.step()
    return net


@torch.no_grad()
def accuracy(net: nn.Module, data: ImageSet) -> float:
    net.eval()
    return 100 * (net(data.test_images).argmax(1) == data.test_labels).double().mean().item()


def mislabelled(labels: Tensor, share: float, seed: int) -> Tensor:
    numbers = torch.Generator().manual_seed(seed)
    wrong = torch.rand(len(labels), generator=numbers) < share
    return torch.where(wrong, torch.randint(10, labels.shape, generator=numbers), labels)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


if __name__ == "__main__":
    main()
