"""Drop copies that torch keeps of weights, and must not when they have moved."""

from __future__ import annotations

import torch
from torch.nn.utils import parametrize


def forget() -> None:
    """Drop autocast's casts and what ``parametrize.cached()`` has computed: both outlive a pass."""
    torch.clear_autocast_cache()
    parametrize._cache.clear()
