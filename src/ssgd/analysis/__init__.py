"""Loss surfaces, spectra, sharpness and tolerance of any model; matplotlib and scipy are imported where used."""

from .eigenvalues import Eigenvalues, Spectrum, Trace, spectrum, top_eigenvalues, trace
from .geometry import Directions, Line, Plane
from .hessian import Hessian
from .level import LevelCurve, find_level
from .pictures import draw_line, draw_plane, draw_spectrum, draw_tolerance
from .results import load, save
from .sharpness import Excess, SamSharpness, Sharpness, keskar, sam_sharpness, symmetric_excess
from .surface import Surface, evaluate
from .symmetric import FromProducts, Symmetric
from .task import Task
from .tolerance import Tolerance, tolerance, tolerance_of

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
    "Tolerance",
    "Trace",
    "draw_line",
    "draw_plane",
    "draw_spectrum",
    "draw_tolerance",
    "evaluate",
    "find_level",
    "keskar",
    "load",
    "sam_sharpness",
    "save",
    "spectrum",
    "symmetric_excess",
    "tolerance",
    "tolerance_of",
    "top_eigenvalues",
    "trace",
]
