"""A run's directory: its own recipe and no other, one process at a time, strict and equal files."""

import errno
import json
import os
import platform
import shutil
import signal
import subprocess
import sys

import pytest
import torch

from ssgd.files import DiskProblem
from ssgd.lab.train.rundir import RunDir, _source, environment, find_runs

from .test_files import make_read_only, small_disk

RECIPE = {"model": "resnet20", "lr": (0.1, 0.01), "settings": {"noise": 0.2, "distribution": "sphere"}, "limit": None}
HERE = {"torch": "2.11"}


@pytest.fixture
def run(tmp_path):
    run = RunDir(tmp_path / "runs" / "one")
    assert run.open(RECIPE, HERE) == "new"
    yield run
    run.close()


def strict(text):
    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_new_then_resumed_then_finished(run):
    assert json.loads((run.path / "environment.json").read_text()) == HERE
    assert run.recipe() == {**RECIPE, "lr": [0.1, 0.01]} and run.result() is None
    for machine in ("another", "a third"):
        run.close()
        run = RunDir(run.path)
        assert run.open(RECIPE, {"machine": machine}) == "resume"
    assert [row["machine"] for row in map(json.loads, (run.path / "resumed.jsonl").open())] == ["another", "a third"]
    run.write_result({"accuracy": 67.5})
    run.close()
    later = RunDir(run.path)
    assert later.open(RECIPE, HERE) == "finished" and later.result() == {"accuracy": 67.5}
    assert json.loads((run.path / "environment.json").read_text()) == HERE


def test_a_recipe_that_never_came_to_anything_can_be_corrected(run):
    run.rewrite_metrics([])
    run.close()
    again = RunDir(run.path)
    assert again.open({**RECIPE, "batch": 64}, HERE) == "new"
    assert again.recipe()["batch"] == 64


def test_another_recipe_is_refused_field_by_field(run):
    run.add_metrics({"epoch": 1})
    run.close()
    before = (run.path / "recipe.json").read_bytes()
    asked = {**RECIPE, "lr": [0.2], "settings": {"noise": 0.2, "distribution": "sign"}, "batch": 64}
    with pytest.raises(ValueError, match="holds a run of another recipe") as caught:
        RunDir(run.path).open(asked, HERE)
    assert str(caught.value).splitlines()[1:] == [
        "  lr: here [0.1, 0.01], asked [0.2]",
        '  settings.distribution: here "sphere", asked "sign"',
        "  batch: here null, asked 64",
        "choose another --out, or delete the folder to start again",
    ]
    assert (run.path / "recipe.json").read_bytes() == before


def test_equal_recipes_in_other_types_are_equal(tmp_path):
    RunDir(tmp_path).open({"lr": (1, 2), "level": float("nan"), "settings": {}}, HERE)
    assert RunDir(tmp_path).open({"settings": {}, "lr": [1.0, 2.0], "level": float("nan")}, HERE) == "resume"


@pytest.mark.parametrize("other", ["imgs/", "./imgs", "~/imgs"])
def test_a_folder_is_the_same_however_it_is_written(tmp_path, monkeypatch, other):
    monkeypatch.setenv("HOME", "/home/me")
    here = "/home/me/imgs" if other.startswith("~") else "imgs"
    run = RunDir(tmp_path)
    run.open({"data": here}, HERE)
    run.add_metrics({"epoch": 1})
    assert RunDir(tmp_path)._state({"data": other}) == "resume"
    with pytest.raises(ValueError, match=rf'data: here "{here}", asked "others/"'):
        RunDir(tmp_path)._state({"data": "others/"})


def test_results_without_a_recipe_are_not_adopted(run):
    run.add_metrics({"epoch": 1})
    run.close()
    (run.path / "recipe.json").unlink()
    with pytest.raises(ValueError, match=r"holds metrics\.jsonl but no recipe\.json.*choose another --out"):
        RunDir(run.path).open(RECIPE, HERE)


def test_a_file_that_was_edited_wrongly_is_named(run):
    (run.path / "recipe.json").write_text("{")
    with pytest.raises(ValueError, match=r"recipe\.json is not JSON"):
        run.recipe()


def test_a_folder_of_another_format_is_refused(tmp_path):
    run = RunDir(tmp_path)
    run.open(RECIPE, {})
    run.close()
    for other in ({"format": 1}, {}):
        (tmp_path / "recipe.json").write_text(json.dumps({**RECIPE, **other}))
        with pytest.raises(ValueError, match=r"run's folder of format (1|None), and this ssgd reads format 2: use the"):
            run.open(RECIPE, {})


@pytest.mark.parametrize("content", ["[]", "{}", '"x"', "null"])
@pytest.mark.parametrize("what", ["recipe", "result"])
def test_json_that_says_nothing_is_refused(run, what, content):
    (run.path / f"{what}.json").write_text(content)
    with pytest.raises(ValueError, match=rf"{what}\.json is no {what}: repair it, or delete the run's folder"):
        getattr(run, what)()


def test_a_timing_without_seconds_counts_none(run):
    run.add_timing({"epoch": 1})
    assert run.timings() == [{"epoch": 1, "seconds": 0.0}]
    (run.path / "timings.jsonl").write_text("3\n")
    with pytest.raises(ValueError, match=r"line 1 of .*timings\.jsonl is no row: repair it"):
        run.timings()


def test_metrics_come_back_exactly_and_are_strict_json(run):
    rows = [
        {"z": 0.1 + 0.2, "a": 1e-300, "epoch": 1, "method": "S-SGD ±n"},
        {"loss": float("nan"), "more": [float("inf"), -float("inf")]},
    ]
    for row in rows:
        run.add_metrics(row)
    text = (run.path / "metrics.jsonl").read_text(encoding="utf-8")
    assert text.splitlines()[0] == '{"z": 0.30000000000000004, "a": 1e-300, "epoch": 1, "method": "S-SGD ±n"}'
    assert [strict(line) for line in text.splitlines()][1] == {"loss": "nan", "more": ["inf", "-inf"]}
    assert str(run.metrics()) == str(rows)
    run.rewrite_metrics(run.metrics())
    assert (run.path / "metrics.jsonl").read_text(encoding="utf-8") == text
    run.rewrite_metrics(rows[:1])
    assert run.metrics() == rows[:1]


def test_what_json_cannot_hold_leaves_the_file_alone(run):
    run.add_metrics({"epoch": 1})
    with pytest.raises(TypeError, match="Tensor is not JSON"):
        run.add_metrics({"loss": torch.ones(1)})
    assert run.metrics() == [{"epoch": 1}]


@pytest.mark.parametrize("kind", ["metric", "timing"])
def test_a_cut_line_is_ignored_and_not_continued(run, kind):
    add, read = (run.add_metrics, run.metrics) if kind == "metric" else (run.add_timing, run.timings)
    file = run.path / f"{kind}s.jsonl"
    assert read() == []
    add({"seconds": 1})
    add({"seconds": 23})
    whole = file.read_bytes()
    for length in range(len(b'{"seconds": 1}\n'), len(whole)):
        file.write_bytes(whole[:length])
        assert read() == [{"seconds": 1}]
    run.close()
    RunDir(run.path).open(RECIPE, HERE)
    add({"seconds": 4})
    assert read() == [{"seconds": 1}, {"seconds": 4}]


def test_a_damaged_line_in_the_middle_is_named(run):
    (run.path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epo\n{"epoch": 3}\n')
    with pytest.raises(ValueError, match=r"line 2 of .*metrics\.jsonl is not JSON"):
        run.metrics()


def test_checkpoints_lie_inside(run):
    run.checkpoints.save(3, {"model": {}})
    assert (run.path / "checkpoints" / "step-00000003.pt").exists()
    assert RunDir(run.path).checkpoints.load() == (3, {"model": {}})


def test_drafts_of_a_killed_process_are_removed(run):
    run.close()
    (run.path / ".result.json.1234abcd.tmp").touch()
    RunDir(run.path).open(RECIPE, HERE)
    assert not list(run.path.glob(".*"))


TRAINING = """
import os, sys, time
from ssgd.lab.train.rundir import RunDir
run = RunDir(sys.argv[1])
run.open({"lr": 1}, {})
worker = os.fork()
if worker:
    print(worker, flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and flock")
def test_one_process_at_a_time_until_its_death(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", TRAINING, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    worker = int(other.stdout.readline())
    try:
        with pytest.raises(ValueError, match=r"another process trains in .*: wait for it, or choose another --out"):
            RunDir(tmp_path).open({"lr": 1}, {})
        other.kill()
        other.wait()
        assert RunDir(tmp_path).open({"lr": 1}, {}) == "resume"  # though the worker still lives
    finally:
        os.kill(worker, signal.SIGKILL)
        other.kill()
        other.stdout.close()
        other.wait()


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_the_lock_is_let_go_by_close_and_with_the_object(run):
    with pytest.raises(ValueError, match="another process trains"):
        RunDir(run.path).open(RECIPE, HERE)
    run.close()
    second = RunDir(run.path)
    assert second.open(RECIPE, HERE) == "resume"
    del second
    assert RunDir(run.path).open(RECIPE, HERE) == "resume"


def test_finished_by_another_while_waiting_for_the_lock(tmp_path):
    class Late(RunDir):
        def _lock(self):
            rival = RunDir(self.path)
            rival.open(RECIPE, HERE)
            rival.write_result({"accuracy": 1.0})
            rival.close()
            super()._lock()

    late = Late(tmp_path)
    assert late.open(RECIPE, HERE) == "finished"
    RunDir(tmp_path)._lock()  # it is free again


@pytest.mark.skipif(sys.platform == "win32", reason="needs flock")
def test_a_disk_without_locks_is_no_obstacle(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(errno.ENOSYS, "no locks here")

    monkeypatch.setattr("fcntl.flock", unsupported)
    assert RunDir(tmp_path).open(RECIPE, HERE) == "new"


def test_read_only_disks(tmp_path):
    with small_disk(tmp_path / "disk") as disk:
        run = RunDir(disk / "finished")
        run.open(RECIPE, HERE)
        run.write_result({"accuracy": 1.0})
        run.close()
        make_read_only(disk)
        assert RunDir(disk / "finished").open(RECIPE, HERE) == "finished"
        with pytest.raises(DiskProblem, match="new cannot be written because its disk is read-only"):
            RunDir(disk / "new").open(RECIPE, HERE)


def test_runs_are_found_below_a_folder(tmp_path):
    for name in ("b", "a/deep", "a"):
        RunDir(tmp_path / name).open(RECIPE, HERE)
    (tmp_path / "c").mkdir()
    assert [run.path for run in find_runs(tmp_path)] == [tmp_path / "a", tmp_path / "a/deep", tmp_path / "b"]
    assert find_runs(tmp_path / "c") == []


def test_the_environment_says_what_ran_where_but_not_on_whose_host():
    found = environment()
    assert " ".join(found) == ("command python torch numpy ssgd commit dirty platform cpus threads devices cuda cudnn")
    assert found["torch"] == torch.__version__ and found["threads"] == torch.get_num_threads()
    assert found["command"] == sys.orig_argv and platform.node() not in found["platform"].split()
    assert (found["cuda"] is None) == (found["devices"] == []) == (not torch.cuda.is_available())
    assert strict(json.dumps(found)) == found


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_the_packages_own(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=n", "-c", "user.email=e", "-c", "tag.gpgsign=false", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", "-C", str(tmp_path), *identity, *arguments], check=True, capture_output=True)
        return done.stdout.decode().strip()

    package, installed = tmp_path / "src", tmp_path / "venv"
    for folder in (package, installed):
        folder.mkdir()
        (folder / "__init__.py").write_text("")
    nowhere = {"commit": None, "dirty": None}
    assert _source(package) == nowhere
    git("init", "-q")
    git("add", "src")
    git("commit", "-q", "-m", "one")
    git("tag", "-a", "v1", "-m", "v1")
    commit = git("rev-parse", "HEAD")
    assert _source(package) == {"commit": commit, "dirty": False}
    assert _source(installed) == nowhere
    (package / "__init__.py").write_text("x = 1")
    assert _source(package) == {"commit": commit, "dirty": True}
