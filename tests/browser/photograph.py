"""A picture of the page of results at figure 3: python -m tests.browser.photograph PAGE PICTURE"""

import sys
from pathlib import Path

from .chromium import Chromium


def main(page, picture):
    browser = Chromium()
    try:
        browser.open(Path(page), width=1000, height=1250)
        browser.ask("document.getElementById('fig3').scrollIntoView({behavior: 'instant'})")
        Path(picture).write_bytes(browser.picture())
    finally:
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
