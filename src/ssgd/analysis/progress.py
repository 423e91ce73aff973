"""How far a long computation has come, on stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def counting(total: int | None, unit: str, shown: bool) -> Iterator[Callable[[int], object]]:
    """What to call with the number of those just done; a bar of tqdm if it is ``shown``."""
    if shown:
        try:
            from tqdm import tqdm
        except ImportError:
            print("without tqdm there is no progress bar: pip install tqdm", file=sys.stderr)
        else:
            with tqdm(total=total, unit=f" {unit}", file=sys.stderr, dynamic_ncols=True) as bar:
                yield bar.update
            return
    yield lambda count: None
