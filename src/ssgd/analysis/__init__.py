"""Loss surfaces, spectra and sharpness of any model and loss; matplotlib and scipy are imported where they are used."""

from .eigenvalues import Eigenvalues, Spectrum, Trace, spectrum, top_eigenvalues, trace
from .geometry import Directions, Line, Plane
from .hessian import Hessian
from .level import LevelCurve, find_level
from .pictures import draw_line, draw_plane, draw_spectrum
from .results import load, save
from .sharpness import Excess, SamSharpness, Sharpness, keskar, sam_sharpness, symmetric_excess
from .surface import Surface, evaluate
from .symmetric import FromProducts, Symmetric
from .task import Task

__all__ = [
    "Directions",
    "Eigenvalues",
    "Excess",
    "FromProducts",
    "Hessian",
    "LevelCurve",
    "Line",
    "Plane",
    "SamSharpness",
    "Sharpness",
    "Spectrum",
    "Surface",
    "Symmetric",
    "Task",
    "Trace",
    "draw_line",
    "draw_plane",
    "draw_spectrum",
    "evaluate",
    "find_level",
    "keskar",
    "load",
    "sam_sharpness",
    "save",
    "spectrum",
    "symmetric_excess",
    "top_eigenvalues",
    "trace",
]
