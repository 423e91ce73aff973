"""What older versions of torch lack is done without or refused in a sentence; the oldest is the same everywhere."""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ssgd import SSGD
from ssgd.analysis.acceleration import precision_settings
from ssgd.lab.compilation import compiled_for
from ssgd.lab.experiments import get
from ssgd.lab.train.distributed import Ranks, check
from ssgd.lab.train.recipe import Execution
from ssgd.lab.versions import FSDP2, OLDEST, at_least, inductor_has, need

ROOT = Path(__file__).parent.parent
RECORDED = [1.6153, -0.4375, -0.3234, 1.4463, 0.9186, -0.3989, 0.684, -0.4409, -0.2356, -0.8846, 0.9151, -1.9137]


@pytest.mark.parametrize(
    ("installed", "there"),
    [("2.5.1", False), ("2.6.0", True), ("2.6.0a0+git1", True), ("2.10.0+cpu", True), ("3.0.0.dev20270101", True)],
)
def test_versions_are_compared_as_numbers(installed, there, monkeypatch):
    monkeypatch.setattr(torch, "__version__", installed)
    assert at_least((2, 6)) == there


def test_what_is_missing_is_refused_in_a_sentence(monkeypatch):
    need(OLDEST, "this")
    monkeypatch.setattr(torch, "__version__", "2.8.0")
    with pytest.raises(ImportError, match=r"this needs torch 2\.9 or newer, and this is 2\.8\.0: pip install -U torch"):
        need(FSDP2, "this")


def test_training_with_sharded_weights_asks_for_a_torch_that_shards(monkeypatch):
    recipe = replace(get("digits"), parallel="fsdp")
    monkeypatch.setattr(torch, "__version__", "2.9.0")
    check(recipe, Execution(device="cpu"), Ranks(0, 2))
    monkeypatch.setattr(torch, "__version__", "2.6.0")
    with pytest.raises(ImportError, match=r"parallel=fsdp needs torch 2\.9"):
        check(recipe, Execution(device="cpu"), Ranks(0, 2))


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def test_a_compiler_without_a_deterministic_mode_is_refused(deterministic, monkeypatch):
    monkeypatch.setattr(torch._inductor, "list_options", list)
    with pytest.raises(ImportError, match=r"no deterministic mode, which 2\.11 has: leave out deterministic=true"):
        compiled_for(torch.device("cpu"), torch.sin)


def test_an_option_that_only_saves_time_is_left_out(monkeypatch):
    given = []
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch, "compile", lambda function, options, **_: given.append(options))
    for known in (["triton.enable_pdl"], []):
        monkeypatch.setattr(torch._inductor, "list_options", lambda known=known: known)
        compiled_for(torch.device("cuda"), torch.sin)
    assert given == [{"triton.enable_pdl": True}, {}]


def test_options_of_the_compiler_are_asked_for():
    assert inductor_has("max_autotune") and not inductor_has("no_such_option")


def test_precision_is_set_where_there_are_only_the_older_settings():
    """As before torch 2.9; in a process of its own, since torch refuses the older settings once the newer were used."""
    code = """
import torch
from ssgd.analysis import acceleration

acceleration.precision_settings = tuple
before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
for tf32, matmul in ((True, "high"), (False, "highest")):
    with acceleration.full_precision(tf32):
        assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == (matmul, tf32)
assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_places_with_a_precision_of_their_own():
    assert len(precision_settings()) == (3 if at_least((2, 9)) else 0)


def test_the_stream_of_noise_is_that_of_0_1():
    """What a seed gives at a step on the CPU: a change of these numbers is one that the changelog must tell."""
    weight = torch.nn.Parameter(torch.ones(2, 3))
    opt = SSGD(torch.optim.SGD([weight], lr=0.1), noise=0.1, seed=1)
    found = []
    for _ in range(2):
        moved, _ = at(opt, weight)
        found += ((moved - 1) * 10).flatten().tolist()
        opt.zero_grad()
    assert found == pytest.approx(RECORDED, abs=1e-4)


def at(opt, weight):
    """The weight at each point."""
    for point in opt.points():
        with point:
            yield weight.detach().clone()


def test_the_oldest_torch_and_python_are_the_same_everywhere():
    oldest = ".".join(map(str, OLDEST))
    project = (ROOT / "pyproject.toml").read_text()
    assert f'"torch>={oldest}"' in project
    (python,) = re.findall(r'requires-python = ">=([\d.]+)"', project)
    for page in ("README.md", "docs/index.md"):
        assert f"torch {oldest} or newer" in (ROOT / page).read_text(), page
    page = (ROOT / "docs" / "versions.md").read_text()
    assert f"Python {python} or newer, torch {oldest} or newer" in page
    assert re.search(rf"^\| {oldest}\.\d \| {python} \| \d+ \| 0 \|$", page, re.MULTILINE)
