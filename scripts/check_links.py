"""Ask for every address on README and the pages of docs/, and fail where a page is not there any more.

A server that refuses programs, or does not answer in time, is told of and does not count.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

ROOT = Path(__file__).resolve().parent.parent
GONE = (404, 410)


def main() -> None:
    pages = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md"))]
    where = {link: page.name for page in pages for link in links(page.read_text(encoding="utf-8"))}
    lost = 0
    for link, page in sorted(where.items()):
        answer = asked(link)
        lost += answer in GONE
        if answer != 200:
            print(f"{page}: {link}: {answer}")
    print(f"{len(where)} addresses, {lost} of them lost")
    sys.exit(1 if lost else 0)


def links(text: str) -> Iterator[str]:
    """Yield every address on the web that a Markdown page links to, without its anchor."""
    for address in re.findall(r"\]\((https?://[^)\s]+)\)", text):
        yield address.partition("#")[0]


def asked(link: str) -> int | str:
    """Return the status that the server answers with, or what kept it from answering."""
    try:
        with urlopen(Request(link, headers={"User-Agent": "Mozilla/5.0 (ssgd's links)"}), timeout=30) as answer:
            return int(answer.status)
    except HTTPError as refused:
        return refused.code
    except (URLError, OSError) as problem:
        return str(problem)


if __name__ == "__main__":
    main()
