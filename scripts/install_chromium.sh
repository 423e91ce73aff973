#!/bin/sh
# Debian's Chromium, in which the page of results is tested and photographed.
set -eu
for name in chromium chromium-browser google-chrome; do
    if command -v "$name" >/dev/null; then exit 0; fi
done
if ! command -v apt-get >/dev/null; then
    echo "Chromium is missing, and there is no apt-get to install it: install it in your system's way, then call make again." >&2
    exit 1
fi
if [ "$(id -u)" != 0 ]; then
    echo "Chromium is missing: run 'sudo apt-get install chromium', then call make again." >&2
    exit 1
fi
apt-get update -q
apt-get install -q -y --no-install-recommends chromium
