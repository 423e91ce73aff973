"""Where data sets lie on disk."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def data_folder(given: str | Path | None = None) -> Path:
    """The folder given, else that of the environment variable SSGD_DATA, else the user's cache."""
    if given or os.environ.get("SSGD_DATA"):
        return Path(given or os.environ["SSGD_DATA"]).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "ssgd"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ssgd"
