"""SGD against S-SGD on a toy: ``python -m ssgd.demo`` prints two tables and draws a picture in a minute or two.

A small convolutional net learns 8×8 handwritten digits from 100 images; the other 1,697 are the test set. Each seed
gives one split, one initialisation and one data order, and all methods share them, so differences are paired.

This is a demonstration, not evidence for the paper's tables. Its setting was picked on seeds 100 to 109, which the demo
does not use, as one in which SGD gains little from more epochs and the noise shows; in others it did nothing, or cost
accuracy. The level is larger than what helps on real tasks, and part of what `split` does may be batch-norm over halves
of a batch.

Seconds say little about cost here: most of a pass over 20 images does not depend on the number of images, so two passes
over half a batch take far longer than one over the whole.

Then a smaller net learns from 1,000 images, and noise is added to its weights after training. Its learning rate is the
one at which SGD was most accurate on seeds 100 to 104; a larger one alone makes SGD bear more noise. Accuracy is given
with batch-norm's statistics as training left them, and recalibrated: gathered again after the damage, without labels.
"""

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ssgd import SSGD
from ssgd.analysis import Task, Tolerance, tolerance
from ssgd.lab.columns import in_columns
from ssgd.lab.data import digits
from ssgd.methods import OneSided

CURVE_POINTS = 10  # the test set is far larger than the training set: looking every epoch would take half the time


@dataclass(frozen=True)
class Setting:
    train_images: int
    epochs: int
    noise: float  # the level ‖n‖/‖w‖ of training
    batch: int = 20
    learning_rate: float = 0.03
    width: int = 16  # channels of the first layer


@dataclass(frozen=True)
class Method:
    name: str
    way: str  # "points", "split", "one_pass" or "one-sided"
    noisy: bool
    epochs: int  # in units of the setting's
    passes: int  # forward and backward passes over the data, in units of SGD's
    color: str  # from Okabe and Ito's palette, which colour-blind readers can tell apart
    line: str
    marker: str


SGD = Method("SGD", "points", noisy=False, epochs=1, passes=1, color="#000000", line="-", marker="o")
LONGER = Method("SGD, twice the epochs", "points", False, epochs=2, passes=2, color="#E69F00", line=":", marker="v")
BOTH = Method("S-SGD both", "points", noisy=True, epochs=1, passes=2, color="#0072B2", line="--", marker="s")
SPLIT = Method("S-SGD split", "split", noisy=True, epochs=1, passes=1, color="#D55E00", line="-.", marker="^")
ONE_PASS = Method(
    "S-SGD one pass, batch-norm over the batch",
    "one_pass",
    True,
    epochs=1,
    passes=1,
    color="#009E73",
    line="-",
    marker="D",
)
ONE_SIDED = Method("one-sided noise", "one-sided", True, epochs=1, passes=1, color="#CC79A7", line="-", marker="v")
METHODS = SGD, LONGER, BOTH, SPLIT  # compared on accuracy
DAMAGED = SGD, ONE_SIDED, SPLIT, BOTH, ONE_PASS  # compared under noise on their weights
DAMAGED_SETTING = Setting(train_images=1000, epochs=10, noise=0.3, batch=50, learning_rate=0.05, width=8)
DAMAGED_SEEDS = 5  # or fewer, with --seeds
RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7)  # of the damage's norm to that of the weights
IN_THE_TABLE = (0.0, 0.4, 0.7)
DRAWS = 3  # of the damage


@dataclass(frozen=True)
class Run:
    """One training. Accuracies are in percent, with clean weights, and `test` and `train` those of the last epoch."""

    seed: int
    curve: list[tuple[int, float]]  # (epoch, test accuracy)
    test: float
    train: float
    seconds: float


Runs = Mapping[Method, list[Run]]
Tolerances = Mapping[Method, list[Tolerance]]
Job = tuple[Callable[[Method, int, Setting], Any], Method, int, Setting]  # train() or damage(), and its arguments


def main(arguments: Sequence[str] | None = None) -> tuple[Runs, Tolerances]:
    options = parse(arguments)
    runs: dict[Method, list[Run]] = {method: [] for method in METHODS}
    tolerances: dict[Method, list[Tolerance]] = {method: [] for method in DAMAGED}
    todo = jobs(options)
    for (function, method, *_), result in with_progress(done(todo, options.processes), len(todo)):
        if function is damage:
            tolerances[method].append(result)
        else:
            runs[method].append(result[0])
    print(table(runs, options), tolerance_table(tolerances), sep="\n")
    draw(runs, tolerances, options)
    print(what_next())
    return runs, tolerances


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
    options = parser.parse_args(arguments)
    if min(options.seeds, options.epochs, options.processes) < 1:
        parser.error("--seeds, --epochs and --processes must be at least 1")
    if not Setting.batch <= options.train_images <= 1796:
        bounds = f"{Setting.batch}, one batch, and 1796, which leaves one image to test on"
        parser.error(f"--train-images must lie between {bounds}")
    return options


def jobs(options: argparse.Namespace) -> list[Job]:
    """Every method with every seed, on both settings."""
    setting = Setting(options.train_images, options.epochs, options.noise)
    accurate: list[Job] = [(train, method, seed, setting) for seed in range(options.seeds) for method in METHODS]
    seeds = range(min(options.seeds, DAMAGED_SEEDS))
    return accurate + [(damage, method, seed, DAMAGED_SETTING) for seed in seeds for method in DAMAGED]


def done(todo: Sequence[Job], processes: int) -> Iterator[tuple[Job, Any]]:
    """Each job and its result, in order, a job on each core at a time."""
    if processes == 1:
        yield from ((job, job[0](*job[1:])) for job in todo)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        promised = [pool.submit(function, method, seed, setting) for function, method, seed, setting in todo]
        yield from ((job, promise.result()) for job, promise in zip(todo, promised, strict=True))


def train(method: Method, seed: int, setting: Setting) -> tuple[Run, nn.Module]:
    data, model = digits(setting.train_images, seed), net(seed, setting.width)
    order = torch.Generator().manual_seed(seed)
    base = torch.optim.SGD(model.parameters(), lr=setting.learning_rate, momentum=0.9)
    level = setting.noise if method.noisy else 0.0  # 0 is SGD itself
    kind: Any = OneSided if method.way == "one-sided" else SSGD
    optimizer = kind(base, noise=level, model=model, seed=seed)
    epochs, batches = setting.epochs * method.epochs, setting.train_images // setting.batch
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    curve: list[tuple[int, float]] = []
    seconds = 0.0

    for epoch in range(1, epochs + 1):
        start = time.perf_counter()
        model.train()
        for batch in torch.randperm(setting.train_images, generator=order).tensor_split(batches):
            step(model, optimizer, data.train_images[batch], data.train_labels[batch], method.way)
        schedule.step()
        seconds += time.perf_counter() - start
        if epoch % max(1, epochs // CURVE_POINTS) == 0 or epoch == epochs:
            curve.append((epoch, accuracy(model, data.test_images, data.test_labels)))

    clean_train = accuracy(model, data.train_images, data.train_labels)
    return Run(seed, curve, test=curve[-1][1], train=clean_train, seconds=seconds), model


def damage(method: Method, seed: int, setting: Setting) -> Tolerance:
    """Trains a net, and measures it under noise on its weights, the same for all methods."""
    data, (_, model) = digits(setting.train_images, seed), train(method, seed, setting)

    def loss_and_wrong(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        answers: Tensor = model(batch[0])
        return F.cross_entropy(answers, batch[1]), (answers.argmax(1) != batch[1]).sum()

    judged = Task(
        model,
        lambda model, batch: loss_and_wrong(model, batch)[0],
        [(data.test_images, data.test_labels)],
        loss_and_wrong=loss_and_wrong,
        as_trained=[data.train_images],
    )
    return tolerance(judged, {"noise": RATIOS}, draws=DRAWS, seed=seed, progress=False)


def step(model: nn.Module, optimizer: SSGD, images: Tensor, labels: Tensor, way: str) -> None:
    if way == "split":
        for point, (half, half_labels) in optimizer.split(images, labels):
            with point:
                F.cross_entropy(model(half), half_labels).backward()
    elif way == "one_pass":
        with optimizer.one_pass(batch_norm="batch"):
            F.cross_entropy(model(images), labels).backward()
    else:
        for point in optimizer.points():
            with point:
                F.cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()


def net(seed: int, width: int) -> nn.Module:
    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    with torch.random.fork_rng(devices=[]):  # layers draw from the global stream: leave it as it was
        torch.manual_seed(seed)
        blocks = block(1, width, 1) + block(width, 2 * width, 2) + block(2 * width, 4 * width, 2)
        return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(16 * width, 10))


@torch.no_grad()
def accuracy(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    answers = torch.cat([model(some).argmax(dim=1) for some in images.split(512)])  # more would not fit a core's cache
    return 100 * int((answers == labels).sum()) / len(labels)


def table(runs: Runs, options: argparse.Namespace) -> str:
    head = ("method", "passes", "test %", "train %", "test − SGD's", "better", "seconds")
    return ruled(
        [head] + [row(method, runs) for method in METHODS],
        f"Last epoch, clean weights, mean ± sd over {options.seeds} seeds; the difference is taken seed by seed.",
        f"{options.train_images} training images, {options.epochs} epochs, noise level {options.noise:g}. "
        "Seconds are those of training, all seeds together.",
    )


def ruled(rows: Sequence[tuple[str, ...]], *note: str) -> str:
    lines = in_columns(rows).splitlines()
    rule = "─" * max(map(len, lines))
    return "\n".join(["", lines[0], rule, *lines[1:], rule, *note])


def row(method: Method, runs: Runs) -> tuple[str, ...]:
    own, gains = runs[method], differences(method, runs)
    paired = ("", "") if method is SGD else (spread(gains, "+"), f"{sum(g > 0 for g in gains)} of {len(gains)}")
    accuracies = spread([run.test for run in own]), spread([run.train for run in own])
    return method.name, str(method.passes), *accuracies, *paired, f"{sum(run.seconds for run in own):.1f}"


def differences(method: Method, runs: Runs) -> list[float]:
    return [run.test - sgd.test for run, sgd in zip(runs[method], runs[SGD], strict=True)]


def spread(values: list[float], sign: str = "", places: int = 2) -> str:
    return f"{mean(values):{sign}.{places}f}" + (f" ± {stdev(values):.{places}f}" if len(values) > 1 else "")


def tolerance_table(tolerances: Tolerances) -> str:
    first = tolerances[SGD][0]
    places = [(list(first.strengths).index(ratio), i) for ratio in IN_THE_TABLE for i in range(len(first.columns))]
    rows = [("method", "passes", *(f"{first.strengths[row]:g}, {first.columns[i]}" for row, i in places))]
    for method, results in tolerances.items():
        means = [result.summary("accuracy")[0] for result in results]
        cells = (spread([float(values[place]) for values in means], places=1) for place in places)
        rows.append((method.name, str(method.passes), *cells))
    return ruled(
        rows,
        f"Test accuracy, %, with noise on the trained weights, of so many times their norm; {len(means)} seeds.",
        "As it is: batch-norm's statistics are those of training. Recalibrated: gathered again after the damage.",
        f"{DAMAGED_SETTING.train_images} training images, {DAMAGED_SETTING.epochs} epochs, "
        f"noise level {DAMAGED_SETTING.noise:g}.",
    )


def draw(runs: Runs, tolerances: Tolerances, options: argparse.Namespace) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        print("No picture: matplotlib is missing, `pip install 'ssgd[demo]'` brings it.", file=sys.stderr)
        return
    figure = Figure(figsize=(10, 8), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would choose a backend for the whole process
    upper, lower = figure.subplots(2, 2)
    draw_accuracy(runs, options.train_images, *upper)
    draw_tolerance(tolerances, *lower)
    figure.savefig(options.out, dpi=150)
    print(f"Picture: {options.out}")


def draw_accuracy(runs: Runs, images: int, curves: Any, dots: Any) -> None:
    for place, (method, own) in enumerate(runs.items()):
        passes = [epoch * method.passes / method.epochs for epoch, _ in own[0].curve]
        draw_band(curves, passes, [[test for _, test in run.curve] for run in own], method, linestyle=method.line)
        if method is not SGD:
            gains = differences(method, runs)
            sideways = torch.linspace(place - 0.2, place + 0.2, len(gains))  # so that equal dots lie side by side
            dots.plot(sideways, gains, "o", color=method.color, alpha=0.7)
            dots.hlines(mean(gains), place - 0.3, place + 0.3, color=method.color)

    last = [run.test for own in runs.values() for run in own]
    ends = {method: mean(run.test for run in own) for method, own in runs.items()}
    title = f"{images} images: SGD ends at {ends[SGD]:.1f} %, split at {ends[SPLIT]:.1f} %\n(mean ± standard error)"
    curves.set(xlabel="passes over the training images", ylabel="test accuracy, %", title=title)
    curves.set_ylim(mean(last) - 5, mean(last) + 3)  # the first epochs lie far below
    curves.legend(loc="lower right")
    both, split = (spread(differences(method, runs), "+") for method in (BOTH, SPLIT))
    dots.axhline(0, color=SGD.color, linewidth=1)
    dots.set(
        ylabel="test accuracy − SGD's, points",
        title=f"Both signs {both}, split {split}\n(a dot a seed, a bar the mean)",
    )
    dots.set_xticks(range(1, len(METHODS)), [f"{method.name}\ncost {method.passes}" for method in METHODS[1:]])


def draw_tolerance(tolerances: Tolerances, *panels: Any) -> None:
    columns, strongest = tolerances[SGD][0].columns, RATIOS[-1]
    for panel, column, line in zip(panels, columns, ("-", "--"), strict=True):
        kept = {}
        for method, results in tolerances.items():
            strengths, _, _ = results[0].curve("noise", "accuracy", column)
            means = [result.curve("noise", "accuracy", column)[1].tolist() for result in results]
            kept[method] = mean(curve[-1] for curve in means)
            draw_band(panel, strengths.tolist(), means, method, linestyle=line, marker=method.marker, markersize=4)
        best = max(kept, key=lambda method: kept[method])
        title = (
            f"Weight noise {strongest:g}, batch-norm {column}: SGD {kept[SGD]:.0f} %,\n{best.name} {kept[best]:.0f} %"
        )
        panel.set(xlabel="norm of the noise / norm of the weights", ylabel="test accuracy, %")
        panel.set_title(title, fontsize=11)
        panel.grid(axis="y", alpha=0.3)
        panel.legend(loc="lower left", fontsize=8)
    panels[1].sharey(panels[0])


def draw_band(panel: Any, x: list[float], by_seed: list[list[float]], method: Method, **style: Any) -> None:
    """A curve through the means over seeds, in a band of their standard error."""
    values = torch.tensor(by_seed)
    middle = values.mean(dim=0)
    error = values.std(dim=0) / len(by_seed) ** 0.5 if len(by_seed) > 1 else torch.zeros_like(middle)
    panel.plot(x, middle, color=method.color, label=method.name, **style)
    panel.fill_between(x, middle - error, middle + error, color=method.color, alpha=0.15, linewidth=0)


def what_next() -> str:
    """The commands that lead on from here, as they can be typed."""
    inside = Path(sys.executable).is_relative_to(Path.cwd())  # as after `make demo`
    python = Path(sys.executable).relative_to(Path.cwd()) if inside else Path(sys.executable)
    ssgd = "ssgd" if shutil.which("ssgd") else f"{python} -m ssgd"
    return (
        f"Next: `{ssgd} doctor` says what this machine offers;\n"
        f"`{ssgd} compare --model my.module:build --data folder/` compares them on your own images."
    )


def with_progress(results: Iterator[tuple[Job, Any]], count: int) -> Iterable[tuple[Job, Any]]:
    try:
        from tqdm import tqdm
    except ImportError:
        print("No progress bar: tqdm is missing, `pip install 'ssgd[demo]'` brings it.", file=sys.stderr)
        return results
    bar: Iterable[tuple[Job, Any]] = tqdm(results, desc="training", unit="run", total=count)
    return bar


if __name__ == "__main__":
    torch.set_num_threads(1)  # the net is too small to gain from more
    main()
