"""S-SGD in one forward and one backward: half of the samples at w + n, the other half at w − n, inside the layers."""

from .block import OnePass, block, dry_run, twice
from .layers import Unserved

__all__ = ["OnePass", "Unserved", "block", "dry_run", "twice"]
