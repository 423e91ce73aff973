"""Numbers and names as the page writes them, and what a text is about."""

from __future__ import annotations

import math
import re

NAMES = {  # of methods, as readers know them; others are called what commands call them
    "sgd": "SGD",
    "sgd-2x": "SGD in twice the epochs",
    "sgdr": "SGDR",
    "ssgd": "both signs",
    "ssgd-x2": "both signs, two pairs",
    "ssgdr": "both signs under SGDR",
    "halves": "halves without noise",
    "sam": "SAM",
    "asam": "ASAM",
    "swa": "SWA",
}


def number(value: float | None) -> str:
    """Two digits after the point, two significant ones for what would be 0.00."""
    if value is None or math.isnan(value):
        return "–"
    return (f"{value:.2f}" if abs(value) >= 0.005 or value == 0 else f"{value:.2g}").replace("-", "−")


def spread(value: float | None) -> str:
    return "" if value is None or math.isnan(value) else f" ± {number(value)}"


def signed(value: float | None) -> str:
    if value is None or math.isnan(value):
        return "–"
    return f"+{value:.2f}" if value >= 0 else f"−{-value:.2f}"


def subject(text: str) -> str:
    """Its first sentence."""
    return re.split(r"(?<=[.?]) ", text, maxsplit=1)[0].removesuffix(".")
