"""Numbers as the page writes them."""

from __future__ import annotations

import math

from .verdicts import Interval


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


def gained(found: Interval | None) -> str:
    """A difference, and half the width of its 95 % interval where that is known."""
    return "–" if found is None else f"{signed(found.middle)}{spread(found.reach)}"
