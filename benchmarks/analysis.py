"""What looking at a minimum costs: a plane and a spectrum of ResNet20 on CIFAR-10's training images, and curvlinops.

    PYTHONPATH=src python benchmarks/analysis.py --device cuda --data DIR --out FILE.json [--only plane,spectrum]

Nothing is trained: the weights are random, or those of ``--run``. Whatever does not fit into ``--seconds`` is timed on
a part of it and scaled up, and its unit says so. Without ``--data`` the images are made up, which no kernel can tell.
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
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from measure import Row, report, spread
from ssgd import models
from ssgd.analysis.geometry import Directions, Plane
from ssgd.analysis.hessian import Hessian
from ssgd.analysis.precision import full_precision
from ssgd.analysis.spectrum import spectrum
from ssgd.analysis.surface import Surface, evaluate
from ssgd.analysis.task import Task, evaluating
from ssgd.data.cifar import cifar
from ssgd.data.digits import digit_images
from ssgd.data.fake import fake_images
from ssgd.data.images import ImageSet
from ssgd.data.on_device import DeviceImages

Batches = list[tuple[Tensor, Tensor]]
FORMATS = {"channels_last": torch.channels_last, "contiguous": torch.contiguous_format}
PRECISIONS = ("fp32", "tf32", "bf16")
PARTS = ("plane", "small", "spectrum")
ROUNDS = 3


def main() -> None:
    options = parse_options()
    bench = Bench(options)
    rows = bench.forward()
    for part in options.only:
        rows += getattr(bench, part)()
        report(rows, bench.device, options.out)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", type=Path, help="the folder that holds cifar-10-batches-py")
    parser.add_argument("--run", help="a run's folder or weights.safetensors, whose net and weights are looked at")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/analysis.json"))
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--seconds", type=float, default=100, help="for each part; what takes longer is scaled up")
    parser.add_argument("--compile", action="store_true", help="try torch.compile too, which takes minutes at first")
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
            from ssgd.solutions import solution

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
        clock, rows, points = Clock(self.options.seconds), [], self.options.points**2 + 3
        exact = self.look("fp32").sampled(2)[0]
        for precision in ("bf16", "tf32", "fp32"):
            if precision not in self.options.precision:
                continue
            for compile in (False, True) if self.options.compile else (False,):
                name = f"plane_{precision}{'_compiled' if compile else ''}"
                with spared(name):
                    look = self.look(precision, compile)
                    look.sampled(2)  # kernels are chosen, or compiled
                    some, seconds = look.sampled(2)
                    whole, unit = seconds * points, "s, scaled up from 7 points"
                    if whole < clock.left:
                        whole, unit = look.sampled(self.options.points)[1] * points, "s"
                    detail = {"points": points, "batch": self.best[precision][1], "layout": self.best[precision][2]}
                    rows += [
                        Row(name, whole, unit, 1, detail=detail),
                        Row(f"{name}_forwards", whole / self.best[precision][0], "forward passes", 1),
                        Row(f"{name}_deviation", apart(some, exact), "of the fp32 loss, at most", 1),
                    ]
                    print(f"{name}: {whole:.1f} {unit}", flush=True)
        for together in (1, 4):
            with spared(f"{together} points at once"):
                look = self.look("fp32", together=together, limit=2)
                look.sampled(2)
                rows.append(Row(f"point_together_{together}", look.sampled(2)[1], "s a point, fp32, two batches", 1))
        return rows

    def look(self, precision: str, compile: bool = False, together: int = 1, limit: int | None = None) -> Look:
        _, size, layout = self.best[precision]
        batches = self.batches(size, layout)[:limit]
        return Look(self.net(layout), batches, self.state, precision, compile, together)

    def small(self) -> list[Row]:
        """A plane of the digits' net, which leaves a GPU idle, one by one and many points at once."""
        images, labels, classes, channels = on_device(digit_images(), self.device, 1000)
        torch.manual_seed(0)
        net = models.build("small-cnn", classes, channels).to(self.device)
        rows: list[Row] = []
        for together in (1, 16, 64):
            with spared(f"{together} points at once"):
                look = Look(net, [(images, labels)], net.state_dict(), "fp32", False, together)
                look.sampled(4)
                seconds = [look.sampled(self.options.points)[1] for _ in range(ROUNDS)]
                found = [one * (self.options.points**2 + 3) for one in seconds]
                rows.append(
                    Row(f"small_plane_together_{together}", statistics.median(found), "s", ROUNDS, spread(found))
                )
                print(f"{rows[-1].name}: {rows[-1].value:.2f} s", flush=True)
        return rows

    # --- the spectrum -------------------------------------------------------------------------------------------------

    def spectrum(self) -> list[Row]:
        """All steps of all probes in the fastest way found, and curvlinops' products with the same net and images."""
        rows, total = [], self.options.steps * self.options.probes
        vectors = torch.randn(self.options.probes, self.parameters, generator=torch.Generator().manual_seed(0))
        vectors = vectors.to(self.device)
        precisions = [precision for precision in ("tf32", "fp32") if precision in self.options.precision]
        for precision in precisions:
            clock = Clock(self.options.seconds / len(precisions))
            ways = self.ways(precision, vectors, clock)
            if not ways:
                continue
            (name, size, options), (share, product) = min(ways.items(), key=lambda item: item[1][0])
            print(f"fastest product in {precision}: {name}, batch {size}", flush=True)
            with spared(f"spectrum in {precision}"):
                exact = self.hessian(size, precision, {}, few(size), "fp32").matmat(vectors)
                matrix = self.hessian(size, precision, dict(options))
                matrix.matmat(vectors)  # compiled, or captured, before the clock runs
                predicted, room = share * len(self.images) * self.options.steps, clock.left - 0.2 * clock.seconds
                steps = self.options.steps if predicted < room else max(2, int(self.options.steps * room / predicted))
                seconds = self.timed(lambda m=matrix, s=steps: spectrum(m, s, self.options.probes), 1)[0]
                seconds *= self.options.steps / steps
                unit = "s" if steps == self.options.steps else f"s, scaled up from {steps} steps"
                detail = {"way": name, "batch": size, "images": len(self.images), "products": total}
                rows += [
                    Row(f"spectrum_{precision}", seconds, unit, 1, detail=detail),
                    Row(f"spectrum_{precision}_forwards", seconds / self.best[precision][0], "forward passes", 1),
                    Row(f"product_{precision}", seconds / total, "s", 1),
                    Row(f"product_{precision}_deviation", far(product, exact), "of the fp32 product's length", 1),
                ]
                print(f"spectrum in {precision}: {seconds:.1f} {unit}", flush=True)
                del matrix
            rows += self.theirs(precision, rows, total, vectors)
        return rows

    def ways(self, precision: str, vectors: Tensor, clock: Clock) -> dict[Any, tuple[float, Tensor]]:
        """Seconds an image of one step of Lanczos, and the products, for each way that works."""
        together = len(vectors)
        tried: dict[str, dict[str, Any]] = {
            "one by one": {},
            "together": {"together": together},
            "one by one, graph": {"graph": True},
            "together, graph": {"together": together, "graph": True},
        }
        if self.device.type != "cuda":
            tried = {name: options for name, options in tried.items() if not options.get("graph")}
        if self.options.compile:
            tried["together, compiled"] = {"together": together, "compile": True}
        found: dict[Any, tuple[float, Tensor]] = {}
        for size in self.sizes(self.options.product_batches):
            for name, options in tried.items():
                late = found and clock.left < 0.6 * clock.seconds
                if late or (options.get("compile") and size != self.sizes(self.options.product_batches)[0]):
                    continue  # every shape that is compiled takes minutes
                with spared(f"products {name}, batch {size}"):
                    matrix = self.hessian(size, precision, options, few(size))
                    products = matrix.matmat(vectors)
                    seconds = min(self.timed(lambda m=matrix: m.matmat(vectors), 2))
                    found[name, size, tuple(options.items())] = seconds / matrix.samples, products
                    print(f"  {1e6 * seconds / matrix.samples:8.2f} µs an image: {name}, batch {size}", flush=True)
                    del matrix
        return found

    def theirs(self, precision: str, ours: list[Row], total: int, vectors: Tensor) -> list[Row]:
        """curvlinops' products with the same weights and images, one vector at a time and all at once."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from curvlinops import HessianLinearOperator
        except ImportError as error:
            print(f"curvlinops is left out, because it cannot be imported: {error}")
            return []
        rows, layout = [], self.best[precision][2]
        net = self.net(layout).eval()
        parameters, loss = [p for p in net.parameters() if p.requires_grad], nn.CrossEntropyLoss()
        for name, columns in (("curvlinops_product", 1), ("curvlinops_product_block", len(vectors))):
            given = vectors[0] if columns == 1 else vectors.T.contiguous()
            found: dict[int, float] = {}
            with spared(name), full_precision(tf32=precision == "tf32"):
                for size in self.sizes(self.options.product_batches):
                    with spared(f"{name}, batch {size}"):
                        data = self.batches(size, layout)[: few(size)]
                        operator = HessianLinearOperator(net, loss, parameters, data, check_deterministic=False)
                        images = sum(len(y) for _, y in data)
                        found[size] = min(self.timed(lambda o=operator, g=given: o @ g, 2)) / images
                size = min(found, key=lambda size: found[size])
                data = self.batches(size, layout)
                operator = HessianLinearOperator(net, loss, parameters, data, check_deterministic=False)
                product = self.timed(lambda o=operator, g=given: o @ g, 1)[0] / columns
                detail = {"batch": size, "layout": layout, "version": version("curvlinops-for-pytorch")}
                rows += [
                    Row(f"{name}_{precision}", product, f"s, one of {total // columns} timed", 1, detail=detail),
                    Row(f"{name}_{precision}_forwards", product * total / self.best[precision][0], "forward passes", 1),
                ]
                rows += [
                    Row(f"{name}_{precision}_over_ours", product / row.value, "×", 1)
                    for row in ours
                    if row.name == f"product_{precision}"
                ]
                print(f"{name} in {precision}: {product:.3f} s for each of {total}, batch {size}", flush=True)
        return rows

    # --- what they share ----------------------------------------------------------------------------------------------

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.build().parameters())

    def net(self, layout: str) -> nn.Module:
        net = self.build()
        net.load_state_dict(self.state)
        return net.to(self.device, memory_format=FORMATS[layout])

    def batches(self, size: int, layout: str) -> Batches:
        images = self.images.contiguous(memory_format=FORMATS[layout])
        return list(zip(images.split(size), self.labels.split(size), strict=True))

    def sizes(self, tried: Sequence[int]) -> list[int]:
        return sorted({min(size, len(self.images)) for size in tried})

    def hessian(
        self, size: int, layout_of: str, options: dict[str, Any], limit: int | None = None, precision: str | None = None
    ) -> Hessian:
        layout, precision = self.best[layout_of][2], precision or layout_of
        task = Task(self.net(layout), cross_entropy, self.batches(size, layout)[:limit])
        return Hessian(task, product="double", precision=precision, **options)

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


class Look:
    """The plane through three points around some weights, or far from them where they are random."""

    def __init__(
        self,
        net: nn.Module,
        batches: Batches,
        state: dict[str, Tensor],
        precision: str,
        compile: bool,
        together: int = 1,
    ) -> None:
        around = Directions(state, net, 2)
        b, c = ({**state, **around.weights_at(*point)} for point in ((1.0, 0.0), (0.0, 1.0)))
        device = next(net.parameters()).device
        solutions = [{name: tensor.to(device) for name, tensor in one.items()} for one in (state, b, c)]
        self.plane = Plane(*solutions, net)
        self.task = Task(net, cross_entropy, batches, loss_and_wrong=both)
        self.how = {"precision": precision, "compile": compile, "together": together}

    def sampled(self, points: int) -> tuple[Surface, float]:
        """So many points on each axis, and the seconds that each took, the three anchors counted too."""
        began = time.perf_counter()
        surface = evaluate(self.plane, {"train": self.task}, self.plane.grid(points), progress=False, **self.how)
        return surface, (time.perf_counter() - began) / (points**2 + 3)


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


def few(size: int) -> int:
    """As many batches as tell two ways apart."""
    return max(1, 2000 // size)


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
    ((x, y),) = list(source.clean_train_batches(limit))[:1]
    return x, y, source.classes, source.channels


def apart(found: Surface, exact: Surface) -> float:
    return float(np.nanmax(np.abs(found.losses / exact.losses - 1)))


def far(found: Tensor, exact: Tensor) -> float:
    return float(((found - exact).norm(dim=1) / exact.norm(dim=1)).max())


def version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


if __name__ == "__main__":
    main()
