"""The Hessian of a task's loss by its products: from differentiating twice, or from the gradients at two points."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad

from ..core.checks import check_choice
from ..core.random_state import put_back, snapshot
from .precision import full_precision
from .symmetric import Symmetric
from .task import Task, evaluating, kept

Products = Callable[[Any], Iterator[Tensor]]  # of one batch, with each of the vectors
NO_BATCHES = "the task has no batches: give a loader that can be gone through more than once"
SILENT = ("CudnnCtcLossBackward", "torch::autograd::Error")  # no second derivative, and autograd.grad() does not say so


class Hessian(Symmetric):
    """The second derivatives of the mean loss over all samples, for the chosen weights.

    Args:
        parameters: a layer, or weights such as ``ssgd.select(...)`` gives; by default all that are trained.
        product: ``"double"`` differentiates twice: exact, and at kinks (ReLU) the curvature beside them.
            ``"two-point"`` is (∇L(w+εv) − ∇L(w−εv)) / 2ε: for what cannot be differentiated twice (CTC, cuDNN's LSTM),
            and a third cheaper; kinks between its points count as curvature. ``"auto"`` looks which one the first batch
            allows, ``"double"`` if it can; the attribute ``product`` says which it is.
        compile: with ``torch.compile``: minutes at first, then faster on a GPU.
        mode: batch-norm's: ``"eval"`` takes the running statistics, ``"train"`` each batch's own. Dropout is off.

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
        compile: bool = False,
        mode: str = "eval",
    ) -> None:
        check_choice("product", product, ("auto", "double", "two-point"))
        check_choice("mode", mode, ("eval", "train"))
        self.task = task
        self.mode = mode
        self.tensors = _chosen(task.model, parameters)
        self._sizes = [p.numel() for p in self.tensors]
        super().__init__(sum(self._sizes), self.tensors[0].dtype, self.tensors[0].device)
        self._stream = snapshot([self.device])
        self._loss = task.loss
        self.product = product if product == "two-point" else self._possible(product)
        self._prepare: Callable[[Tensor], Products] = self._two_point
        if self.product == "double":
            self._prepare = self._compiled_double() if compile else self._double
        elif compile:
            self._loss = torch.compile(task.loss)

    def matmat(self, vectors: Tensor) -> Tensor:
        """The products with several vectors, one a row: cheaper than one by one, as they share a pass over the data."""
        count = 0
        with self._ready():
            vectors = vectors.to(self.device, self.dtype, copy=True)
            total = torch.zeros(vectors.shape, dtype=_wide(self.device), device=self.device)
            products = self._prepare(vectors)
            for batch in self.task.batches:
                size = self.task.size(batch)
                for row, product in zip(total, products(batch), strict=True):
                    row.add_(product, alpha=size)
                count += size
        if not count:
            raise ValueError(NO_BATCHES)
        self.samples = count
        self.passes += 6 * len(vectors) + (3 if self.product == "double" else 0)
        return total.div_(count).to(self.dtype)

    def _double(self, vectors: Tensor) -> Products:
        parts = [self._cut(vector) for vector in vectors]

        def products(batch: Any) -> Iterator[Tensor]:
            gradients = self._gradients(batch, create_graph=True)
            curved = [i for i, gradient in enumerate(gradients) if gradient.requires_grad]
            slopes = [gradients[i] for i in curved]
            for part in parts:
                along = [part[i] for i in curved]
                yield _flat(
                    torch.autograd.grad(slopes, self.tensors, along, retain_graph=True, materialize_grads=True)
                    if curved
                    else [torch.zeros_like(p) for p in self.tensors]
                )

        return products

    def _two_point(self, vectors: Tensor) -> Products:
        clean = [p.detach().clone() for p in self.tensors]
        reach = max(1.0, float(torch.stack(torch._foreach_norm(clean)).norm()))
        length = 0.25 * (torch.finfo(self.dtype).eps * reach) ** (1 / 3)
        steps = [length / (float(vector.norm()) or 1.0) for vector in vectors]
        parts = [self._cut(vector) for vector in vectors]

        def products(batch: Any) -> Iterator[Tensor]:
            for part, step in zip(parts, steps, strict=True):
                self._move(torch._foreach_add(clean, part, alpha=step))
                plus = _flat(self._gradients(batch))
                self._move(torch._foreach_sub(clean, part, alpha=step))
                minus = _flat(self._gradients(batch))
                yield plus.sub_(minus).div_(2 * step)

        return products

    def _compiled_double(self) -> Callable[[Tensor], Products]:
        whole = _Loss(self.task)
        places = _places(whole, self.tensors)

        def product(weights: list[Tensor], part: list[Tensor], batch: Any) -> list[Tensor]:
            def loss(values: list[Tensor]) -> Tensor:
                given = {name: values[index] for name, index in places.items()}
                found: Tensor = functional_call(whole, given, (batch,), tie_weights=False)
                return found

            def slope(values: list[Tensor]) -> Tensor:
                return torch.stack([(g * v).sum() for g, v in zip(grad(loss)(values), part, strict=True)]).sum()

            found: list[Tensor] = grad(slope)(weights)
            return found

        compiled = torch.compile(product)

        def prepare(vectors: Tensor) -> Products:
            weights = [p.detach() for p in self.tensors]
            parts = [self._cut(vector) for vector in vectors]
            return lambda batch: (_flat(compiled(weights, part, batch)) for part in parts)

        return prepare

    def _possible(self, wish: str) -> str:
        """``"double"`` if the first batch allows it, else what was meant for that case."""
        obstacle = self._obstacle()
        if obstacle and wish == "double":
            raise ValueError(f"the loss cannot be differentiated twice ({obstacle}): use product='two-point' or 'auto'")
        return "two-point" if obstacle else "double"

    def _obstacle(self) -> str | None:
        """What stands in the way of differentiating the first batch's loss twice."""
        with self._ready():
            batch = next(iter(self.task.batches), None)
            if batch is None:
                raise ValueError(NO_BATCHES)
            loss = self._loss(self.task.model, batch)
            gradients = torch.autograd.grad(loss, self.tensors, create_graph=True, materialize_grads=True)
            curved = [gradient for gradient in gradients if gradient.requires_grad]
            if silent := [name for name in _operations([loss, *curved]) if name.startswith(SILENT)]:
                return f"one of its operations has no second derivative: {silent[0]}"
            try:
                if curved:
                    torch.autograd.grad([gradient.sum() for gradient in curved], self.tensors, allow_unused=True)
            except torch.OutOfMemoryError:
                raise
            except (RuntimeError, NotImplementedError) as error:
                return str(error).splitlines()[0]
        return None

    def _gradients(self, batch: Any, create_graph: bool = False) -> tuple[Tensor, ...]:
        loss = self._loss(self.task.model, batch)
        return torch.autograd.grad(loss, self.tensors, create_graph=create_graph, materialize_grads=True)

    @contextmanager
    def _ready(self) -> Iterator[None]:
        """The model and the random streams as every pass finds them; afterwards as they were."""
        model, stream = self.task.model, snapshot([self.device])
        with torch.inference_mode(False), torch.enable_grad(), kept(model), evaluating(model, self.mode):
            put_back(self._stream)
            try:
                with full_precision():
                    yield
            finally:
                put_back(stream)

    @torch.no_grad()
    def _move(self, values: list[Tensor] | tuple[Tensor, ...]) -> None:
        torch._foreach_copy_(self.tensors, values)
        torch.clear_autocast_cache()

    def _cut(self, vector: Tensor) -> list[Tensor]:
        return [part.view_as(p) for part, p in zip(torch.split(vector, self._sizes), self.tensors, strict=True)]


class _Loss(nn.Module):
    """The loss as a module, so that its model's weights can be handed in."""

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.model = task.model
        self.loss = task.loss

    def forward(self, batch: Any) -> Tensor:
        return self.loss(self.model, batch)


def _places(model: nn.Module, tensors: list[Tensor]) -> dict[str, int]:
    """Which tensor goes where, tied weights to all their places. A module with two names counts once: of those that it
    meets twice functional_call() does not find the way back."""
    index = {id(p): i for i, p in enumerate(tensors)}
    return {
        f"{path}.{name}": index[id(p)]
        for path, module in model.named_modules()
        for name, p in module.named_parameters(recurse=False, remove_duplicate=False)
        if id(p) in index
    }


def _chosen(model: nn.Module, parameters: nn.Module | Iterable[Tensor] | None) -> list[Tensor]:
    """The weights meant, each once."""
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
    kinds = {(p.dtype, p.device) for p in chosen}
    if len(kinds) > 1:
        raise ValueError(f"the weights must have one dtype and be on one device, not {len(kinds)} different ones")
    if chosen[0].dtype not in (torch.float32, torch.float64):
        raise ValueError(f"second derivatives need more precision than {chosen[0].dtype}: call model.float() first")
    return chosen


def _operations(results: Iterable[Tensor]) -> set[str]:
    """The names of all operations behind some results."""
    seen, waiting = set(), [result.grad_fn for result in results]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return {node.name() for node in seen}


def _wide(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


def _flat(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.detach().reshape(-1) for t in tensors])
