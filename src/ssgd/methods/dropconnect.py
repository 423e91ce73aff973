"""DropConnect: weights dropped at random, as a transform that is put on a model and taken off again."""

from __future__ import annotations

from collections.abc import Iterable

import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from ..core.selection import select


class DroppedWeights(nn.Module):
    """In training each weight is zero with probability ``p`` and scaled by 1 / (1 − p) otherwise; in evaluation w."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, weight: Tensor) -> Tensor:
        return F.dropout(weight, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"


def dropconnect(model: nn.Module, p: float, kinds: str | Iterable[str] = ("dense",)) -> nn.Module:
    """DropConnect (Wan et al., 2013) on the weights of these kinds of layer; the mask is new in every forward pass.

    ``kinds`` are those of :func:`ssgd.select`: ``"dense"``, ``"conv"``, ``"recurrent"``. For recurrent layers only the
    hidden-to-hidden weights are dropped, with one mask for all time steps (Merity et al., 2018). The parameters stay
    the same objects, so an optimizer made before or after serves both; :func:`remove_dropconnect` takes it off.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p is the share of weights dropped: at least 0 and below 1, not {p!r}")
    if any(isinstance(module, DroppedWeights) for module in model.modules()):
        raise ValueError("DropConnect is on this model already: take it off with remove_dropconnect() first")
    chosen = {id(w) for w in select(model, kinds)}
    stacks = [module for module in model.modules() if isinstance(module, parametrize.ParametrizationList)]
    if any(id(w) in chosen for stack in stacks for w in stack.parameters()):
        raise ValueError(
            "a weight to drop is parametrised already, as by weight norm: remove that, or leave out its kind"
        )
    for module in list(model.modules()):
        recurrent = isinstance(module, (nn.RNNBase, nn.RNNCellBase))
        order = list(module._parameters)
        names = [n for n, w in module._parameters.items() if id(w) in chosen and (not recurrent or "_hh" in n)]
        for name in names:
            parametrize.register_parametrization(module, name, DroppedWeights(p))
        if names:
            module.__dict__["_order_without_dropconnect"] = order
        if names and isinstance(module, nn.RNNBase):
            module.__dict__["_dropconnect_hook"] = module.register_forward_hook(_forget_weights, always_call=True)
    return model


def remove_dropconnect(model: nn.Module) -> nn.Module:
    """The model as it was, with the weights as they are now."""
    for module in list(model.modules()):
        for name, stack in list(getattr(module, "parametrizations", {}).items()):
            if any(isinstance(step, DroppedWeights) for step in stack):
                parametrize.remove_parametrizations(module, name, leave_parametrized=False)
        order = module.__dict__.pop("_order_without_dropconnect", None)
        if order is not None:  # parameters in their first order, which checkpoints of optimizers count in
            module._parameters = {name: module._parameters[name] for name in order}
        if "_dropconnect_hook" in module.__dict__ and isinstance(module, nn.RNNBase):
            module.__dict__.pop("_dropconnect_hook").remove()
            module._init_flat_weights()
    return model


def _forget_weights(module: nn.Module, *_: object) -> None:
    """torch's recurrent layers read their weights again for each pass; dropped ones left over cannot be copied."""
    if isinstance(module, nn.RNNBase) and any(w is not None and not w.is_leaf for w in module._flat_weights):
        module._flat_weights = []
