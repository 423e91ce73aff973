"""``python -m ssgd.lab.train RECIPE key=value …``: trains where only torch and numpy are installed.

Without arguments it lists the recipes. The keys are the fields of the recipe and of the execution (out, folder, device,
compile, graph, deterministic, …).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ..experiments.catalogue import listing
from ..recipes.configure import from_changes
from .terminal import ended, show


def main(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(f"{__doc__}\n{listing()}")
        return 0 if arguments else 2
    return ended(lambda: show(*from_changes(arguments[0], arguments[1:])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
