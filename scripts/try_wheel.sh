#!/usr/bin/env bash
# Install the wheel of dist/ into an empty environment, and run there what needs nothing else.
set -euo pipefail
cd "$(dirname "$0")/.."

wheels=("$PWD"/dist/*.whl)
if [[ ${#wheels[@]} != 1 || ! -f ${wheels[0]} ]]; then
    echo "dist/ must hold one wheel: empty it, then python -m build" >&2
    exit 1
fi
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"${PYTHON:-python3}" -m venv "$place/environment"
"$place/environment/bin/python" -m pip install -q --no-cache-dir --disable-pip-version-check "${wheels[0]}"

cd "$place"
export PATH="$place/environment/bin:$PATH"
ssgd --version
ssgd doctor
ssgd methods > methods.txt
ssgd train digits phases=1 lr=0.1 train_limit=100 device=cpu out="$place/runs"
