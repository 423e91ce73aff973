"""SGD against S-SGD on a toy: ``python -m ssgd.demo`` prints a table and draws pictures in a minute or two.

A small convolutional net learns 8×8 handwritten digits from 100 images; the other 1,697 are the test set. Each seed
gives one split, one initialisation and one data order, and all methods share them, so differences are paired.

This is a demonstration, not evidence for the paper's tables. Its setting was picked on seeds 100 to 109, which the demo
does not use, as one in which SGD gains little from more epochs and the noise shows; in others it did nothing, or cost
accuracy. The level is larger than what helps on real tasks, and part of what `split` does may be batch-norm over halves
of a batch.

Seconds say little about cost here: most of a pass over 20 images does not depend on the number of images, so two passes
over half a batch take far longer than one over the whole.
"""

import argparse
import json
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssgd import SSGD, __version__
from ssgd.analysis import Line, Task, draw_line, draw_spectrum, evaluate, spectrum
from ssgd.lab.columns import in_columns
from ssgd.lab.data.digits import DigitSplit, digits

BATCH = 20
LEARNING_RATE = 0.03
CURVE_POINTS = 10  # the test set is far larger than the training set: looking every epoch would take half the time


@dataclass(frozen=True)
class Method:
    name: str
    noisy: bool
    split: bool
    epochs: int  # in units of --epochs
    passes: int  # forward and backward passes over the data, in units of SGD's
    color: str  # from Okabe and Ito's palette, which colour-blind readers can tell apart
    line: str


METHODS = (
    Method("SGD", noisy=False, split=False, epochs=1, passes=1, color="#000000", line="-"),
    Method("SGD, twice the epochs", noisy=False, split=False, epochs=2, passes=2, color="#E69F00", line=":"),
    Method("S-SGD both", noisy=True, split=False, epochs=1, passes=2, color="#0072B2", line="--"),
    Method("S-SGD split", noisy=True, split=True, epochs=1, passes=1, color="#D55E00", line="-."),
)
SGD, BOTH = METHODS[0], METHODS[2]


@dataclass(frozen=True)
class Run:
    """One training. Accuracies are in percent, with clean weights, and `test` and `train` those of the last epoch."""

    seed: int
    curve: list[tuple[int, float]]  # (epoch, test accuracy)
    test: float
    train: float
    seconds: float


Runs = dict[Method, list[Run]]
Trained = tuple[Method, Run, nn.Module]


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    runs: Runs = {method: [] for method in METHODS}
    minima: dict[str, nn.Module] = {}
    for method, run, model in with_progress(trained(options), len(METHODS) * options.seeds):
        runs[method].append(run)
        if run.seed == 0 and method in (SGD, BOTH):
            minima[method.name] = model
    print(table(runs, options))
    if options.json:
        options.json.write_text(json.dumps(record(runs, options), indent=1) + "\n")
        print(f"Raw numbers: {options.json}")
    draw(runs, options.out)
    look(minima, options)
    print(what_next())


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m ssgd.demo", description="SGD against S-SGD on a toy.")
    parser.add_argument("--seeds", type=int, default=10, help="trainings of each method (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=100, help="epochs of a training (default: %(default)s)")
    parser.add_argument("--train-images", type=int, default=100, help="the rest is the test set (default: %(default)s)")
    parser.add_argument(
        "--processes", type=int, default=os.cpu_count() or 1, help="trainings at a time (default: %(default)s)"
    )
    parser.add_argument("--noise", type=float, default=0.5, help="noise level ‖n‖/‖w‖ of S-SGD (default: %(default)s)")
    parser.add_argument(
        "--out", type=Path, default=Path("demo.png"), metavar="PNG", help="picture (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write raw numbers and environment to FILE")
    options = parser.parse_args(arguments)
    if min(options.seeds, options.epochs, options.processes) < 1:
        parser.error("--seeds, --epochs and --processes must be at least 1")
    if not BATCH <= options.train_images <= 1796:
        parser.error(f"--train-images must lie between {BATCH}, one batch, and 1796, which leaves one image to test on")
    return options


def trained(options: argparse.Namespace) -> Iterator[Trained]:
    """Every method with every seed, a training on each core at a time."""
    jobs = [(method, seed, options) for seed in range(options.seeds) for method in METHODS]
    processes = min(options.processes, options.seeds)
    if processes == 1:
        yield from ((job[0], *train(*job)) for job in jobs)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        for job, (run, model) in zip(jobs, pool.map(train, *zip(*jobs, strict=True)), strict=True):
            yield job[0], run, model


def train(method: Method, seed: int, options: argparse.Namespace) -> tuple[Run, nn.Module]:
    data, model, order = digits(options.train_images, seed), net(seed), torch.Generator().manual_seed(seed)
    base = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)
    optimizer = SSGD(base, noise=options.noise if method.noisy else 0.0, model=model, seed=seed)  # 0 is SGD itself
    epochs = options.epochs * method.epochs
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    curve: list[tuple[int, float]] = []
    seconds = 0.0

    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        train_epoch(model, optimizer, data, order, method.split)
        schedule.step()
        seconds += time.perf_counter() - start
        if epoch % max(1, epochs // CURVE_POINTS) == 0 or epoch == epochs:
            curve.append((epoch, accuracy(model, data.test_images, data.test_labels)))

    clean_train = accuracy(model, data.train_images, data.train_labels)
    return Run(seed, curve, test=curve[-1][1], train=clean_train, seconds=seconds), model


def train_epoch(model: nn.Module, optimizer: SSGD, data: DigitSplit, order: torch.Generator, split: bool) -> None:
    model.train()
    count = len(data.train_labels)
    for batch in torch.randperm(count, generator=order).tensor_split(count // BATCH):
        images, labels = data.train_images[batch], data.train_labels[batch]
        if split:
            for point, (half, half_labels) in optimizer.split(images, labels):
                with point:
                    F.cross_entropy(model(half), half_labels).backward()
        else:
            for point in optimizer.points():
                with point:
                    F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()


def net(seed: int) -> nn.Module:
    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    with torch.random.fork_rng(devices=[]):  # layers draw from the global stream: leave it as it was
        torch.manual_seed(seed)
        return nn.Sequential(*block(1, 16, 1), *block(16, 32, 2), *block(32, 64, 2), nn.Flatten(), nn.Linear(256, 10))


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    right = int((model(images).argmax(dim=1) == labels).sum())
    return 100 * right / len(labels)


def table(runs: Runs, options: argparse.Namespace) -> str:
    head = ("method", "passes", "test %", "train %", "test − SGD's", "better", "seconds")
    lines = in_columns([head] + [row(method, runs) for method in METHODS]).splitlines()
    rule = "─" * max(map(len, lines))
    note = [
        f"Last epoch, clean weights, mean ± sd over {options.seeds} seeds; the difference is taken seed by seed.",
        f"{options.train_images} training images, {options.epochs} epochs, noise level {options.noise:g}. "
        "Seconds are those of training, all seeds together.",
    ]
    return "\n".join(["", lines[0], rule, *lines[1:], rule, *note])


def row(method: Method, runs: Runs) -> tuple[str, ...]:
    own, gains = runs[method], differences(method, runs)
    paired = ("", "") if method is SGD else (spread(gains, "+.2f"), f"{sum(g > 0 for g in gains)} of {len(gains)}")
    accuracies = spread([run.test for run in own]), spread([run.train for run in own])
    return method.name, str(method.passes), *accuracies, *paired, f"{sum(run.seconds for run in own):.1f}"


def differences(method: Method, runs: Runs) -> list[float]:
    return [run.test - sgd.test for run, sgd in zip(runs[method], runs[SGD], strict=True)]


def spread(values: list[float], form: str = ".2f") -> str:
    return f"{mean(values):{form}}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def record(runs: Runs, options: argparse.Namespace) -> dict[str, object]:
    chosen = {key: getattr(options, key) for key in ("seeds", "epochs", "train_images", "noise")}
    return {
        "settings": {**chosen, "batch": BATCH, "learning_rate": LEARNING_RATE},
        "environment": {
            "ssgd": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "threads": torch.get_num_threads(),
        },
        "runs": {method.name: [asdict(run) for run in own] for method, own in runs.items()},
    }


def draw(runs: Runs, out: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture: matplotlib is missing, `pip install 'ssgd[demo]'` brings it.", file=sys.stderr)
        return
    figure = Figure(figsize=(10, 4), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would choose a backend for the whole process
    curves, dots = figure.subplots(1, 2)

    for place, (method, own) in enumerate(runs.items()):
        passes = [epoch * method.passes / method.epochs for epoch, _ in own[0].curve]
        tests = torch.tensor([[test for _, test in run.curve] for run in own])
        middle = tests.mean(dim=0)
        error = tests.std(dim=0) / len(own) ** 0.5 if len(own) > 1 else torch.zeros_like(middle)
        curves.plot(passes, middle, method.line, color=method.color, label=method.name)
        curves.fill_between(passes, middle - error, middle + error, color=method.color, alpha=0.15, linewidth=0)
        if method is not SGD:
            gains = differences(method, runs)
            sideways = torch.linspace(place - 0.2, place + 0.2, len(gains))  # so that equal dots lie side by side
            dots.plot(sideways, gains, "o", color=method.color, alpha=0.7)
            dots.hlines(mean(gains), place - 0.3, place + 0.3, color=method.color)

    last = [run.test for own in runs.values() for run in own]
    curves.set(xlabel="passes over the training images", ylabel="test accuracy, %", title="Mean ± standard error")
    curves.set_ylim(mean(last) - 5, mean(last) + 3)  # the first epochs lie far below
    curves.legend(loc="lower right")
    dots.axhline(0, color=SGD.color, linewidth=1)
    dots.set(ylabel="test accuracy − SGD's, points", title="Last epoch: a dot a seed, a bar the mean")
    dots.set_xticks(range(1, len(METHODS)), [f"{method.name}\ncost {method.passes}" for method in METHODS[1:]])
    figure.savefig(out, dpi=150)
    print(f"Picture: {out}")


def look(minima: dict[str, nn.Module], options: argparse.Namespace) -> None:
    """The straight line between the two solutions of the first seed, and the spectra of their Hessians."""
    data, model = digits(options.train_images, 0), net(0)

    def task(model: nn.Module, images: Tensor, labels: Tensor) -> Task:
        def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            return F.cross_entropy(model(batch[0]), batch[1])

        def wrong(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
            answers: Tensor = model(batch[0]).argmax(1)
            return (answers != batch[1]).sum()

        return Task(model, loss, [(images, labels)], wrong=wrong)

    tasks = {
        "train": task(model, data.train_images, data.train_labels),
        "test": task(model, data.test_images, data.test_labels),
    }
    sgd, both = (minima[method.name].state_dict() for method in (SGD, BOTH))
    line = Line(sgd, both, model, names=(SGD.name, BOTH.name))
    surface = evaluate(line, tasks, line.grid(21), progress=False)
    train_images = data.train_images, data.train_labels
    spectra = {name: spectrum(task(solution, *train_images), steps=40, probes=2) for name, solution in minima.items()}
    for name, found in spectra.items():
        print(f"{name}, seed 0: the Hessian's largest eigenvalue is {found.largest:.2f} on the training images.")
    try:
        draw_line(surface, beside(options.out, "-line.png"))
        draw_spectrum(spectra, beside(options.out, "-spectra.png"))
    except ImportError:
        return  # draw() has said so
    print(f"Pictures: {beside(options.out, '-line.png')}, {beside(options.out, '-spectra.png')}")


def what_next() -> str:
    """The commands that lead on from here, as they can be typed."""
    inside = Path(sys.executable).is_relative_to(Path.cwd())  # as after `make demo`
    python = Path(sys.executable).relative_to(Path.cwd()) if inside else Path(sys.executable)
    ssgd = "ssgd" if shutil.which("ssgd") else f"{python} -m ssgd"
    return (
        f"Next: `{ssgd} doctor` says what this machine offers;\n"
        f"`{ssgd} compare --model my.module:build --data folder/` compares them on your own images."
    )


def beside(out: Path, ending: str) -> Path:
    return out.with_name(out.stem + ending)


def with_progress(trainings: Iterator[Trained], count: int) -> Iterable[Trained]:
    try:
        from tqdm import tqdm
    except ImportError:
        print("No progress bar: tqdm is missing, `pip install 'ssgd[demo]'` brings it.", file=sys.stderr)
        return trainings
    bar: Iterable[Trained] = tqdm(trainings, desc="training", unit="run", total=count)
    return bar


if __name__ == "__main__":
    torch.set_num_threads(1)  # the net is too small to gain from more
    main()
