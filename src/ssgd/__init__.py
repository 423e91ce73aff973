"""S-SGD for PyTorch: gradients at w + n and w − n, any base optimizer, flat minima."""

from .core.batchnorm import recompute_bn
from .core.noise import Distribution, paper_level
from .core.one_pass import Unserved
from .core.passes import Point
from .core.selection import select
from .optimizer import SSGD
from .schedules import NoiseSchedule

__all__ = ["SSGD", "Distribution", "NoiseSchedule", "Point", "Unserved", "paper_level", "recompute_bn", "select"]
__version__ = "0.1.0"
