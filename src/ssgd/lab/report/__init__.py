"""Results in, one HTML page out. It knows the files of results and nothing else of the package."""

from .page import render, write

__all__ = ["render", "write"]
