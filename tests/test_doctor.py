"""ssgd doctor: a line for everything, a remedy for what is missing, and an exit status that says whether it trains."""

import json
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from ssgd.cli import doctor
from ssgd.cli.main import main
from ssgd.lab.data import NAMES

ROOT = Path(__file__).parent.parent
NEEDS = [
    "torch>=2.6",
    "scipy; extra == 'analysis'",
    "no-such-thing; extra == 'analysis'",
    "ssgd[analysis]; extra == 'demo'",
    'numpy>=1; (python_version > "3") and extra == "images"',
]


@pytest.fixture
def looked(capsys, monkeypatch, tmp_path):
    """What is found, by name, and the exit status, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SSGD_DATA", str(tmp_path / "data"))

    def look():
        status = main(["doctor", "--json"])
        found = json.loads(capsys.readouterr().out)
        assert status == (0 if found["can_train"] else 1)
        return {finding["name"]: finding for finding in found["findings"]}, status

    return look


def test_text_has_a_line_for_everything_and_no_noise(tmp_path):
    run = [sys.executable, "-m", "ssgd", "doctor"]
    found = subprocess.run(run, capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 0 and found.stderr == ""
    lines = found.stdout.splitlines()
    assert [line for line in lines if line.endswith(":")] == ["machine:", "extras:", "data:", "folders:"]
    assert all(re.match(r"  [✓–] \S|      → \S|\w+:$|$|This machine can train: ", line) for line in lines)
    assert f"  ✓ torch: {torch.__version__}, " in found.stdout and "  ✓ a step of S-SGD on cpu: done" in found.stdout
    assert not list(tmp_path.iterdir())


def test_every_data_set_is_looked_for(looked, tmp_path):
    for folder in ("cifar-100-python", "fsdd", "flowers/train", "mnist"):
        (tmp_path / "data" / folder).mkdir(parents=True)
    for file in ("cifar-100-python/train", "fsdd/file"):
        (tmp_path / "data" / file).touch()
    found, _ = looked()
    here = {name for name in NAMES if name not in doctor.INSIDE and found[name]["there"]}
    assert here == {"cifar100", "fsdd", "connected-digits"}  # mnist's folder is empty
    assert "downloaded when first used" in found["cifar10"]["remedy"] and "bring its files" in found["wsj"]["remedy"]
    assert found["folders with train/"]["found"] == "flowers"


def test_a_closed_data_folder_is_an_empty_one(looked, monkeypatch, tmp_path):
    def closed(path):
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "data" / "mnist").mkdir(parents=True)
    monkeypatch.setattr(doctor.os, "listdir", closed)
    monkeypatch.setattr(Path, "iterdir", closed)
    found, _ = looked()
    assert not found["mnist"]["there"] and not found["folders with train/"]["there"]


def test_extras_come_from_what_is_installed(looked, monkeypatch):
    monkeypatch.setattr(metadata, "requires", lambda package: NEEDS)
    monkeypatch.setattr(metadata, "version", lambda package: {"scipy": "1.0", "numpy": "2.0"}[package])
    monkeypatch.setattr(metadata, "PackageNotFoundError", KeyError)
    found, status = looked()
    assert status == 0
    for extra in ("analysis", "demo"):
        assert not found[extra]["there"] and found[extra]["found"] == "scipy 1.0, no no-such-thing"
        assert found[extra]["remedy"].endswith(f"pip install 'ssgd[{extra}]'")
    assert found["images"]["there"] and found["images"]["found"] == "numpy 2.0" and not found["images"]["remedy"]
    assert "older" in found["jax"]["found"] and not found["jax"]["there"]


def test_every_extra_for_users_is_told_of():
    section = (
        (ROOT / "pyproject.toml").read_text().partition("[project.optional-dependencies]\n")[2].partition("\n[")[0]
    )
    listed = re.findall(r"^(\w+) = ", section, re.MULTILINE)
    assert set(doctor.EXTRAS) == set(listed) - {"test", "bench", "bases", "lint", "docs", "dev"}


@pytest.mark.parametrize("cuda", [None, "13.0"])
def test_a_driver_that_torch_does_not_use_is_explained(cuda, looked, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: None)
    found, _ = looked()
    assert found["GPU"]["remedy"] == "" and not found["GPU"]["there"]
    assert "a C++ compiler" in found["torch.compile"]["remedy"]
    monkeypatch.setattr(doctor.shutil, "which", lambda name: f"/usr/bin/{name}")
    found, status = looked()
    assert ("CUDA_VISIBLE_DEVICES" if cuda else "built without CUDA") in found["GPU"]["remedy"] and status == 0


def test_where_nothing_can_train_the_status_says_so(looked, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "_step", lambda device: "no kernel image is available")
    found, status = looked()
    assert status == 1 and found["a step of S-SGD on cpu"]["found"] == "no kernel image is available"
    assert main(["doctor"]) == 1
    assert "This machine cannot train yet: see the lines with → above." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("place", "change"),
    [
        ("torch", lambda patch: patch.setattr(torch, "__version__", "2.5.1")),
        ("results", lambda patch: patch.setattr(doctor.os, "access", lambda *_: False)),
    ],
)
def test_an_old_torch_and_a_folder_that_is_closed_are_told(place, change, looked, monkeypatch):
    change(monkeypatch)
    found, status = looked()
    assert status == 1 and not found[place]["there"] and found[place]["remedy"]


@pytest.mark.parametrize("place", ["data", "data/deeper", "runs"])
def test_a_file_or_a_link_to_nowhere_is_no_folder(place, looked, monkeypatch, tmp_path):
    monkeypatch.setenv("SSGD_DATA", str(tmp_path / ("data" if place == "runs" else place)))
    in_the_way, name = tmp_path / place.split("/")[0], "results" if place == "runs" else "downloads"
    for make in (in_the_way.touch, lambda: in_the_way.symlink_to("nowhere")):
        make()
        found, status = looked()
        assert not found[name]["there"] and found[name]["remedy"] and status == (place == "runs")
        assert found[name]["found"].endswith(f", but {in_the_way} is not a folder")
        in_the_way.unlink()


def test_a_step_that_fails_is_told_in_a_line():
    assert doctor._step(torch.device("cpu")) == ""
    assert "meta" in doctor._step(torch.device("meta")).lower()
