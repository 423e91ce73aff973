"""A model's loss as a function of its weights, and what torch.func makes of it: products with the Hessian."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vjp, vmap


class Functional:
    """The loss of a batch as a function of the chosen weights; the model's others are constants."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], tensors: list[Tensor]) -> None:
        self.tensors = tensors
        self._sizes = [p.numel() for p in tensors]
        self._whole = Called(model, loss)
        self._places = tensor_places(self._whole, tensors)

    def __call__(self, values: list[Tensor], batch: Any) -> Tensor:
        given = {name: values[index] for name, index in self._places.items()}
        found: Tensor = functional_call(self._whole, given, (batch,), tie_weights=False)
        return found

    def passed_by(self, batch: Any) -> bool:
        """Whether the loss finds the weights elsewhere too than in the model it is given: that part would be lost."""
        with torch.enable_grad():
            loss = self([p.detach().requires_grad_() for p in self.tensors], batch)
            found = torch.autograd.grad(loss, self.tensors, allow_unused=True) if loss.requires_grad else ()
        return any(gradient is not None for gradient in found)

    @torch.no_grad()  # the constants would be differentiated too, which costs memory
    def forward(self, vectors: Tensor, batch: Any) -> Tensor:
        """The products with all vectors at once, by forward over reverse: the gradient's derivative along each."""
        slopes = grad(lambda values: self(values, batch))

        def product(vector: Tensor) -> Tensor:
            return flat(jvp(slopes, (self._values(),), (self.cut(vector),))[1])

        return vmap(product, randomness="same")(vectors) if len(vectors) > 1 else product(vectors[0])[None]

    @torch.no_grad()
    def double(self, vectors: Tensor, batch: Any) -> Tensor:
        """The same by differentiating the gradient backward."""
        slopes = grad(lambda values: self(values, batch))
        pull = vjp(slopes, self._values())[1]

        def product(vector: Tensor) -> Tensor:
            return flat(pull(self.cut(vector))[0])

        return vmap(product, randomness="same")(vectors) if len(vectors) > 1 else product(vectors[0])[None]

    def cut(self, vector: Tensor) -> list[Tensor]:
        """A flat vector in the weights' shapes."""
        return [part.view_as(p) for part, p in zip(torch.split(vector, self._sizes), self.tensors, strict=True)]

    def _values(self) -> list[Tensor]:
        return [p.detach() for p in self.tensors]


class Called(nn.Module):
    """A function of a model and a batch as a module, so that the model's tensors can be handed in."""

    def __init__(self, model: nn.Module, function: Callable[[nn.Module, Any], Any]) -> None:
        super().__init__()
        self.model = model
        self.function = function

    def forward(self, batch: Any) -> Any:
        return self.function(self.model, batch)


def tensor_places(model: nn.Module, tensors: list[Tensor]) -> dict[str, int]:
    """Which tensor goes where, tied ones to all their places. A module with two names counts once: of those that it
    meets twice functional_call() does not find the way back."""
    index = {id(t): i for i, t in enumerate(tensors)}
    return {
        f"{path}.{name}": index[id(t)]
        for path, module in model.named_modules()
        for name, t in (
            *module.named_parameters(recurse=False, remove_duplicate=False),
            *module.named_buffers(recurse=False, remove_duplicate=False),
        )
        if id(t) in index
    }


def flat(tensors: Iterable[Tensor]) -> Tensor:
    """All of them as one vector."""
    return torch.cat([t.detach().reshape(-1) for t in tensors])
