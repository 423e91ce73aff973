"""The paper's experiments as functions that return a Recipe, one file a table or figure, and all of them by name."""

from .registry import RECIPES, get, listing

__all__ = ["RECIPES", "get", "listing"]
