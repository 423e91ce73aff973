"""An empty picture, and a finished one on disk (matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ..files import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def empty_figure(width: float, height: float) -> Figure:
    """A figure of that size in inches; nothing is shown, and nothing set for the process."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("pictures need matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)  # pyplot would choose a backend for the whole process
    return figure


def saved(figure: Figure, path: str | Path | None) -> Figure:
    """The figure; as a .png, .pdf or .svg file too where a path is given."""
    if path is not None:
        kind = Path(path).suffix[1:]
        if kind not in ("png", "pdf", "svg"):
            raise ValueError(f"a picture can be .png, .pdf or .svg, not {str(path)!r}")
        write_whole(path, lambda file: figure.savefig(file, format=kind, dpi=200))
    return figure
