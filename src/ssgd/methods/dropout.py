"""Dropout where the paper uses it: on the input of the last dense layer."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


def dropout_on_dense(model: nn.Module, p: float) -> RemovableHandle:
    """Dropout (Srivastava et al., 2014) with rate ``p`` on the input of the model's last ``nn.Linear``.

    Active in training only. ``.remove()`` of what is returned takes it off.
    """
    if not 0 <= p < 1:
        raise ValueError(f"p is the share of units dropped: at least 0 and below 1, not {p!r}")
    dense = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not dense:
        raise ValueError(f"{type(model).__name__} has no nn.Linear to put dropout on")

    def drop(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return (F.dropout(inputs[0], p, module.training), *inputs[1:])

    return dense[-1].register_forward_pre_hook(drop)
