"""S-SGD in one forward and one backward: half of the samples at w + n, the other half at w − n, inside the layers.

**A noisy weight is a pair of values.** While a block is open, a weight with noise has a class that every function of
torch hands its call to. A function of pairs alone gives a pair. A function of pairs and of tensors *with samples* is
taken by halves, each half at its own value, and gives a plain tensor. So the sign never reaches the user's code, whose
batch and loss stay whole, and the weights are not written to.

Read in this order:

1. ``layers.py``: linear, convolution, embedding and batch-norm, as two halves with one gradient of the weight.
2. ``pairs.py``: what a pair is, and what becomes of any function of pairs.
3. ``samples.py``: in which dimension of a tensor the samples lie. A dry run sees it, and leaves no trace.
4. ``block.py``: one block from its opening to its end, and what is checked there.

Whatever cannot be done rightly raises :class:`Unserved`.
"""

from .block import block, dry_run, twice
from .layers import Unserved

__all__ = ["Unserved", "block", "dry_run", "twice"]
