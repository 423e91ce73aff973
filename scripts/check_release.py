"""Fail with a sentence unless everything that names this version names the one of the tag given: v0.1.0, say."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLACES = {
    "pyproject.toml": r'^version = "(.+)"$',
    "src/ssgd/__init__.py": r'^__version__ = "(.+)"$',
    "CITATION.cff": r"^version: (.+)$",
    "CHANGELOG.md": r"^## \[(.+)\] - \d{4}-\d\d-\d\d$",  # the uppermost version that has a date
}


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python scripts/check_release.py TAG")
    if problems := list(wrong(ROOT, sys.argv[1])):
        sys.exit("\n".join(problems))


def wrong(root: Path, tag: str) -> Iterator[str]:
    """Yield a sentence for each place that keeps this tag from being released."""
    for place, pattern in PLACES.items():
        found = re.search(pattern, (root / place).read_text(encoding="utf-8"), re.MULTILINE)
        if found is None:
            yield f"{place} has no version with a date: give the uppermost its number and the day"
        elif f"v{found[1]}" != tag:
            yield f"{place} has {found[1]}, but the tag is {tag}: tag v{found[1]}, or change the file"
    if "/OWNER/" in (root / "pyproject.toml").read_text(encoding="utf-8"):
        yield "pyproject.toml does not know the repository's address yet: put its owner into [project.urls]"


if __name__ == "__main__":
    main()
