"""S-SGD in one forward and one backward: half of the samples at w + n, the other half at w − n, inside the layers."""

from .block import Block, OnePass
from .layers import Unserved

__all__ = ["Block", "OnePass", "Unserved"]
