"""What looking at a minimum costs: a plane and a spectrum of ResNet20 on CIFAR-10's training images, and curvlinops.

    PYTHONPATH=src python benchmarks/analysis.py --device cuda --data DIR --out FILE.json [--only spectrum,plane]

Nothing is trained: the weights are random, or those of ``--run``. What comes first is a forward pass over all images,
then a short trial of the ways to a product, then the spectrum and the plane in the fastest. Whatever does not fit into
``--seconds`` is timed on a part of it and scaled up, and its unit says so. Without ``--data`` the images are made up,
which no kernel can tell.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from measure import Row, report, spread
from ssgd.analysis import Directions, Hessian, Plane, Surface, Task, evaluate, spectrum
from ssgd.analysis.acceleration import full_precision
from ssgd.analysis.results import read_journal
from ssgd.analysis.task import evaluating
from ssgd.lab import models
from ssgd.lab.data.cifar import cifar
from ssgd.lab.data.images import DeviceImages, ImageSet, fake_images

Batches = list[tuple[Tensor, Tensor]]
FORMATS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
PRECISIONS = ("fp32", "tf32", "bf16")
PARTS = ("spectrum", "plane")
ROUNDS = 3


def main() -> None:
    options = parse_options()
    bench = Bench(options)
    rows = bench.forward()
    for part in options.only:
        with spared(part):
            rows += getattr(bench, part)()
        report(rows, bench.device, options.out)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, help="the folder that holds cifar-10-batches-py")
    parser.add_argument("--run", help="a run's folder or weights.safetensors, whose net and weights are looked at")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/analysis.json"))
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=45, help="for each part; what takes longer is scaled up")
    parser.add_argument("--precision", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    parser.add_argument("--images", type=int, default=50_000)
    parser.add_argument("--model", default="resnet20")
    parser.add_argument("--points", type=int, default=21, help="of the plane, on each axis")
    parser.add_argument("--steps", type=int, default=90, help="of Lanczos")
    parser.add_argument("--probes", type=int, default=5)
    parser.add_argument("--batches", type=int, nargs="+", default=[5000, 1000], help="sizes tried for forward passes")
    parser.add_argument("--product-batches", type=int, nargs="+", default=[1000, 2500], help="sizes tried for products")
    options = parser.parse_args()
    if unknown := set(options.only) - set(PARTS):
        parser.error(f"--only knows {', '.join(PARTS)}, not {', '.join(unknown)}")
    return options


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.device = torch.device(options.device)
        torch.backends.cudnn.benchmark = True
        self.images, self.labels, classes, channels = on_device(
            the_images(options.data, options.images), self.device, options.images
        )
        torch.manual_seed(0)
        name, self.state = options.model, None
        if options.run is not None:
            from ssgd.lab.solutions import solution

            found = solution(options.run)
            name, self.state = found.recipe.model, found.state
        self.build = lambda: models.build(name, classes, channels)
        if self.state is None:
            self.state = self.build().state_dict()
        self.best: dict[str, tuple[float, int, str]] = {}  # of each precision: seconds a forward pass, batch, format

    # --- forward passes -----------------------------------------------------------------------------------------------

    def forward(self) -> list[Row]:
        """One over all images in eval mode: for each precision the fastest batch and layout, without compiling."""
        rows = []
        for precision in PRECISIONS:
            found: dict[tuple[int, str], list[float]] = {}
            for layout in FORMATS:
                net = self.net(layout).eval()
                for size in self.sizes(self.options.batches):
                    batches = self.batches(size, layout)
                    with spared(f"forward pass at batch {size}"):
                        found[size, layout] = self.timed(lambda net=net, b=batches, p=precision: forward(net, b, p))
            (size, layout), seconds = min(found.items(), key=lambda item: statistics.median(item[1]))
            self.best[precision] = statistics.median(seconds), size, layout
            detail = {"batch": size, "layout": layout, "images": len(self.images)}
            rows.append(
                Row(f"forward_{precision}", self.best[precision][0], "s", ROUNDS, spread(seconds), None, detail)
            )
            print(f"forward pass in {precision}: {self.best[precision]}", flush=True)
        return rows

    # --- the plane ----------------------------------------------------------------------------------------------------

    def plane(self) -> list[Row]:
        """Statistics and metrics of every point: at best two forward passes each."""
        rows, room = list[Row](), 0.6 * self.options.seconds
        exact = self.look("fp32", self.best["fp32"][2], {}).sampled(2)[0]
        for precision in ("bf16", "tf32", "fp32"):
            if precision not in self.options.precision:
                continue
            name = f"plane_{precision}"
            with spared(name):
                rows += self.plane_in(name, precision, exact, room)
                room = 0.0  # the first, the fastest, is enough
        return rows

    def plane_in(self, name: str, precision: str, exact: Surface, room: float) -> list[Row]:
        """In the faster of two ways, with CUDA graphs and without: all points, or those that there is room for."""
        trials: list[tuple[float, Look, Surface]] = []
        layouts = list(FORMATS) if room else [self.best[precision][2]]
        for layout, graph in product(layouts, (False, True) if room and self.device.type == "cuda" else (False,)):
            with spared(f"{name}, {layout}{', graph' * graph}"):
                look = self.look(precision, layout, {"graph": graph})
                some, seconds = look.sampled(2)
                trials.append((seconds, look, some))
                print(f"  {1e3 * seconds:8.1f} ms a point: {name}, {layout}{', graph' * graph}", flush=True)
        seconds, look, some = min(trials, key=lambda trial: trial[0])
        side, points = self.options.points, self.options.points**2 + 3
        side = min(side, int(max(0.0, room / seconds - 3) ** 0.5))
        if side > 2:
            seconds = look.sampled(side)[1]
        side = max(side, 2)
        unit = "s" if side == self.options.points else f"s, scaled up from {side**2 + 3} points"
        detail = {"points": points, "batch": self.best[precision][1], "layout": look.layout, "graph": look.how["graph"]}
        print(f"{name}: {seconds * points:.1f} {unit}", flush=True)
        return [
            Row(name, seconds * points, unit, 1, detail=detail),
            Row(f"{name}_forwards", seconds * points / self.best[precision][0], "forward passes", 1),
            Row(f"{name}_deviation", apart(some, exact), "of the fp32 loss, at most", 1),
        ]

    def look(self, precision: str, layout: str, how: dict[str, Any]) -> Look:
        batches = self.batches(self.best[precision][1], layout)
        return Look(self.net(layout), batches, self.state, {"precision": precision, **how}, layout)

    # --- the spectrum -------------------------------------------------------------------------------------------------

    def spectrum(self) -> list[Row]:
        """All steps of all probes in the fastest way found, and curvlinops' products with the same net and images."""
        clock, total = Clock(self.options.seconds), self.options.steps * self.options.probes
        vectors = torch.randn(self.options.probes, self.parameters, generator=torch.Generator().manual_seed(0))
        vectors = vectors.to(self.device)
        precisions = [precision for precision in ("tf32", "fp32") if precision in self.options.precision] or ["fp32"]
        exact = self.hessian(min(self.product_sizes), "fp32", {}, few=True).matmat(vectors)
        trials = self.trials(precisions, vectors, clock)
        rows = [row for precision in precisions for row in self.told(trials, precision, exact)]
        ours = min((trial for trial in trials if trial.exact), key=lambda trial: trial.seconds)
        print(f"fastest product: {ours.name}", flush=True)
        with spared("spectrum"):
            matrix = self.hessian(ours.size, ours.precision, ours.how)
            matrix.matmat(vectors)  # captured, before the clock runs
            predicted, room = ours.seconds * len(vectors) * self.options.steps, max(clock.left, 0.3 * clock.seconds)
            steps = self.options.steps if predicted < room else max(2, int(self.options.steps * room / predicted))
            seconds = self.timed(lambda m=matrix: spectrum(m, steps, self.options.probes), 1)[0]
            seconds *= self.options.steps / steps
            unit = "s" if steps == self.options.steps else f"s, scaled up from {steps} steps"
            name, forward = f"spectrum_{ours.precision}", self.best[ours.precision][0]
            detail = {"way": ours.name, "batch": ours.size, "images": len(self.images), "products": total}
            rows += [
                Row(name, seconds, unit, 1, detail=detail),
                Row(f"{name}_forwards", seconds / forward, "forward passes", 1),
                Row(f"product_{ours.precision}", seconds / total, "s", 1),
                Row(f"product_{ours.precision}_forwards", seconds / total / forward, "forward passes", 1),
                Row(f"product_{ours.precision}_deviation", far(ours, exact), "of the fp32 product's length", 1),
            ]
            print(f"{name}: {seconds:.1f} {unit}", flush=True)
            del matrix
            rows += self.theirs(ours.precision, seconds / total, vectors)
        return rows

    def trials(self, precisions: list[str], vectors: Tensor, clock: Clock) -> list[Trial]:
        """Each way on a few batches while there is time: in the first precision; in the others the fastest of that."""
        count, found = len(vectors), list[Trial]()
        graphs = (True, False) if self.device.type == "cuda" else (False,)
        ways: list[tuple[str, dict[str, Any]]] = [
            (f"forward, {name}{', graph' * graph}", {"product": "forward", "together": together, "graph": graph})
            for graph in graphs
            for name, together in ((f"{count} at once", count), ("one by one", 1))
        ]
        two_point, double = ("two-point", {"product": "two-point"}), ("double", {"product": "double"})
        large, *smaller = sorted(self.product_sizes, reverse=True)
        always = [(ways[0], large), (two_point, large), (double, min(self.product_sizes))]
        early = [*((way, large) for way in ways[1:]), *((way, size) for size in smaller for way in ways)]
        for (name, how), size in always:
            found += self.tried(name, precisions[0], size, how, vectors)
        for (name, how), size in early:
            if clock.left > 0.6 * clock.seconds:
                found += self.tried(name, precisions[0], size, how, vectors)
        best = min((trial for trial in found if trial.exact), key=lambda trial: trial.seconds)
        for precision in precisions[1:]:
            found += self.tried(best.name, precision, best.size, best.how, vectors)
            found += self.tried(two_point[0], precision, large, two_point[1], vectors)
        return found

    def tried(self, name: str, precision: str, size: int, how: dict[str, Any], vectors: Tensor) -> list[Trial]:
        with spared(f"products {name}, {precision}, batch {size}"):
            given = vectors[:1] if name == "double" else vectors  # it is slow
            matrix = self.hessian(size, precision, how, few=True)
            products = matrix.matmat(given)
            seconds = self.timed(lambda m=matrix: m.matmat(given), 1)[0] / len(given) / self.few * len(self.images)
            del matrix  # and what it has captured
            print(f"  {seconds:8.3f} s a product: {name}, {precision}, batch {size}", flush=True)
            return [Trial(name, precision, size, how, seconds, products)]
        return []

    def told(self, trials: list[Trial], precision: str, exact: Tensor) -> list[Row]:
        """The fastest of each way, scaled up, and how far its products are from those in fp32."""
        rows, unit = [], f"s, scaled up from {self.few} images"
        for way in ("forward", "two-point", "double"):
            mine = [t for t in trials if t.precision == precision and t.how["product"] == way]
            if mine:
                best, name = min(mine, key=lambda trial: trial.seconds), f"product_{way}_{precision}"
                all_of_them = {f"{t.name}, batch {t.size}": t.seconds for t in mine}
                rows += [
                    Row(name, best.seconds, unit, 1, detail=all_of_them),
                    Row(f"{name}_forwards", best.seconds / self.best[precision][0], "forward passes", 1),
                    Row(f"{name}_deviation", far(best, exact), "of the fp32 product's length", 1),
                ]
        return rows

    def theirs(self, precision: str, ours: float, vectors: Tensor) -> list[Row]:
        """curvlinops' products with the same weights and images, one vector at a time and all at once."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from curvlinops import HessianLinearOperator
        except ImportError as error:
            print(f"curvlinops is left out, because it cannot be imported: {error}")
            return []
        rows, layout = [], self.best[precision][2]
        net, size = self.net(layout).eval(), min(self.product_sizes)
        parameters, loss = [p for p in net.parameters() if p.requires_grad], nn.CrossEntropyLoss()
        for name, columns in (("curvlinops_product", 1), ("curvlinops_product_block", len(vectors))):
            given = vectors[0] if columns == 1 else vectors.T.contiguous()
            images = max(min(size, self.few), self.few // columns)
            with spared(name), full_precision(tf32=precision == "tf32"):
                data = self.batches(size, layout, images)
                operator = HessianLinearOperator(net, loss, parameters, data, check_deterministic=False)
                operator @ given
                seconds = self.timed(lambda o=operator, g=given: o @ g, 1)[0] / columns / images * len(self.images)
                detail = {"batch": size, "layout": layout, "version": version("curvlinops-for-pytorch")}
                rows += [
                    Row(f"{name}_{precision}", seconds, f"s, scaled up from {images} images", 1, detail=detail),
                    Row(f"{name}_{precision}_forwards", seconds / self.best[precision][0], "forward passes", 1),
                    Row(f"{name}_{precision}_over_ours", seconds / ours, "×", 1),
                ]
                print(f"{name} in {precision}: {seconds:.3f} s, {seconds / ours:.1f} times ours", flush=True)
        return rows

    # --- what they share ----------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.build().parameters())

    def net(self, layout: str) -> nn.Module:
        net = self.build()
        net.load_state_dict(self.state)
        return net.to(self.device, memory_format=FORMATS[layout])

    def batches(self, size: int, layout: str, limit: int | None = None) -> Batches:
        images = self.images[:limit].contiguous(memory_format=FORMATS[layout])
        return list(zip(images.split(size), self.labels[:limit].split(size), strict=True))

    def sizes(self, tried: Sequence[int]) -> list[int]:
        return sorted({min(size, len(self.images)) for size in tried})

    @property
    def product_sizes(self) -> list[int]:
        return self.sizes(self.options.product_batches)

    @property
    def few(self) -> int:
        """As many images as tell two ways apart."""
        return min(2 * max(self.product_sizes), len(self.images))

    def hessian(self, size: int, precision: str, how: dict[str, Any], few: bool = False) -> Hessian:
        layout = self.best[precision][2]
        task = Task(self.net(layout), cross_entropy, self.batches(size, layout, self.few if few else None))
        return Hessian(task, precision=precision, **how)

    def timed(self, work: Callable[[], object], repeats: int = ROUNDS) -> list[float]:
        """Seconds, ``repeats`` times; where it is more than one, once before without counting."""
        found = []
        for _ in range(repeats + (repeats > 1)):
            self.wait()
            began = time.perf_counter()
            work()
            self.wait()
            found.append(time.perf_counter() - began)
        return found[repeats > 1 :]

    def wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


@dataclass(frozen=True)
class Trial:
    """A way to a product, with the seconds that one takes over all images, scaled up from a few, and its products."""

    name: str
    precision: str
    size: int
    how: dict[str, Any]
    seconds: float
    products: Tensor

    @property
    def exact(self) -> bool:
        return self.how["product"] != "two-point"


class Look:
    """The plane through three points around some weights, or far from them where they are random."""

    def __init__(
        self, net: nn.Module, batches: Batches, state: dict[str, Tensor], how: dict[str, Any], layout: str
    ) -> None:
        around = Directions(state, net, 2)
        b, c = ({**state, **around.weights_at(*point)} for point in ((1.0, 0.0), (0.0, 1.0)))
        device = next(net.parameters()).device
        solutions = [{name: tensor.to(device) for name, tensor in one.items()} for one in (state, b, c)]
        self.plane = Plane(*solutions, net)
        self.task = Task(net, cross_entropy, batches, loss_and_wrong=both)
        self.how, self.layout = how, layout

    def sampled(self, points: int) -> tuple[Surface, float]:
        """So many points on each axis, and the seconds a point, the anchors' too but for those of the first pass.

        In that one kernels are chosen and captured.
        """
        with TemporaryDirectory() as folder:
            out = Path(folder) / "plane"
            surface = evaluate(
                self.plane, {"train": self.task}, self.plane.grid(points), out=out, progress=False, **self.how
            )
            rows = read_journal(out)[1]
        seconds = [rows[index]["seconds"] for index in sorted(rows)]
        return surface, statistics.mean(seconds[1:] or seconds)


class Clock:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._end = time.perf_counter() + seconds

    @property
    def left(self) -> float:
        return self._end - time.perf_counter()


@contextmanager
def spared(what: str) -> Iterator[None]:
    """A way that fails costs its own row, not the others'."""
    try:
        yield
    except Exception as error:
        print(
            f"left out: {what} ({type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]})",
            file=sys.stderr,
            flush=True,
        )
    gc.collect()  # a captured graph and its memory hang in a circle
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).float(), batch[1])


def both(model: nn.Module, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    logits = model(batch[0]).float()
    return F.cross_entropy(logits, batch[1]), (logits.argmax(1) != batch[1]).sum()


@torch.no_grad()
def forward(net: nn.Module, batches: Batches, precision: str) -> None:
    kind = batches[0][0].device.type
    cast = torch.autocast(kind, torch.bfloat16) if precision == "bf16" else nullcontext()
    with evaluating(net), full_precision(tf32=precision != "fp32"), cast:
        for x, _ in batches:
            net(x)


def the_images(folder: Path | None, limit: int) -> ImageSet:
    if folder is None:
        return fake_images(limit, 1)
    return cifar("cifar10", folder.expanduser(), download=False)


def on_device(images: ImageSet, device: torch.device, limit: int) -> tuple[Tensor, Tensor, int, int]:
    source = DeviceImages(images, device, torch.float32, augment=False)
    ((x, y),) = list(source.in_order("train", limit))[:1]
    return x, y, source.classes, source.channels


def apart(found: Surface, exact: Surface) -> float:
    return float(np.nanmax(np.abs(found.losses / exact.losses - 1)))


def far(trial: Trial, exact: Tensor) -> float:
    exact = exact[: len(trial.products)]
    return float(((trial.products - exact).norm(dim=1) / exact.norm(dim=1)).max())


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    main()
