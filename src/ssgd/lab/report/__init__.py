"""Cells and rows in, one HTML page out."""

from .page import render, write

__all__ = ["render", "write"]
