"""The first weights of the nets for small images."""

from __future__ import annotations

from torch import nn


def he_normal(net: nn.Module) -> None:
    """Convolutions and linear layers from N(0, 2 / fan-in) (He et al., arXiv:1502.01852), with biases of zero."""
    for module in net.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            nn.init.kaiming_normal_(module.weight)
            if module.bias is not None:
                nn.init.zeros_(module.bias)
