"""Fail with a sentence when the torch installed is not the one that constraints.txt pins."""

import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

CONSTRAINTS = Path(__file__).resolve().parent.parent / "constraints.txt"


def main() -> None:
    pinned = pinned_version(CONSTRAINTS.read_text())
    installed = installed_version()
    if installed != pinned:
        sys.exit(f"constraints.txt pins torch {pinned}, but {installed} is installed: run `make clean` and try again.")


def pinned_version(constraints: str) -> str:
    match = re.search(r"^torch==(\S+)$", constraints, flags=re.MULTILINE)
    if match is None:
        sys.exit(f"{CONSTRAINTS} has no line `torch==VERSION`: add one.")
    return match[1]


def installed_version() -> str:
    try:
        return version("torch").partition("+")[0]  # "+cpu" and "+cu130" are builds of one version
    except PackageNotFoundError:
        return "no torch"


if __name__ == "__main__":
    main()
