"""The dropout layers that a model has, at another rate."""

from __future__ import annotations

from torch import nn


def set_dropout(net: nn.Module, p: float) -> None:
    """All of the net's ``nn.Dropout`` layers drop the share ``p``."""
    if not 0 <= p < 1:
        raise ValueError(f"dropout is the share of units dropped: at least 0 and below 1, not {p!r}")
    layers = [module for module in net.modules() if isinstance(module, nn.Dropout)]
    if not layers:
        raise ValueError(
            f"{type(net).__name__} has no dropout layers: method=dropout:{p:g} puts one on its dense layer"
        )
    for layer in layers:
        layer.p = p
