"""Runs that are killed, stopped, damaged or starved of disk end as one that was never cut, or say why they cannot."""

import hashlib
import io
import multiprocessing
import os
import pickle
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from ssgd.cli.main import main as ssgd
from ssgd.lab.data import cifar
from ssgd.lab.train import Execution, RunDir, train
from ssgd.lab.train.engine import TIME_IS_UP, Stopped
from ssgd.lab.train.running import Run
from ssgd.methods import METHODS

from .small_trainings import of, run_of, small
from .test_files import make_read_only, small_disk

NOISY = ["digits", "phases=7S-7(split:0.3)", "method=both:0.3", "train_limit=500"]  # an epoch has 10 steps
DROPPED = ["digits", "phases=4-3", "method=dropout:0.3", "train_limit=500"]
QUIET = ["name=digits", "device=cpu", "progress=false"]

unix = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and Unix signals")


def command(arguments, last_write=None):
    """``ssgd train`` on one thread; it dies, if asked to, before its so many-th write is safe."""
    writes, fsync = 0, os.fsync

    def count(descriptor):
        nonlocal writes
        writes += 1
        if writes == last_write:
            os._exit(9)
        fsync(descriptor)

    os.fsync = count
    torch.set_num_threads(1)
    sys.exit(ssgd(["train", *arguments]))


@pytest.fixture(scope="module")
def start():
    """Starts a ``command`` in a process of its own; torch is imported once for all of them."""
    context = multiprocessing.get_context("forkserver")  # not fork: torch's threads would not survive it
    context.set_forkserver_preload(["ssgd.cli.train", "ssgd.lab.experiments", "torch._inductor"])

    def begin(arguments, out, *more):
        process = context.Process(target=command, args=([*arguments, *QUIET, f"out={out}"], *more), daemon=True)
        process.start()
        return process

    first = context.Process(target=os.getpid)  # waits for the imports
    first.start()
    first.join()
    return begin


@pytest.fixture(scope="module")
def noisy(tmp_path_factory, start):
    """The outcome of NOISY in one go."""
    out = tmp_path_factory.mktemp("noisy")
    assert finished(start(NOISY, out)) == 0
    return outcome(out)


def finished(process):
    process.join(60)
    return process.exitcode


def outcome(out):
    """What two equal runs have equal, as bytes."""
    (place,) = out.glob("**/seed-0")
    result = {key: value for key, value in RunDir(place).result().items() if key not in ("seconds", "commit")}
    return (place / "weights.safetensors").read_bytes(), (place / "metrics.jsonl").read_bytes(), result


# --- killed -----------------------------------------------------------------------------------------------------------


@unix
@pytest.mark.parametrize(("arguments", "kills"), [(NOISY, 20), (DROPPED, 6)], ids=["noise", "dropout"])
def test_a_run_killed_at_random_moments_ends_as_one_never_killed(tmp_path, start, arguments, kills):
    every_step = [*arguments, "checkpoint_seconds=0"]
    began = time.monotonic()
    assert finished(start(every_step, tmp_path / "whole")) == 0
    step = (time.monotonic() - began) / newest(tmp_path / "whole")
    numbers = random.Random(kills)
    for _ in range(kills):
        process = start(every_step, tmp_path / "cut")
        goal = newest(tmp_path / "cut") + numbers.randrange(6)
        while newest(tmp_path / "cut") < goal:
            assert process.is_alive()
            time.sleep(step / 5)
        time.sleep(numbers.uniform(0, 2 * step))
        process.kill()
        assert finished(process) == -signal.SIGKILL
    assert finished(start(arguments, tmp_path / "cut")) == 0
    assert outcome(tmp_path / "cut") == outcome(tmp_path / "whole")


def newest(out):
    """The step of the last checkpoint."""
    found = (out / "digits" / "seed-0" / "checkpoints").glob("step-*.pt")
    return max((int(path.stem.partition("-")[2]) for path in found), default=0)


@unix
def test_a_run_that_dies_at_any_of_its_writes_ends_as_one_that_did_not(tmp_path, start):
    arguments = ["digits", "phases=1", "lr=0.1", "method=both", "train_limit=100"]
    assert finished(start(arguments, tmp_path / "whole")) == 0
    writes = 0
    while True:
        writes += 1
        out = tmp_path / str(writes)
        status = finished(start(arguments, out, writes))
        if status == 0:
            break
        assert status == 9 and finished(start(arguments, out)) == 0
        assert outcome(out) == outcome(tmp_path / "whole")
    assert writes > 12  # environment, recipe, metrics, timings, checkpoint, weights, result: files and their folders


def cut(recipe, execution, at, monkeypatch):
    """Trains up to step ``at``, where the process dies."""

    class Dies(BaseException):
        pass

    def step(run):
        if run.position == at:
            raise Dies
        whole(run)

    whole = Run.step
    with monkeypatch.context() as patched, pytest.raises(Dies):
        patched.setattr(Run, "step", step)
        train(recipe, execution)


@pytest.fixture
def often(tmp_path):
    """A checkpoint after every step."""
    return Execution(out=str(tmp_path / "cut"), device="cpu", progress=False, checkpoint_seconds=0)


@pytest.fixture
def never_cut(tmp_path):
    """The outcome of a run in one go."""

    def outcome_of(recipe):
        train(recipe, Execution(out=str(tmp_path / "whole"), device="cpu", progress=False))
        return outcome(tmp_path / "whole")

    return outcome_of


def gathered(run):
    """A run's state as a checkpoint brings it back."""
    file = io.BytesIO()
    torch.save(run.state(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "mirror"])
def test_every_method_goes_on_from_any_step(method):
    recipe = of(method)
    run, states = run_of(recipe), []
    while not run.done:
        run.step()
        if run.epoch_is_over:
            run.finish_epoch()
        states.append(gathered(run))
    for state in states[:3]:  # 2 steps are an epoch
        again = run_of(recipe)
        again.load(state)
        while not again.done:
            again.step()
            if again.epoch_is_over:
                again.finish_epoch()
        assert again.history == run.history
        expected = run.weights()
        assert all(torch.equal(tensor, expected[name]) for name, tensor in again.weights().items())


@pytest.mark.parametrize("seconds", [0, 1000], ids=["from there", "from the start"])
@pytest.mark.parametrize("at", [1, 4, 5, 8, 10])
def test_phases_go_on_where_they_were_cut(often, never_cut, tmp_path, at, seconds, monkeypatch):
    """4 steps are an epoch: within a phase, and at the first step of the next."""
    recipe = small(phases="1-1S-1S-1(split:0.2)", lr=(0.1, 0.1, 0.05, 0.02), method="both", level=0.3)
    cut(recipe, replace(often, checkpoint_seconds=seconds), at, monkeypatch)
    train(recipe, often)
    assert outcome(tmp_path / "cut") == never_cut(recipe)


def dropped(classes):
    """Dropout comes before batch-norm, whose recomputed statistics so depend on random numbers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.Dropout(0.5), nn.BatchNorm1d(16), nn.Linear(16, classes))


@pytest.mark.parametrize(
    "changes", [{}, {"method": "swa"}, {"model": "tests.test_resume:dropped", "recompute_bn": True}]
)
def test_only_the_result_was_missing(often, never_cut, tmp_path, changes):
    recipe = small(**changes)
    whole = never_cut(recipe)
    train(recipe, often)
    place = often.run_folder(recipe, 0)
    (place / "result.json").unlink()
    (place / "weights.safetensors").unlink()
    torch.rand(1)
    train(recipe, often)
    assert outcome(tmp_path / "cut") == whole


def test_seconds_are_those_of_all_stretches(often, monkeypatch):
    """On this clock each of twelve steps takes a second, and none is lost: there is a checkpoint after each."""
    now, whole = 0.0, Run.step

    def step(run):
        nonlocal now
        now += 1
        whole(run)

    monkeypatch.setattr("time.monotonic", lambda: now)
    monkeypatch.setattr(Run, "step", step)
    for at in (2, 5):  # the first stretch ends no epoch
        cut(small(phases="3"), often, at, monkeypatch)
    assert train(small(phases="3"), often)[0]["seconds"] == 12


# --- damaged ----------------------------------------------------------------------------------------------------------


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(often, never_cut, tmp_path, monkeypatch):
    recipe = small(method="both")
    cut(recipe, often, 6, monkeypatch)
    before, newest = sorted(tmp_path.glob("cut/**/step-*.pt"))
    assert (before.name, newest.name) == ("step-00000005.pt", "step-00000006.pt")
    newest.write_bytes(newest.read_bytes()[:-1000])
    with pytest.warns(UserWarning, match=r"step-00000006\.pt is damaged or cut short"):
        train(recipe, often)
    assert outcome(tmp_path / "cut") == never_cut(recipe)


def test_with_every_checkpoint_damaged_the_run_says_so(often, tmp_path, monkeypatch):
    cut(small(), often, 6, monkeypatch)
    for file in tmp_path.glob("cut/**/step-*.pt"):
        file.write_bytes(b"")
    with pytest.warns(UserWarning), pytest.raises(ValueError, match=r"none of the 2 checkpoints in .* is whole"):
        train(small(), often)


# --- stopped ----------------------------------------------------------------------------------------------------------


def wait_for_an_epoch(out, alive):
    metrics = out / "digits" / "seed-0" / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):
        assert alive()
        time.sleep(0.005)


@unix
def test_ctrl_c_ends_with_a_checkpoint_and_the_command_that_goes_on(tmp_path, start, noisy):
    words = [sys.executable, "-m", "ssgd", "train", *NOISY, *QUIET, f"out={tmp_path}"]
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=one_thread)
    wait_for_an_epoch(tmp_path, lambda: process.poll() is None)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in said
    sentence, _, again = said.splitlines()[-1].partition(" The same command goes on: ")
    assert sentence == "stopped by SIGINT; all is saved." and shlex.split(again) == words
    assert newest(tmp_path) > 10 and not list(tmp_path.glob("**/result.json"))
    assert finished(start(NOISY, tmp_path)) == 0
    assert outcome(tmp_path) == noisy


@unix
def test_sigterm_ends_with_a_checkpoint_too(tmp_path, start, noisy):
    process = start(NOISY, tmp_path)
    wait_for_an_epoch(tmp_path, process.is_alive)
    process.terminate()
    assert finished(process) == 143
    assert newest(tmp_path) > 10 and not list(tmp_path.glob("**/result.json"))
    assert finished(start(NOISY, tmp_path)) == 0
    assert outcome(tmp_path) == noisy


def signalled(at, times, monkeypatch):
    whole = Run.step

    def step(run):
        if run.position == at:
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)
        whole(run)

    monkeypatch.setattr(Run, "step", step)


@unix
def test_what_waits_is_not_begun_after_a_signal(often, tmp_path, monkeypatch):
    recipe = small(seeds=(0, 1))
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as patched:
        signalled(2, 1, patched)
        with pytest.raises(Stopped, match="stopped by SIGINT"):
            train(recipe, replace(often, checkpoint_seconds=1000))
    assert len(list(tmp_path.glob("cut/**/step-*.pt"))) == 1
    assert not often.run_folder(recipe, 1).exists() and signal.getsignal(signal.SIGINT) is before
    assert len(train(recipe, often)) == 2


def test_a_run_stops_when_its_time_is_up_and_goes_on(tmp_path, monkeypatch, noisy, capsys):
    words = [*NOISY, *QUIET, f"out={tmp_path}"]
    with monkeypatch.context() as patched:
        stopped_at(37, patched)
        assert ssgd(["train", *words, "minutes=3"]) == 124
    assert "the time is up; all is saved. The same command goes on: " in capsys.readouterr().err
    assert newest(tmp_path) == 39  # seen before the next step, which still is made
    assert ssgd(["train", *words, "minutes=3"]) == 0 and outcome(tmp_path) == noisy


def stopped_at(position, monkeypatch):
    """The engine's clock jumps before that step."""
    whole, plain, ahead = Run.step, time.monotonic, 0.0

    def step(run):
        nonlocal ahead
        if run.position == position:
            ahead = 181.0
        whole(run)

    monkeypatch.setattr(Run, "step", step)
    monkeypatch.setattr("ssgd.lab.train.engine.time.monotonic", lambda: plain() + ahead)


def test_no_time_at_all_is_refused(capsys):
    for text in ("0", "-1", "nan"):
        assert ssgd(["train", "digits", *QUIET, f"minutes={text}"]) == 2
        assert "minutes must be a finite number above 0, not " in capsys.readouterr().err


def test_a_signal_that_ends_the_loader_s_workers_first_is_told_as_the_signal(tmp_path, monkeypatch, capsys):
    """A signal to a whole group of processes reaches the workers before us, or after."""

    def fail(run):
        if run.position == 12:
            threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGTERM)).start()
            raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Terminated.")
        step(run)

    step = Run.step
    words = ["train", "digits", "phases=2", "lr=0.1", "train_limit=500", *QUIET, f"out={tmp_path}"]
    monkeypatch.setattr(Run, "step", fail)
    assert ssgd([*words, "checkpoint_seconds=0"]) == 128 + signal.SIGTERM
    said = capsys.readouterr().err
    assert "stopped by SIGTERM, going back to the last checkpoint. The same command goes on" in said
    monkeypatch.undo()
    assert ssgd(words) == 0 and "goes on in epoch 2 of 2" in capsys.readouterr().err


def test_a_worker_that_dies_by_itself_is_a_failure(tmp_path, monkeypatch, capsys):
    def fail(run):
        raise RuntimeError("DataLoader worker (pid 7) is killed by signal: Killed.")

    monkeypatch.setattr(Run, "step", fail)
    monkeypatch.setattr("ssgd.lab.train.engine.SIGNAL_TAKES", 0.1)
    assert ssgd(["train", "digits", "phases=1", "lr=0.1", *QUIET, f"out={tmp_path}"]) == 1
    assert "failed: RuntimeError: DataLoader worker" in capsys.readouterr().err


def test_who_was_stopped_elsewhere_says_by_what():
    found = pickle.loads(pickle.dumps(Stopped(signal.SIGTERM)))  # as Ray brings it from a worker
    assert str(found) == "stopped by SIGTERM" and found.number == signal.SIGTERM
    assert str(Stopped(TIME_IS_UP)) == "the time is up"


@unix
def test_a_second_signal_ends_at_once(tmp_path, monkeypatch, capsys):
    signalled(2, 2, monkeypatch)
    assert ssgd(["train", "digits", *QUIET, f"out={tmp_path}"]) == 130
    assert "interrupted, going back to the last checkpoint. The same command goes on" in capsys.readouterr().err
    assert not list(tmp_path.glob("**/step-*.pt"))


# --- disks ------------------------------------------------------------------------------------------------------------


def remount(disk, options):
    subprocess.run(["mount", "-o", f"remount,{options}", str(disk)], check=True)


def test_a_full_disk_loses_nothing_saved_and_the_run_goes_on_when_there_is_room(tmp_path, monkeypatch, capsys):
    arguments = ["digits", "phases=2", "lr=0.1", *QUIET]
    assert ssgd(["train", *arguments, f"out={tmp_path / 'whole'}"]) == 0
    with small_disk(tmp_path / "disk", "size=600k") as disk:
        here = [*arguments, f"out={disk}"]
        signalled(5, 1, monkeypatch)
        assert ssgd(["train", *here]) == 130
        saved = {path.name: path.read_bytes() for path in disk.glob("**/step-*.pt")}
        room = os.statvfs(disk)
        (disk / "ballast").write_bytes(bytes(room.f_bavail * room.f_frsize - 40_000))
        capsys.readouterr()
        assert ssgd(["train", *here, "checkpoint_seconds=0"]) == 1
        said = capsys.readouterr().err
        assert re.search(rf"no space left for {disk}/digits/seed-0/checkpoints/step-\d+\.pt: free some", said)
        assert ". What was saved is whole: the same command goes on from there." in said and "Traceback" not in said
        assert saved and {path.name: path.read_bytes() for path in disk.glob("**/step-*.pt")} == saved
        remount(disk, "size=4m")
        assert ssgd(["train", *here]) == 0
        assert outcome(disk) == outcome(tmp_path / "whole")


def test_a_read_only_disk_is_named_and_a_finished_run_is_read_from_it(tmp_path, monkeypatch, capsys):
    with small_disk(tmp_path / "disk", "size=4m") as disk:
        cut, done = (["digits", "phases=1", "lr=0.1", *QUIET, f"name={name}", f"out={disk}"] for name in "ab")
        assert ssgd(["train", *done]) == 0
        signalled(5, 1, monkeypatch)
        assert ssgd(["train", *cut]) == 130
        make_read_only(disk)
        capsys.readouterr()
        assert ssgd(["train", *cut]) == 1
        said = capsys.readouterr().err
        assert "cannot be written because its disk is read-only: choose another folder" in said
        assert "Traceback" not in said
        assert ssgd(["train", *done]) == 0 and "finished before" in capsys.readouterr().err
        remount(disk, "rw")
        assert ssgd(["train", *cut]) == 0


# --- data -------------------------------------------------------------------------------------------------------------


class Hostile:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("known", [False, True], ids=["cut short", "hostile"])
def test_data_that_are_damaged_or_hostile_end_with_a_sentence(tmp_path, monkeypatch, capsys, known):
    """A hostile file gets as far as being opened only if its checksum is the right one."""
    folder = tmp_path / "cifar-100-python"
    folder.mkdir()
    content = pickle.dumps(Hostile(tmp_path / "hacked"))
    (folder / "train").write_bytes(content if known else content[:-5])
    if known:
        md5 = {**cifar.PUBLISHED_MD5["cifar100"], "train": hashlib.md5(content).hexdigest()}
        monkeypatch.setitem(cifar.PUBLISHED_MD5, "cifar100", md5)
    assert ssgd(["train", "cifar100", *QUIET, f"folder={tmp_path}", f"out={tmp_path / 'runs'}"]) == 1
    said = capsys.readouterr().err
    sentence = "mkdir, which no image data needs: do not open it" if known else "is damaged or cut short"
    assert str(folder / "train") in said and sentence in said and "Traceback" not in said
    assert not (tmp_path / "hacked").exists()
