"""What hatchling calls while it builds the package: README as PyPI shows it, where relative links lead nowhere."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

PICTURES = (".png", ".svg", ".gif")


class ReadmeHook(MetadataHookInterface):
    """Fills in ``readme``, with links into the repository as it was when this version was tagged."""

    def update(self, metadata: dict[str, Any]) -> None:
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        text = with_whole_links(text, metadata["urls"]["Repository"], f"v{metadata['version']}")
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def with_whole_links(text: str, repository: str, tag: str) -> str:
    """Make every relative link and picture of a Markdown page one into the repository at a tag."""

    def whole(match: re.Match[str]) -> str:
        before, target = match.groups()
        place = "raw" if target.partition("#")[0].endswith(PICTURES) else "blob"
        return f"{before}{repository}/{place}/{tag}/{target}"

    return re.sub(r"(\]\(|src(?:set)?=\")(?!https?://|#)([^)\"\s]+)", whole, text)
