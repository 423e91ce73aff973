"""A picture of the top of the page of results: python -m tests.browser.photograph PAGE PICTURE"""

import sys
from pathlib import Path

from .chromium import Chromium


def main(page, picture):
    browser = Chromium()
    try:
        browser.open(Path(page), width=1400, height=1000)
        Path(picture).write_bytes(browser.picture())
    finally:
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
