#!/usr/bin/env bash
# Run the tests of the core under another torch: scripts/try_torch.sh VERSION [TESTS …]
#
# VERSION is 2.6.0, say, or newest, or nightly.
# The environment is made in build/torch-VERSION and removed at the end; KEEP=1 leaves it there for the next call.
# PYTHON names the interpreter. On Linux PyPI's torch brings CUDA's libraries along, several GB of them.
set -euo pipefail
cd "$(dirname "$0")/.."

version=${1:?"usage: scripts/try_torch.sh VERSION [TESTS …]"}
shift
core=(noise battery misuse gradients checkpoint batchnorm closed_forms)
tests=("$@")
if [[ $# == 0 ]]; then
    tests=("${core[@]/#/tests/test_}")
    tests=("${tests[@]/%/.py}")
fi

environment=build/torch-$version
python=$environment/bin/python
if [[ ! -x $python ]]; then
    "${PYTHON:-python3}" -m venv "$environment"
fi
if [[ -z "${KEEP:-}" ]]; then
    trap 'rm -rf "$environment"' EXIT
fi
install() { "$python" -m pip install -q --no-cache-dir --disable-pip-version-check "$@"; }
case $version in
    newest) install torch ;;
    nightly) install --pre torch --index-url https://download.pytorch.org/whl/nightly/cpu ;;
    *) install "torch==$version" ;;
esac
install numpy pillow tqdm pytest hypothesis

export PYTHONPATH="$PWD/src" OMP_NUM_THREADS=1
"$python" -c 'import platform, torch, ssgd; print(f"torch {torch.__version__}, Python {platform.python_version()}")'
"$python" -m pytest -q -p no:cacheprovider "${tests[@]}"
