"""Runs that diverge or find no memory, and the runs beside them."""

import weakref
from dataclasses import replace

import pytest
import torch

from ssgd.cli.progress import Progress
from ssgd.lab.train import RunDir, compare, train
from ssgd.lab.train.distributed import Ranks
from ssgd.lab.train.engine import drive
from ssgd.lab.train.job import Job, Sources
from ssgd.lab.train.running import Diverged, Run

from .small_trainings import folder, small, trained


def test_a_run_that_diverges_does_so_alone(quiet):
    bad, good = small(name="bad", lr=(1e6,), phases="4"), small(name="good")
    jobs = compare([bad, good], quiet)
    assert isinstance(jobs[0].failure, Diverged) and jobs[0].result is None
    assert "lower lr or the level" in str(jobs[0].failure)
    assert jobs[1].failure is None and jobs[1].result["test_accuracy"] > 15
    assert RunDir(folder(quiet, bad)).result() is None
    with pytest.raises(Diverged, match=r"the (test )?loss is (nan|inf) after epoch \d: lower lr or the level"):
        train(bad, quiet)


def test_a_run_that_cannot_begin_is_named_at_once(quiet, capsys, monkeypatch):
    bad, good = small(name="bad", data="cifar10"), small(name="good")
    said = []
    monkeypatch.setattr(Run, "step", lambda self, step=Run.step: (said.append(capsys.readouterr().err), step(self)))
    offline = replace(quiet, download=False, folder=quiet.out)
    jobs = compare([bad, good], offline, listener=Progress(shown=False))
    assert isinstance(jobs[0].failure, FileNotFoundError) and jobs[1].result is not None
    assert "bad/seed-0: failed: " in said[0]  # not only when all others have ended


def test_a_last_step_that_diverges_is_seen_by_the_test_loss(quiet):
    recipe = small(lr=(1e30,), phases="1", train_limit=64, batch=64)
    with pytest.raises(Diverged, match=r"the test loss is (nan|inf) after epoch 1: lower lr or the level"):
        train(recipe, quiet)
    assert RunDir(folder(quiet)).result() is None


class Bar:
    """Tqdm's, without a terminal."""

    total = passed = 0.0

    def update(self, samples):
        self.passed += samples

    def __getattr__(self, _):
        return lambda *_, **__: None


def test_the_bar_knows_of_runs_that_have_not_begun(quiet):
    jobs = [Job(small(), seed, quiet, Ranks(), lambda text: None) for seed in range(3)]
    shown = Progress()
    shown._bar = bar = Bar()
    shown.expect(jobs)
    totals = []
    for job in jobs:
        job.begin(Sources(quiet))
        shown.begin(job)
        totals.append(bar.total)
        job.close()
    assert totals == [3 * 2 * 200] * 3


def test_a_bar_is_drawn_from_the_first_run_on_and_ends_its_line(quiet, capsys, monkeypatch):
    pytest.importorskip("tqdm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    job = Job(small(), 0, quiet, Ranks(), lambda text: None)
    with Progress() as shown:
        assert capsys.readouterr().err == ""
        job.begin(Sources(quiet))
        shown.begin(job)
        job.close()
    assert capsys.readouterr().err.endswith("\n")


@pytest.mark.parametrize("moment", ["begin", "advance"])
def test_without_memory_beside_others_a_run_waits_until_one_has_ended(quiet, tmp_path, monkeypatch, moment):
    """There is room for two. What waited ends as it does alone."""
    jobs = [Job(small(), seed, quiet, Ranks(), lambda text: None) for seed in range(4)]
    act, tried, shown = getattr(Job, moment), [], Progress()
    shown._bar = bar = Bar()

    def refuse(job, *rest):
        tried.append(job.seed)
        assert len(tried) < 50
        if sum(one.run is not None for one in jobs if one is not job) > 1:
            raise torch.cuda.OutOfMemoryError
        return act(job, *rest)

    monkeypatch.setattr(Job, moment, refuse)
    drive(jobs, 4, Sources(quiet), shown, lambda: None)
    monkeypatch.undo()
    assert all(job.failure is None for job in jobs)
    assert bar.passed == bar.total == 4 * 2 * 200
    if moment == "begin":
        assert tried == [0, 1, 2, 3, 2]  # the third waits, and no other is tried in its place
    alone = replace(quiet, out=str(tmp_path / "alone"))
    for seed in (0, 3):
        found = (folder(quiet, seed=seed) / "weights.safetensors").read_bytes()
        assert found == trained(small(seeds=(seed,)), alone, seed)[0]


def test_without_memory_for_one_run_it_fails_and_its_memory_is_free(quiet, monkeypatch):
    def fail(run):
        raise KeyError

    def refuse(run):
        try:
            fail(run)
        except KeyError:
            raise torch.cuda.OutOfMemoryError from None

    runs = weakref.WeakSet()
    monkeypatch.setattr(Run, "step", refuse)
    monkeypatch.setattr(Job, "begin", lambda job, sources, act=Job.begin: (act(job, sources), runs.add(job.run)))
    (job,) = compare([small()], quiet)
    assert isinstance(job.failure, torch.cuda.OutOfMemoryError)
    assert not runs


def test_the_device_is_waited_for_before_a_run_is_let_go(quiet, monkeypatch):
    job = Job(small(), 0, quiet, Ranks(), print)
    job.begin(Sources(quiet))
    seen = []
    monkeypatch.setattr(Run, "wait", lambda run: seen.append(run is job.run))
    job.close()
    job.close()
    assert seen == [True] and job.run is None
