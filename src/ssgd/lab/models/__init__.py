"""The paper's models and a few small ones, one file a family, and all of them by name."""

from .registry import MODELS, Model, build

__all__ = ["MODELS", "Model", "build"]
