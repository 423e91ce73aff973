"""Methods compared on CIFAR with ResNet20: many trainings side by side on one GPU, one CUDA graph and stream each.

    PYTHONPATH=src python experiments/cifar_side_by_side.py --root DATA --data cifar100 \
        --methods sgd halves split:0.15 split:0.25 --seeds 3 --out results/split.jsonl

Runs of one seed share initialisation and data, so that differences are paired. The schedule is the paper's: batch 128,
momentum 0.9, learning rate 0.1, divided by 10 after 75 and 125 of 175 epochs; weight decay is our choice. A row is
appended to ``--out`` for each run: last epoch, clean weights. ``--data fake`` needs no files, and runs on a CPU too.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import SGD

from ssgd.core.noisy import Noisy
from ssgd.data.augment import Augmented
from ssgd.data.cifar import ImageSet, cifar
from ssgd.methods import METHODS
from ssgd.models import cifar_resnet

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
WARM_UP = 3


def main() -> None:
    options = parse_options()
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    data = Data(fake() if options.data == "fake" else cifar(options.data, options.root))
    began = time.time()
    runs = []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        for spec in options.methods:
            runs.append(Run(spec, seed, data.classes, options))
            print(f"ready: {spec}, seed {seed}, {time.time() - began:.0f} s", flush=True)
    train(runs, data, options)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    with options.out.open("a") as file:
        for run in runs:
            file.write(json.dumps(row(run, data, options)) + "\n")
            file.flush()


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", choices=("cifar10", "cifar100", "fake"), default="fake", help="default: fake")
    parser.add_argument("--root", type=Path, default=Path(), help="folder with the unpacked data")
    parser.add_argument("--methods", nargs="+", default=["sgd", "split:0.15"], metavar="NAME[:LEVEL]")
    parser.add_argument("--seeds", type=int, default=1, help="how many (default: 1)")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=175)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--shortcut", choices="AB", default="A")
    parser.add_argument("--eager", action="store_true", help="no torch.compile")
    parser.add_argument("--commit", default="", help="what to write as the commit")
    parser.add_argument("--out", type=Path, default=Path("results/side-by-side.jsonl"))
    return parser.parse_args()


def train(runs: list[Run], data: Data, options: argparse.Namespace) -> None:
    """All runs, step by step in turn; on a GPU their graphs overlap."""
    generators = {run.seed: torch.Generator(DEVICE).manual_seed(run.seed) for run in runs}
    steps = len(data.train.labels) // options.batch
    began = time.time()
    for epoch in range(options.epochs):
        drops = sum(epoch >= options.epochs * share for share in (75 / 175, 125 / 175))
        for run in runs:
            run.lr.fill_(0.1 * 0.1**drops)
        shuffled = {seed: data.train.epoch(generator) for seed, generator in generators.items()}
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        for step in range(steps):
            part = slice(step * options.batch, (step + 1) * options.batch)
            for run in runs:
                images, labels = shuffled[run.seed]
                run.step(images[part], labels[part])
        if DEVICE.type == "cuda":
            torch.cuda.synchronize()
        if epoch < 2 or (epoch + 1) % 25 == 0 or epoch + 1 == options.epochs:
            seconds = time.time() - began
            rate = sum(run.passes for run in runs) * steps * options.batch * (epoch + 1) / seconds
            tests = ", ".join(f"{run.spec}/{run.seed} {run.accuracy(data.test, data.test_labels):.2f}" for run in runs)
            print(f"epoch {epoch + 1}, {seconds:.0f} s, {rate:,.0f} passes·images/s: {tests}", flush=True)
    for run in runs:
        run.seconds = time.time() - began


class Data:
    """The images on the device."""

    def __init__(self, images: ImageSet) -> None:
        dtype = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
        self.train = Augmented(images.train_images.to(DEVICE), images.train_labels.to(DEVICE), dtype)
        self.plain = self.train.normalised(images.train_images.to(DEVICE))
        self.test = self.train.normalised(images.test_images.to(DEVICE))
        self.test_labels = images.test_labels.to(DEVICE)
        self.classes = images.classes


class Run:
    """One training: net, optimizer, and its step as a CUDA graph on a stream of its own."""

    def __init__(self, spec: str, seed: int, classes: int, options: argparse.Namespace) -> None:
        self.spec, self.seed = spec, seed
        name, _, level = spec.partition(":")
        self.method = METHODS[name]
        self.passes = self.method.passes
        self.level = float(level) if level else None
        torch.manual_seed(seed)
        self.net = cifar_resnet(20, classes, options.shortcut).to(DEVICE, memory_format=torch.channels_last)
        on_cuda = DEVICE.type == "cuda"
        self.forward = torch.compile(self.net, dynamic=False) if on_cuda and not options.eager else self.net
        self.lr = torch.tensor(0.1, device=DEVICE)
        base = SGD(self.net.parameters(), lr=self.lr, momentum=0.9, weight_decay=options.weight_decay, fused=True)
        settings = {} if self.level is None else {self.method.settings[0].name: self.level}
        if self.method.settings and self.method.settings[0].name == "noise":
            settings["seed"] = seed
        self.opt = self.method.build(base, self.net, **settings)
        self.x = torch.zeros(options.batch, 3, 32, 32, device=DEVICE).to(
            torch.bfloat16 if on_cuda else torch.float32, memory_format=torch.channels_last
        )
        self.y = torch.zeros(options.batch, dtype=torch.long, device=DEVICE)
        self.stream = torch.cuda.Stream() if on_cuda else None
        self.graph = self._capture() if on_cuda else None

    def step(self, images: Tensor, labels: Tensor) -> None:
        if self.graph is None:
            self.x.copy_(images)
            self.y.copy_(labels)
            return self._eager()
        with torch.cuda.stream(self.stream):
            self.x.copy_(images)
            self.y.copy_(labels)
            if isinstance(self.opt, Noisy):
                self.opt.before_replay()
            self.graph.replay()

    @torch.no_grad()
    def accuracy(self, images: Tensor, labels: Tensor) -> float:
        """Percent right, with clean weights and running statistics."""
        self.net.eval()
        right = torch.zeros((), device=DEVICE)
        for i in range(0, len(images), 2000):
            with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda"):
                out = self.net(images[i : i + 2000].contiguous(memory_format=torch.channels_last))
            right += (out.argmax(1) == labels[i : i + 2000]).sum()
        self.net.train()
        return 100 * right.item() / len(images)

    def _eager(self) -> None:
        for point, (x, y) in self.method.batches(self.opt, self.x, self.y):
            with point:
                with torch.autocast(DEVICE.type, torch.bfloat16, enabled=DEVICE.type == "cuda", cache_enabled=False):
                    out = self.forward(x)
                F.cross_entropy(out.float(), y).backward()
        self.opt.step()
        self.opt.zero_grad()

    def _capture(self) -> torch.cuda.CUDAGraph:
        """Warm up, capture, and begin anew from the first weights."""
        before = {key: value.clone() for key, value in self.net.state_dict().items()}
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            for _ in range(WARM_UP):
                self._eager()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        if isinstance(self.opt, Noisy):
            self.opt.register_graph(graph)
        with torch.cuda.graph(graph, stream=self.stream):
            self._eager()
        torch.cuda.synchronize()
        with torch.no_grad():
            for key, value in self.net.state_dict().items():
                value.copy_(before[key])
            for state in self.opt.state.values():
                state["momentum_buffer"].zero_()
        if isinstance(self.opt, Noisy):
            self.opt._set_everywhere("noise_step", 0)
        return graph


def row(run: Run, data: Data, options: argparse.Namespace) -> dict[str, object]:
    return {
        "experiment": "side-by-side",
        "model": f"resnet20-{options.shortcut}",
        "data": options.data,
        "method": run.method.name,
        "mode": "split" if run.method.halves else "both",
        "level": run.level,
        "law": run.opt.law.name if isinstance(run.opt, Noisy) else None,
        "phases": "75-50-50" if options.epochs == 175 else f"{options.epochs} epochs, scaled",
        "weight_decay": options.weight_decay,
        "seed": run.seed,
        "epochs": options.epochs,
        "passes": run.passes,
        "seconds": round(run.seconds, 1),
        "train_accuracy": round(run.accuracy(data.plain, data.train.labels), 3),
        "test_accuracy": round(run.accuracy(data.test, data.test_labels), 3),
        "device": torch.cuda.get_device_name() if DEVICE.type == "cuda" else platform.processor(),
        "versions": {"torch": torch.__version__, "python": platform.python_version()},
        "commit": options.commit,
    }


def fake() -> ImageSet:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (640, 3, 32, 32), dtype=torch.uint8, generator=generator)
    labels = torch.randint(0, 10, (640,), generator=generator)
    return ImageSet(images[:512], labels[:512], images[512:], labels[512:], 10)


if __name__ == "__main__":
    main()
