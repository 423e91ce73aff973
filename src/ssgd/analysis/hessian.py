"""The Hessian of a task's loss, known by its products with vectors.

They come from differentiating twice, or from the gradients at two points.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core.checks import check_choice, check_count
from ..core.random_state import snapshot
from .acceleration import Captured, widest
from .symmetric import Symmetric, norm
from .task import NO_BATCHES, Task, WeightVector, check_task, gradients, unmoved

Products = Callable[[Any], Iterable[Tensor]]  # of a batch: its products with each of the vectors
NAMES = {"forward": "forward over reverse", "double": "double backward", "two-point": "the two-point difference"}
# no second derivative, or a wrong one (weight norm's), and autograd.grad() does not say so
SILENT = ("CudnnCtcLossBackward", "WeightNormInterfaceBackward", "torch::autograd::Error")
TF32 = 2.0**-10  # its eps


class Hessian(Symmetric):
    """The second derivatives of the mean loss over all samples, for the chosen weights.

    Args:
        parameters: a layer, or weights such as ``ssgd.select(...)`` gives; by default all that are trained.
        product: ``"forward"`` differentiates the gradient forward along v, ``"double"`` backward: both exact, and at
            kinks (ReLU) the curvature beside them. The second is slow for convolutions on a GPU, which become ones with
            kernels as large as the image. ``"two-point"`` is (∇L(w+εv) − ∇L(w−εv)) / 2ε: for what cannot be
            differentiated twice (CTC, cuDNN's LSTM), and a third cheaper; kinks between its points count as curvature.
            ``"auto"`` takes the first of the three that the first batch allows, and says in a line if it is not
            ``"forward"``; the attribute ``product`` says which it is.
        mode: batch-norm's: ``"eval"`` takes the running statistics, ``"train"`` each batch's own. Dropout is off.
        together: of the vectors of ``matmat()``, so many go through one pass, by vmap; not for ``"two-point"``. A
            batch's memory grows with it.
        graph: ``"forward"`` or ``"double"`` as one CUDA graph, for nets whose operations are too short for the host to
            keep up with. The data must be tensors, and the loss may not wait for the device.
        precision: ``"fp32"``, or ``"tf32"``: faster on a GPU, and right to 3 digits, ``"two-point"`` to one.

    What is captured serves batches shaped like the first; others, such as a ragged last one, go without.

    The length of the two-point step is ‖εv‖ = ¼ ∛(eps · max(1, ‖w‖)). Rounding w ± εv costs eps ‖w‖ / ‖εv‖ of the
    product, and the third derivative's share grows with ‖εv‖²: the sum is least at a cube root. For smooth nets it is
    right to about 1e-3 in float32 and 1e-8 in float64, which is worth a ``model.double()`` where precision matters.

    Every product goes through all batches, weighs them by their samples, adds them up in float64, and leaves the model,
    its gradients and the random streams as they were. A loader that draws from torch's global stream, to shuffle or
    to augment, draws the same each time.
    """

    def __init__(
        self,
        task: Task,
        parameters: nn.Module | Iterable[Tensor] | None = None,
        product: str = "auto",
        mode: str = "eval",
        together: int = 1,
        graph: bool = False,
        precision: str = "fp32",
    ) -> None:
        check_task(task)
        check_choice("product", product, ("auto", *NAMES))
        check_choice("mode", mode, ("eval", "train"))
        check_choice("precision", precision, ("fp32", "tf32"))
        check_count("together", together)
        self.task = task
        self.mode = mode
        self.together = together
        self.precision = precision
        self.tensors = _chosen(task.model, parameters)
        self.vector = WeightVector(self.tensors, self.tensors[0].dtype)
        super().__init__(sum(self.vector.sizes), self.vector.dtype, self.vector.device)
        self._eps = TF32 if precision == "tf32" else torch.finfo(self.dtype).eps
        self._stream = snapshot([self.device])
        self._loss = task.loss
        self._of_weights = LossOfWeights(task.model, task.loss, self.tensors)
        self.product = product if product == "two-point" else self._possible(product)
        self._prepare: Callable[[Tensor], Products] = self._two_point
        if self.product != "two-point":
            self._prepare = self._differentiated(graph)

    def matmat(self, vectors: Tensor) -> Tensor:
        """Returns the products with several vectors, one a row, which share a pass over the data."""
        count = 0
        with self._ready():
            vectors = vectors.to(self.device, self.dtype, copy=True)
            total = torch.zeros(vectors.shape, dtype=widest(self.device), device=self.device)
            products = self._prepare(vectors)
            for batch in self.task.batches:
                size = self.task.size(batch)
                for row, product in zip(total, products(batch), strict=True):
                    row.add_(product, alpha=size)
                count += size
        if not count:
            raise ValueError(NO_BATCHES)
        self.samples = count
        slopes = {"forward": -(-len(vectors) // self.together), "double": 1, "two-point": 0}[self.product]
        self.passes += 6 * len(vectors) + 3 * slopes
        return total.div_(count).to(self.dtype)

    def _differentiated(self, graph: bool) -> Callable[[Tensor], Products]:
        """Returns the function that makes the products of a batch, captured where that was asked for."""
        plain: Callable[[Tensor, Any], Iterable[Tensor]] = self._forward if self.product == "forward" else self._double
        made = Captured(lambda vectors, batch: torch.stack(list(plain(vectors, batch)))) if graph else plain
        return lambda vectors: lambda batch: made(vectors, batch)

    def _forward(self, vectors: Tensor, batch: Any) -> Iterator[Tensor]:
        slope, at = grad(lambda weights: self._of_weights.at(weights, batch)), ([p.detach() for p in self.tensors],)

        @torch.no_grad()  # the constants would be differentiated too, which costs memory
        def product(vector: Tensor) -> Tensor:
            return self.vector.flat(jvp(slope, at, (self.vector.cut(vector),))[1])

        return self._together(product, vectors)

    def _double(self, vectors: Tensor, batch: Any) -> Iterator[Tensor]:
        found = self._gradients(batch, create_graph=True)
        curved = [i for i, gradient in enumerate(found) if gradient.requires_grad]
        slopes = [found[i] for i in curved]

        def product(vector: Tensor) -> Tensor:
            parts = self.vector.cut(vector)
            along = [parts[i] for i in curved]
            return self.vector.flat(
                torch.autograd.grad(slopes, self.tensors, along, retain_graph=True, materialize_grads=True)
                if curved
                else [torch.zeros_like(p) for p in self.tensors]
            )

        return self._together(product, vectors)

    def _together(self, product: Callable[[Tensor], Tensor], vectors: Tensor) -> Iterator[Tensor]:
        for chunk in torch.split(vectors, self.together):
            yield from vmap(product, randomness="same")(chunk) if len(chunk) > 1 else [product(chunk[0])]

    def _two_point(self, vectors: Tensor) -> Products:
        clean = self.vector.now()
        length = 0.25 * (self._eps * max(1.0, norm(clean))) ** (1 / 3)
        steps = [length / (float(vector.norm()) or 1.0) for vector in vectors]

        def products(batch: Any) -> Iterator[Tensor]:
            for vector, step in zip(vectors, steps, strict=True):
                self.vector.load(clean.add(vector, alpha=step))
                plus = self.vector.flat(self._gradients(batch))
                self.vector.load(clean.sub(vector, alpha=step))
                yield plus.sub_(self.vector.flat(self._gradients(batch))).div_(2 * step)

        return products

    def _possible(self, asked: str) -> str:
        """Returns the first way that the first batch allows, or the one that was asked for."""
        obstacles: dict[str, str] = {}
        for way in ("forward", "double") if asked == "auto" else (asked,):
            with self._ready():
                batch = next(iter(self.task.batches), None)
                if batch is None:
                    raise ValueError(NO_BATCHES)
                obstacle = self._against_forward(batch) if way == "forward" else self._against_double(batch)
            if obstacle is None:
                self._say(way, obstacles)
                return way
            obstacles[way] = obstacle
        if asked != "auto":
            others = "'two-point' or 'auto'"
            raise ValueError(f"the loss cannot be differentiated twice ({obstacles[asked]}): use product={others}")
        self._say("two-point", obstacles)
        return "two-point"

    def _say(self, way: str, obstacles: dict[str, str]) -> None:
        if obstacles:
            reasons = "; ".join(f"{NAMES[other]}: {obstacle}" for other, obstacle in obstacles.items())
            print(f"products with the Hessian come from {NAMES[way]} (not {reasons})", file=sys.stderr)

    def _against_forward(self, batch: Any) -> str | None:
        """Returns the obstacle to forward over reverse: an operation, or a result that is no Hessian's."""
        self._gradients(batch)  # raises where none reaches the weights, which forward over reverse takes for zeros
        try:
            if self._bypassed(batch):
                return "the loss takes weights from elsewhere than the model that it is given"
            return self._asymmetry(self._forward, batch)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:
            return _reason(error)

    def _bypassed(self, batch: Any) -> bool:
        """Tells whether the loss takes weights from elsewhere than the model it is given: that part would be lost."""
        loss = self._of_weights.at([p.detach().requires_grad_() for p in self.tensors], batch)
        found = torch.autograd.grad(loss, self.tensors, allow_unused=True) if loss.requires_grad else ()
        return any(gradient is not None for gradient in found)

    def _against_double(self, batch: Any) -> str | None:
        """Returns the obstacle to double backward."""
        loss = self._loss(self.task.model, batch)
        behind = _operations([loss, *gradients(loss, self.tensors, create_graph=True)])
        if silent := [name for name in behind if name.startswith(SILENT)]:
            return f"one of its operations has no second derivative to rely on: {silent[0]}"
        try:
            return self._asymmetry(self._double, batch)
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, NotImplementedError) as error:
            return _reason(error)

    def _asymmetry(self, way: Callable[[Tensor, Any], Iterable[Tensor]], batch: Any) -> str | None:
        u, v = vectors = torch.stack([self.draw("sphere", 0, number) for number in range(2)])
        of_u, of_v = torch.stack(list(way(vectors, batch)))
        gap, scale = (u @ of_v - v @ of_u).abs(), u.norm() * of_v.norm() + v.norm() * of_u.norm()
        return "its second derivatives are not symmetric" if gap > self._eps**0.5 * scale else None

    def _gradients(self, batch: Any, create_graph: bool = False) -> list[Tensor]:
        return gradients(self._loss(self.task.model, batch), self.tensors, create_graph)

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """Gives every pass the same model and random streams, and restores both afterwards."""
        moved = unmoved(self.task.model, self.mode, self.precision, self._stream)
        with torch.inference_mode(False), torch.enable_grad(), moved, self._attention():
            yield

    def _attention(self) -> AbstractContextManager[Any]:
        """Chooses the attention that can be differentiated twice: the fused kernels cannot."""
        twice = self.product != "two-point"
        return sdpa_kernel(SDPBackend.MATH) if twice else nullcontext()


class LossOfWeights(nn.Module):
    """A loss as a function of weights and a batch, by functional_call(); tied weights are set in all their places."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.model, self.loss = model, loss
        number = {id(p): i for i, p in enumerate(weights)}
        # named_modules() leaves out modules that it met before, which functional_call() would not restore
        self._numbers = {
            f"{path}.{name}": number[id(p)]
            for path, inner in self.named_modules()
            for name, p in inner.named_parameters(recurse=False, remove_duplicate=False)
            if id(p) in number
        }

    def forward(self, batch: Any) -> Tensor:
        return self.loss(self.model, batch)

    def at(self, weights: Sequence[Tensor], batch: Any) -> Tensor:
        given = {name: weights[number] for name, number in self._numbers.items()}
        found: Tensor = torch.func.functional_call(self, given, (batch,), tie_weights=False)
        return found


def _chosen(model: nn.Module, parameters: nn.Module | Iterable[Tensor] | None) -> list[Tensor]:
    """Returns the weights that ``parameters`` names, each once."""
    chosen: list[Tensor]
    if parameters is None or isinstance(parameters, nn.Module):
        layer = model if parameters is None else parameters
        chosen = [p for p in layer.parameters() if p.requires_grad]
    else:
        chosen = list({id(p): p for p in parameters}.values())
    if not chosen:
        raise ValueError("there are no weights to differentiate by: give some whose requires_grad is set")
    if not {id(p) for p in chosen} <= {id(p) for p in model.parameters()}:
        raise ValueError("some of the weights are not of the task's model: take them from task.model")
    if not all(p.requires_grad for p in chosen):
        raise ValueError("some of the weights are frozen: set their requires_grad, or leave them out")
    if any(p.is_complex() for p in chosen):
        raise ValueError("some of the weights are complex, which are not served: leave them out with parameters=...")
    kinds = {(p.dtype, p.device) for p in chosen}
    if len(kinds) > 1:
        raise ValueError(f"the weights must have one dtype and be on one device, not {len(kinds)} different ones")
    if chosen[0].dtype not in (torch.float32, torch.float64):
        raise ValueError(f"second derivatives need more precision than {chosen[0].dtype}: call model.float() first")
    return chosen


def _operations(results: Iterable[Tensor]) -> set[str]:
    """Returns the names of all operations that lead to some results."""
    seen, waiting = set(), [result.grad_fn for result in results]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return {node.name() for node in seen}


def _reason(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
