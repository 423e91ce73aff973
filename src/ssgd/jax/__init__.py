"""S-SGD for JAX: gradients at w + n and w − n around any optax optimizer."""

try:
    import jax as _jax  # noqa: F401
    import optax as _optax  # noqa: F401
except ImportError as missing:
    raise ImportError(f"ssgd.jax needs {missing.name}: pip install 'ssgd[jax]'") from missing

from .optimizer import Symmetric, SymmetricState, Value, symmetric

__all__ = ["Symmetric", "SymmetricState", "Value", "symmetric"]
