"""What is shipped: the wheel, installed where there is nothing but torch and numpy, and the source archive."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path
from statistics import median

import pytest
import torch

pytest.importorskip("hatchling", reason="building needs hatchling")

ROOT = Path(__file__).parent.parent
DATA = [
    "ssgd/py.typed",
    "ssgd/lab/data/digits.npz",
    "ssgd/lab/data/digits.LICENSE.txt",
    "ssgd/lab/experiments/targets.json",
    "ssgd/lab/report/page.html",
    "ssgd/lab/report/page.css",
    "ssgd/lab/report/page.js",
]


def run(*command, **options):
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}  # the wheel, not a checkout
    words = [str(word) for word in command]
    found = subprocess.run(words, capture_output=True, text=True, env=environment, **options)
    assert found.returncode == 0, found.stdout + found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def empty(wheel, tmp_path_factory):
    """The Python of an environment of its own with the wheel in it; torch and the rest are lent by ours."""
    folder = tmp_path_factory.mktemp("empty")
    run(sys.executable, "-m", "venv", "--without-pip", folder)
    places = {"base": str(folder), "platbase": str(folder)}
    python = Path(sysconfig.get_path("scripts", "venv", places)) / Path(sys.executable).name
    run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel)
    lent = sysconfig.get_path("purelib")
    (Path(sysconfig.get_path("purelib", "venv", places)) / "lent.pth").write_text(lent + "\n")
    return python


def test_package_data_and_every_module_are_in_the_wheel(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    modules = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src").rglob("*.py")}
    assert names >= modules | set(DATA)
    assert all(name.startswith(("ssgd/", "ssgd-")) for name in names)


def test_the_source_archive_has_what_a_change_needs(built):
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    assert names >= {"examples/README.md", "docs/index.md", "mkdocs.yml", "Makefile", "README.md", "LICENSE"}
    assert names >= {"tests/test_packaging.py", "scripts/docs_hooks.py", "src/ssgd/lab/data/digits.npz"}
    assert names >= {"results/baseline.jsonl", ".ci/run"}


def test_it_runs_from_an_empty_environment(empty, tmp_path):
    code = "import ssgd; from ssgd.lab.data import digits; print(ssgd.__file__); digits(10, 0)"
    assert Path(run(empty, "-c", code, cwd=tmp_path).strip()).is_relative_to(empty.parent.parent)
    assert re.match(r"ssgd \d+\.\d+", run(empty.parent / "ssgd", "--version", cwd=tmp_path))


def test_its_requirements_are_met(empty, tmp_path):
    """By what is installed here: pip check names every package, and ours must not be among them."""
    check = [sys.executable, "-m", "pip", "--python", empty, "check"]
    found = subprocess.run([str(word) for word in check], capture_output=True, text=True, cwd=tmp_path)
    assert not re.findall(r"^ssgd .*$", found.stdout, re.MULTILINE)


def test_import_takes_less_than_a_second_more_than_torch(empty, tmp_path):
    """The processor's time, for the machine may have other things to do."""
    code = "import time, torch; start = time.process_time(); import ssgd; print(time.process_time() - start)"
    assert median(float(run(empty, "-c", code, cwd=tmp_path)) for _ in range(3)) < 1


def test_import_loads_no_more_than_the_optimizer_needs(empty, tmp_path):
    code = "import sys, torch; before = {*sys.modules}; import ssgd; print(*{*sys.modules} - before)"
    loaded = run(empty, "-c", code, cwd=tmp_path).split()
    parts = {name.split(".")[1] for name in loaded if name.startswith("ssgd.")}
    assert parts == {"core", "optimizer", "schedules"}
    assert not {"tqdm", "matplotlib", "lightning", "transformers", "jax", "ray", "scipy"} & set(loaded)


@pytest.mark.parametrize(("pinned", "said"), [(None, ""), ("2.1.0", "constraints.txt pins torch 2.1.0, but")])
def test_another_torch_than_the_pinned_one_is_noticed(pinned, said, tmp_path):
    (tmp_path / "scripts").mkdir()
    script = shutil.copy(ROOT / "scripts" / "check_torch.py", tmp_path / "scripts")
    pinned = pinned or torch.__version__.partition("+")[0]
    (tmp_path / "constraints.txt").write_text(f"numpy==2.0.0\ntorch=={pinned}\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == bool(said) and done.stderr.startswith(said)
