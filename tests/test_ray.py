"""Runs over a Ray cluster: one on this machine, of two cores."""

import re
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ssgd.cli.main import main
from ssgd.lab.experiments import Results, get, plan
from ssgd.lab.experiments.on_ray import check_address, train_on_ray
from ssgd.lab.experiments.running import carry_out
from ssgd.lab.train import Execution

from .tiny_experiments import made_of

ray = pytest.importorskip("ray", reason="needs ray")

DIES_ONCE = """
import os
import signal
from pathlib import Path

from ssgd.lab.models.convnets import small_cnn


def make(classes):
    try:
        Path(os.environ["DIED"]).touch(exist_ok=False)
    except FileExistsError:
        return small_cnn(classes, channels=1)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nodes")
    (folder / "dies_once.py").write_text(DIES_ONCE)
    variables = {"PYTHONPATH": str(folder), "DIED": str(folder / "died"), "OMP_NUM_THREADS": "1"}
    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": variables},
    )
    yield folder
    ray.shutdown()


def tiny(name, **changes):
    return replace(get("digits"), name=f"test/{name}", **{"phases": "1", "lr": (0.1,), "train_limit": 100, **changes})


def test_runs_are_retried_when_a_worker_dies_and_told_when_they_fail(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipes = [tiny("dies-once", model="dies_once:make"), tiny("diverges", phases="3", lr=(1e6,))]
    failures, found = over_ray(made_of(*recipes))
    assert list(failures) == ["test/diverges/seed-0"] and "lower lr" in failures["test/diverges/seed-0"]
    assert (cluster / "died").exists()
    rows = {row["experiment"]: row for row in found.rows}
    assert rows.keys() == {"test/dies-once", "test/diverges"} and "lower lr" in rows["test/diverges"]["diverged"]
    assert all((row["scale"], row["device"]) == ("paper", "cpu") for row in rows.values())


def test_a_run_goes_on_from_another_on_any_node(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipes = [tiny("goes-on", phases="1-1S", method="both"), tiny("stem")]
    failures, found = over_ray(made_of(*recipes, stem="stem"))
    assert not failures and [row["experiment"] for row in found.rows] == ["test/stem", "test/goes-on"]
    assert Path("runs/test/goes-on/seed-0/resumed.jsonl").exists()


def test_folders_are_those_of_the_command_wherever_a_worker_stands(cluster, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data/ptb").mkdir(parents=True)
    for part in ("train", "valid", "test"):
        Path(f"data/ptb/ptb.{part}.txt").write_text("a b c d\n" * 60)
    recipe = replace(get("words"), name="test/words", data="ptb", phases="1", lr=(1.0,), batch=2)
    experiment = made_of(recipe)
    failures, found = over_ray(experiment, folder="data", results="lines.jsonl")
    assert not failures and len(found.rows) == len(Path("lines.jsonl").read_text().splitlines()) == 1


def test_an_interrupt_ends_what_still_trains_in_a_cluster_that_stays(cluster, tmp_path):
    def interrupted(ended):
        raise KeyboardInterrupt

    endless = tiny("endless", phases="100000")
    with pytest.raises(KeyboardInterrupt):
        train_on_ray([tiny("short"), endless], None, Execution(out=str(tmp_path), device="cpu"), interrupted)
    before = time.monotonic()
    while ray.available_resources().get("CPU") != 2:
        assert time.monotonic() - before < 30, "it trains on"
        time.sleep(0.1)


def test_a_gpu_that_the_cluster_lacks_is_not_replaced_in_silence(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    execution = Execution(out=str(tmp_path), device="cuda")
    with pytest.raises(ValueError, match="--device cuda, but the Ray cluster has no GPU"):
        train_on_ray([tiny("one")], None, execution, print)


def over_ray(experiment, **options):
    """What went wrong, and the rows that were written."""
    execution, results = Execution(device="cpu", **options), Results("results")
    failures = carry_out(plan(experiment, "paper", results), execution, results, on="ray")
    return failures, Results("results")


def test_ray_that_is_missing_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    results = Results(tmp_path / "results")
    found = plan(made_of(tiny("one")), "paper", results, tmp_path)
    with pytest.raises(ImportError, match=r"--on ray needs Ray: pip install 'ssgd\[ray\]'"):
        carry_out(found, Execution(out=str(tmp_path), device="cpu"), results, on="ray")


def test_an_address_where_nothing_answers_is_told_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        for prefix in ("", "ray://"):
            with pytest.raises(ConnectionError, match=f"RAY_ADDRESS={prefix}{address}, where nothing answers"):
                check_address(prefix + address)
        free.listen()
        check_address(address)
    for word in ("", "auto", "local"):  # Ray's own
        check_address(word)


def test_the_best_and_the_comparison_are_those_of_one_process(cluster, tmp_path, monkeypatch, capsys):
    """Each command over the two workers, and here."""
    monkeypatch.chdir(tmp_path)
    words = ["digits", "phases=3", "lr=0.1", "train_limit=100", "device=cpu", "progress=false"]
    for command in (["tune", "--vary", "lr=0.1,0.01,0.2,0.05"], ["compare", "seeds=0,1"]):
        found = {}
        for on in ("here", "ray"):
            assert main([command[0], *words, *command[1:], f"out={on}", "--on", on]) == 0
            found[on] = re.sub(r" +\d+$", "", capsys.readouterr().out.replace(f" out={on}", ""), flags=re.MULTILINE)
        assert found["ray"] == found["here"]
