"""A loss surface that one can turn, as a page of its own (plotly)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..files import write_whole
from .pictures import LABELS, ON_THE_MAP, axis_labels, on_a_plane, spread_levels
from .surface import Surface

SYMBOLS = ("circle", "square", "diamond")


def turning_surface(surface: Surface, of: str = "train", what: str = "loss", path: str | Path | None = None) -> Any:
    """One task's ``"loss"`` or ``"error"`` as a plotly figure; ``path``, an .html, gets a page that needs nothing else.

    Colours are those of ``draw_plane``'s levels. The height is logarithmic where every value is positive.
    """
    if path is not None and Path(path).suffix != ".html":
        raise ValueError(f"a surface that turns is an .html page, not {str(path)!r}: for a picture use draw_plane()")
    try:
        import plotly.graph_objects as go
    except ImportError:
        raise ImportError("surfaces that turn need plotly: pip install plotly") from None

    values, heights = on_a_plane(surface, of, what), surface.at_anchors(of, what)
    levels = spread_levels(values)
    steps = np.arange(len(levels))
    sheet = go.Surface(
        x=surface.x,
        y=surface.y,
        z=values.T,
        surfacecolor=np.interp(values, levels, steps).T,
        colorscale="Viridis",
        colorbar={"tickvals": steps, "ticktext": [f"{level:.3g}" for level in levels], "title": LABELS[what]},
    )
    marks = [
        go.Scatter3d(
            x=[x],
            y=[y],
            z=[height],
            mode="markers+text",
            text=[name],
            name=name,
            showlegend=False,
            marker={"color": colour, "symbol": symbol, "size": 6, "line": {"color": "white", "width": 1}},
        )
        for name, (x, y), height, colour, symbol in zip(
            surface.names, surface.anchors, heights, ON_THE_MAP, SYMBOLS, strict=False
        )
    ]
    figure = go.Figure([sheet, *marks])
    along, across = axis_labels(surface)
    scale = "log" if np.nanmin(values) > 0 else "linear"
    height = {"title": LABELS[what], "type": scale}
    figure.update_layout(
        title=f"{of} {LABELS[what]}", scene={"xaxis": {"title": along}, "yaxis": {"title": across}, "zaxis": height}
    )
    if path is not None:
        write_whole(path, figure.to_html(include_plotlyjs=True).encode())
    return figure
