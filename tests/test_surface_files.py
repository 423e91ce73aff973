"""Surfaces in files: read back, resumed after kills, never mixed."""

import json
import math
import multiprocessing
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from ssgd.analysis import Directions, Line, Plane, Surface, Task, evaluate, results
from ssgd.analysis.results import read_journal

from .surface_problems import TRAIN, Point, assert_same, files, net, solution, tasks


@pytest.fixture(scope="module")
def whole(plane, tmp_path_factory):
    """An evaluation in one go: its result and where its files lie."""
    out = tmp_path_factory.mktemp("whole") / "plane"
    return evaluate(plane, tasks(net(9)), plane.grid(4), out=out, progress=False), out


def test_the_result_comes_back_from_its_files(whole):
    surface, out = whole
    read = results.load(Surface, out)
    assert_same(read, surface)
    _, rows = read_journal(out)
    assert read.seconds is None and surface.seconds == sum(row["seconds"] for row in rows.values()) > 0
    assert np.isfinite(surface.losses).all() and np.isfinite(surface.errors).all()
    assert sorted(path.name for path in out.parent.iterdir()) == ["plane.json", "plane.jsonl", "plane.npz"]


def test_a_name_with_a_dot_is_a_whole_name(plane, tmp_path):
    for level in ("0.1", "0.2"):
        evaluate(plane, tasks(net(9)), plane.grid(2), out=tmp_path / "deeper" / f"level-{level}", progress=False)
    assert len(list(tmp_path.glob("deeper/level-0.2.*"))) == 3
    assert results.load(Surface, tmp_path / "deeper" / "level-0.1").geometry == "Plane"


def killed(plane, out, after):
    """Evaluates, and dies by SIGKILL in its so many-th pass over the training set."""

    class Deadly(list):
        passes = 0

        def __iter__(self):
            self.passes += 1
            if self.passes == after:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__iter__()

    both = tasks(net(9))
    evaluate(
        plane, {**both, "train": replace(both["train"], batches=Deadly(TRAIN))}, plane.grid(4), out=out, progress=False
    )


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs Unix signals")
def test_a_killed_grid_resumes_to_the_identical_files(plane, whole, tmp_path, monkeypatch):
    out = tmp_path / "plane"
    process = multiprocessing.get_context("spawn").Process(target=killed, args=(plane, out, 14))  # two passes a point
    process.start()
    process.join(60)
    assert process.exitcode == -signal.SIGKILL and not out.with_suffix(".npz").exists()
    assert list(read_journal(out)[1]) == [*range(3 + 3)]  # the anchors, and three points
    passes = counted_passes(monkeypatch)
    assert_same(evaluate(plane, tasks(net(9)), plane.grid(4), out=out, progress=False), whole[0])
    assert len(passes) == 2 * (19 - 6) and files(out) == files(whole[1])


def counted_passes(monkeypatch):
    passes, measure = [], Task.measure
    monkeypatch.setattr(Task, "measure", lambda task, *how: passes.append(task) or measure(task, *how))
    return passes


def test_cut_at_any_byte_it_resumes_to_the_identical_files(plane, whole, tmp_path, monkeypatch):
    content = whole[1].with_suffix(".jsonl").read_bytes()
    first = content.index(b"\n") + 1
    third = content.index(b"\n", content.index(b"\n", first) + 1)
    passes = counted_passes(monkeypatch)
    for i, (length, done) in enumerate(
        [(0, 0), (first // 2, 0), (first - 1, 0), (first, 0), (third, 1), (third + 1, 2)]
    ):
        out = tmp_path / str(i)
        out.with_suffix(".jsonl").write_bytes(content[:length])
        passes.clear()
        evaluate(plane, tasks(net(9)), plane.grid(4), out=out, progress=False)
        assert files(out) == files(whole[1]) and len(passes) == 2 * (19 - done)
        assert all(json.loads(line) for line in out.with_suffix(".jsonl").read_text().splitlines())
    evaluate(plane, tasks(net(9)), plane.grid(4), out=whole[1], progress=False)
    assert len(passes) == 2 * (19 - 2)  # what is finished costs nothing


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda plane: {"geometry": Plane(*map(solution, (0, 1, 3)), net(), names=plane.names)},
            "anchors, digest",
        ),
        (lambda plane: {"grid": plane.grid(3)}, "axes"),
        (lambda plane: {"batchnorm": "keep"}, "batchnorm"),
        (lambda plane: {"tasks": {"train": tasks(net(9))["train"]}}, "tasks"),
        (lambda plane: {"data": {"data": "digits", "limit": 40}}, "data"),
    ],
    ids=["solutions", "grid", "batch-norm", "tasks", "data"],
)
def test_another_evaluation_is_not_mixed_in(plane, whole, change, what):
    before = whole[1].with_suffix(".jsonl").read_bytes()
    arguments = {"geometry": plane, "tasks": tasks(net(9)), "grid": plane.grid(4), **change(plane)}
    with pytest.raises(
        ValueError, match=rf"plane\.jsonl holds another evaluation \(other {what}\): choose another name"
    ):
        evaluate(**arguments, out=whole[1], progress=False)
    assert whole[1].with_suffix(".jsonl").read_bytes() == before


def test_the_same_data_are_taken_up_again(plane, tmp_path, monkeypatch):
    for limit in (40, 40):
        passes = counted_passes(monkeypatch)
        data = ("digits", limit)  # a list in the file
        evaluate(plane, tasks(net(9)), plane.grid(2), out=tmp_path / "plane", progress=False, data=data)
    assert not passes


def test_where_the_arrays_are_the_rest_of_a_result_is_too(whole, tmp_path, monkeypatch):
    def full(path, content):
        if path.suffix == ".json":
            raise OSError("no space left")
        write_whole(path, content)

    write_whole = results.write_whole
    monkeypatch.setattr(results, "write_whole", full)
    with pytest.raises(OSError, match="no space left"):
        results.save(whole[0], tmp_path / "plane")
    assert not list(tmp_path.iterdir())


def test_another_seed_is_another_evaluation(tmp_path):
    for seed in (0, 0, 1):
        geometry = Directions(solution(0), net(), seed=seed)
        if seed:
            with pytest.raises(ValueError, match=r"other seed\)"):
                evaluate(geometry, tasks(net(9)), geometry.grid(2), out=tmp_path / "around", progress=False)
        else:
            evaluate(geometry, tasks(net(9)), geometry.grid(2), out=tmp_path / "around", progress=False)


def test_files_that_are_none_of_ours(plane, tmp_path):
    (tmp_path / "plane.jsonl").write_text("something else\n")
    with pytest.raises(ValueError, match=r"plane\.jsonl is damaged, or was not written by this library"):
        evaluate(plane, tasks(net(9)), out=tmp_path / "plane", progress=False)
    with pytest.raises(FileNotFoundError, match=r"line\.jsonl is not there, or empty"):
        read_journal(tmp_path / "line")


def test_losses_beyond_all_numbers_are_kept(tmp_path):
    model = Point(0.0)
    task = Task(model, lambda model, _: model.weight.sum() * math.inf, [torch.ones(1)])
    line = Line(Point(1.0).state_dict(), Point(2.0).state_dict(), model)
    for _ in range(2):  # the second time from the file
        surface = evaluate(line, {"train": task}, (np.array([-1.0, 0.5]),), out=tmp_path / "far", progress=False)
        assert np.isnan(surface.losses[0, 0]) and surface.losses[0, 1] == math.inf
