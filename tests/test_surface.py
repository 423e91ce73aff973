"""Losses over lines and planes: closed forms, checkpoints' own metrics, kills, and a model that stays where it was."""

import json
import math
import multiprocessing
import os
import signal
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import update_bn

from ssgd.analysis import journal, results
from ssgd.analysis.geometry import Directions, Line, Plane
from ssgd.analysis.moving import Moving
from ssgd.analysis.surface import Surface, evaluate
from ssgd.analysis.task import Task, evaluating

# --- the problem ------------------------------------------------------------------------------------------------------


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))


def batches(seed, *sizes):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randn(n, 4, generator=generator)  # noqa: E731
    return [(x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()) for x in map(draw, sizes)]


TRAIN, TEST = batches(0, 16, 16, 5), batches(1, 12, 7)


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def wrong(model, batch):
    return (model(batch[0]).argmax(1) != batch[1]).sum()


def tasks(model):
    return {"train": Task(model, loss, TRAIN, wrong=wrong), "test": Task(model, loss, TEST, wrong=wrong)}


def solution(seed):
    model = net(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in TRAIN * 5:
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


@pytest.fixture(scope="module")
def plane():
    return Plane(*map(solution, range(3)), net(), names=("SGD", "S-SGD", "SAM"))


def metrics(state, recompute=False):
    """What a checkpoint gives when it is loaded and evaluated, without any geometry: {task: (loss, error)}."""
    model = net(9)
    model.load_state_dict(state)
    if recompute:
        torch.manual_seed(0)
        tasks(model)["train"].recompute_batchnorm()
    with evaluating(model):
        return {name: task.measure() for name, task in tasks(model).items()}


def values(surface):
    return {f.name: getattr(surface, f.name) for f in fields(surface) if f.name != "seconds"}


def assert_same(found, expected):
    for name, value in values(expected).items():
        np.testing.assert_array_equal(values(found)[name], value, err_msg=name)


def files(out):
    return out.with_suffix(".npz").read_bytes(), out.with_suffix(".json").read_bytes()


# --- closed forms -----------------------------------------------------------------------------------------------------


class Point(nn.Module):
    def __init__(self, *weights):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([weights], dtype=torch.float64))


def bowl(model, batch):
    """½ wᵀHw times the mean of the batch."""
    return (model.weight.square() * torch.tensor([1.0, 4.0, 9.0])).sum() / 2 * batch.mean()


def bowl_task(model):
    return {"bowl": Task(model, bowl, [torch.tensor([1.0, 3.0]), torch.tensor([5.0])])}  # ragged: the mean is 3


def test_a_quadratic_along_a_line():
    a, b = Point(1, 0, 2), Point(-1, 1, 0)
    surface = evaluate(Line(a.state_dict(), b.state_dict(), a), bowl_task(a), progress=False)
    t = surface.x
    expected = 1.5 * ((1 - 2 * t) ** 2 + 4 * t**2 + 9 * (2 - 2 * t) ** 2)
    assert surface.losses.shape == (1, 61) and not surface.y.size
    np.testing.assert_allclose(surface.values("bowl"), expected, rtol=1e-12)
    np.testing.assert_allclose(surface.at_anchors("bowl"), [1.5 * 37, 1.5 * 5], rtol=1e-15)
    assert np.isnan(surface.errors).all()  # this task counts no wrong answers


def test_a_quadratic_over_a_plane():
    a, b, c = Point(0, 0, 1), Point(2, 0, 1), Point(1, 3, 1)  # x and y are the first two weights
    geometry = Plane(a.state_dict(), b.state_dict(), c.state_dict(), a)
    surface = evaluate(geometry, bowl_task(c), geometry.grid(4), progress=False)
    x, y = np.meshgrid(surface.x, surface.y, indexing="ij")
    assert surface.values("bowl").shape == (4, 4) and surface.y[-1] == pytest.approx(3.6)
    np.testing.assert_allclose(surface.values("bowl"), 1.5 * (x**2 + 4 * y**2 + 9), rtol=1e-12)
    np.testing.assert_allclose(surface.anchors, [[0, 0], [2, 0], [1, 3]], atol=1e-12)


def test_a_quadratic_around_a_point():
    centre = Point(3, 0, 4)
    geometry = Directions(centre.state_dict(), centre, 1, seed=7)
    surface = evaluate(geometry, bowl_task(centre), (np.array([-1.0, 0.0, 1.0]),), progress=False)
    before, at, after = surface.values("bowl")
    assert at == surface.at_anchors("bowl")[0] == 1.5 * (9 + 9 * 16)
    step = geometry.weights_at(1.0)["weight"] - centre.weight
    assert (before + after) / 2 - at == pytest.approx(bowl(Point(*step[0].tolist()), torch.tensor([3.0])).item())
    assert (surface.seed, surface.normalise) == (7, "filter")


@pytest.mark.parametrize("interpolated", [False, True])
def test_a_model_is_moved_to_what_its_geometry_says(plane, interpolated):
    """Weights and buffers of every kind of geometry, at an anchor, between and beyond; of several dtypes."""

    class Odd(nn.Module):
        def __init__(self, seed):
            super().__init__()
            self.inner = net(seed)
            self.wide = nn.Parameter(torch.full((2, 2), float(seed), dtype=torch.float64))
            self.register_buffer("count", torch.tensor(seed))

    states = [Odd(seed).state_dict() for seed in range(3)]
    model = Odd(9)
    for geometry in (Line(*states[:2], model), Plane(*states, model), Directions(states[0], model, 2, seed=1)):
        move = Moving(model, geometry, interpolated)
        for point in (geometry.coordinates[-1], geometry.coordinates[0] + 0.3, geometry.coordinates[0] - 0.7):
            move(point)
            expected = geometry.weights_at(*point) | geometry.buffers_at(
                *point, mode="interpolate" if interpolated else "keep"
            )
            found = model.state_dict()
            assert found.keys() == expected.keys()
            for name, value in expected.items():
                torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)


# --- batch-norm -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batchnorm", ["keep", "interpolate", "recompute"])
def test_anchors_have_the_metrics_of_their_checkpoints(plane, batchnorm):
    surface = evaluate(plane, tasks(net(9)), plane.grid(2), batchnorm, progress=False)
    for i in range(3):
        expected = metrics(solution(i), recompute=batchnorm == "recompute")
        for name, pair in expected.items():
            assert (surface.at_anchors(name)[i], surface.at_anchors(name, "error")[i]) == pair
    assert surface.batchnorm == batchnorm and surface.names == ["SGD", "S-SGD", "SAM"]


def test_between_anchors_the_statistics_are_those_asked_for(plane):
    point = plane.coordinates.mean(axis=0) + 0.1
    grid = tuple(np.array([x]) for x in point)
    kept, interpolated, recomputed = (
        evaluate(plane, tasks(net(9)), grid, how, progress=False).losses[:, 0, 0].tolist()
        for how in ("keep", "interpolate", "recompute")
    )
    for found, mode in ((kept, "keep"), (interpolated, "interpolate"), (recomputed, "keep")):
        state = plane.weights_at(*point) | plane.buffers_at(*point, mode=mode)
        assert found == [pair[0] for pair in metrics(state, recompute=found is recomputed).values()]
    assert len({kept[0], interpolated[0], recomputed[0]}) == 3


def test_statistics_are_gathered_from_the_task_called_train_else_from_the_first(plane):
    both = tasks(net(9))
    grid = plane.grid(2)
    named = evaluate(plane, {"test": both["test"], "train": both["train"]}, grid, progress=False)
    first = evaluate(plane, {"one": both["train"], "two": both["test"]}, grid, progress=False)
    other = evaluate(plane, {"two": both["test"], "one": both["train"]}, grid, progress=False)
    np.testing.assert_array_equal(named.values("train"), first.values("one"))
    assert (other.values("one") != first.values("one")).all()


def test_statistics_are_those_of_torchs_own_pass():
    """The mean over batches, the ragged one too; also where one layer runs twice."""
    model, expected = net(3), net(3)
    torch.manual_seed(0)
    update_bn(TRAIN, expected)
    with evaluating(model):
        torch.manual_seed(0)
        tasks(model)["train"].recompute_batchnorm()
        assert not model[1].training and model[1].momentum == 0.1
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=1e-6, atol=1e-7)

    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)

        def forward(self, x):
            return self.norm(2 + self.norm(x))

    model, expected = Twice(), Twice()
    update_bn(TRAIN, expected)
    Task(model, loss, TRAIN).recompute_batchnorm()
    torch.testing.assert_close(model.state_dict(), expected.state_dict())


# --- several points at once, compiled, in less precision --------------------------------------------------------------


def deviation(found, expected):
    for what in ("losses", "anchor_losses"):
        yield np.abs(getattr(found, what) / getattr(expected, what) - 1).max()


@pytest.mark.parametrize("batchnorm", ["keep", "interpolate", "recompute"])
@pytest.mark.parametrize("together", [2, 5, 100])
def test_several_points_at_once(plane, capsys, batchnorm, together):
    grid = plane.grid(3)
    one = evaluate(plane, tasks(net(9)), grid, batchnorm, progress=False)
    model = net(9)
    loss(model, TRAIN[0]).backward()
    before = picture_of(model)
    several = evaluate(plane, tasks(model), grid, batchnorm, progress=False, together=together)
    assert max(deviation(several, one)) < 1e-5
    np.testing.assert_array_equal(several.errors, one.errors)
    after = picture_of(model)
    assert all(map(torch.equal, before[0], after[0])) and before[1:3] == after[1:3]
    assert capsys.readouterr().err == ""


def test_several_points_at_once_in_double_precision(plane):
    states = [{k: v.double() if v.is_floating_point() else v for k, v in s.items()} for s in plane.anchors]
    wide = Plane(*states, net())
    data = [(x.double(), y) for x, y in TRAIN]
    one, several = (
        evaluate(wide, {"train": Task(net(9).double(), loss, data)}, wide.grid(3), progress=False, together=together)
        for together in (1, 4)
    )
    assert max(deviation(several, one)) < 1e-12


def test_tied_weights_at_several_points():
    class Tied(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.first = nn.Linear(1, 1, bias=False)
            self.second = nn.Linear(1, 1, bias=False)
            self.second.weight = self.first.weight
            nn.init.constant_(self.first.weight, value)

        def forward(self, x):
            return self.second(self.first(x))

    model = Tied(0.0)
    task = Task(model, lambda model, x: model(x).mean(), [torch.ones(2, 1)])
    line = Line(Tied(0.0).state_dict(), Tied(2.0).state_dict(), model)
    surface = evaluate(line, {"train": task}, (np.array([0.25, 0.75]),), progress=False, together=4)
    assert surface.values("train").tolist() == [0.25, 2.25]


def test_what_vmap_does_not_serve_goes_one_by_one(plane, capsys):
    def branching(model, batch):
        found = loss(model, batch)
        return found if found.item() >= 0 else -found

    model = net(9)
    expected = evaluate(plane, {"train": Task(model, loss, TRAIN)}, plane.grid(2), progress=False)
    found = evaluate(plane, {"train": Task(model, branching, TRAIN)}, plane.grid(2), progress=False, together=3)
    assert_same(found, expected)
    assert capsys.readouterr().err.count("points go one by one, because vmap does not serve this model: ") == 1


def test_cut_groups_resume_to_the_identical_files(plane, tmp_path):
    evaluate(plane, tasks(net(9)), plane.grid(3), out=tmp_path / "whole", progress=False, together=5)
    lines = (tmp_path / "whole.jsonl").read_bytes().splitlines(keepends=True)
    for done in (1, 4, 6, 9):
        out = tmp_path / f"cut-{done}"
        out.with_suffix(".jsonl").write_bytes(b"".join(lines[:done]))
        evaluate(plane, tasks(net(9)), plane.grid(3), out=out, progress=False, together=5)
        assert files(out) == files(tmp_path / "whole")
        assert out.with_suffix(".jsonl").read_bytes().splitlines(keepends=True)[:done] == lines[:done]


@pytest.mark.parametrize("together", [1, 4])
def test_compiled_passes(plane, monkeypatch, capsys, together):
    torch._dynamo.reset()
    compiler, used = torch.compile, []
    monkeypatch.setattr(
        torch, "compile", lambda f, **_: used.append(f) or compiler(f, backend="aot_eager", fullgraph=True)
    )
    grid = plane.grid(2)
    expected = evaluate(plane, tasks(net(9)), grid, progress=False)
    found = evaluate(plane, tasks(net(9)), grid, progress=False, compile=True, together=together)
    assert max(deviation(found, expected)) < 1e-5
    assert len(used) == 3 and capsys.readouterr().err == ""  # statistics, and the losses of two tasks


@pytest.mark.parametrize("batchnorm", ["keep", "recompute"])
def test_what_cannot_be_captured_goes_without(plane, capsys, batchnorm):
    grid = plane.grid(2)
    expected = evaluate(plane, tasks(net(9)), grid, batchnorm, progress=False)
    assert_same(evaluate(plane, tasks(net(9)), grid, batchnorm, progress=False, graph=True), expected)
    told = capsys.readouterr().err.count("a CUDA graph does not work here, all goes on without, slower")
    assert told == (3 if batchnorm == "recompute" else 2)  # statistics, and the losses of two tasks


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("compile", [False, True])
def test_captured_passes(plane, capsys, precision, compile):
    """Of a net with batch-norm and dropout, from solutions on the CPU, with a last batch that no graph serves."""

    def on_gpu():
        model = net(9).cuda()
        data = [(x.cuda(), y.cuda()) for x, y in TRAIN]
        return {"train": Task(model, loss, data, wrong=wrong)}

    how = {"precision": precision, "progress": False}
    expected = evaluate(plane, on_gpu(), plane.grid(3), **how)
    found = evaluate(plane, on_gpu(), plane.grid(3), graph=True, compile=compile, **how)
    assert max(deviation(found, expected)) < (1e-5 if precision == "fp32" else 1e-2)
    assert capsys.readouterr().err == ""


def test_less_precision_is_told_and_not_mixed(plane, tmp_path):
    grid = plane.grid(2)
    exact = evaluate(plane, tasks(net(9)), grid, progress=False)
    rough = evaluate(plane, tasks(net(9)), grid, progress=False, precision="bf16", out=tmp_path / "rough")
    assert 1e-5 < max(deviation(rough, exact)) < 0.1
    assert (exact.precision, rough.precision, results.load(Surface, tmp_path / "rough").precision) == (
        "fp32",
        "bf16",
        "bf16",
    )
    with pytest.raises(ValueError, match=r"holds another evaluation \(other precision\)"):
        evaluate(plane, tasks(net(9)), grid, progress=False, out=tmp_path / "rough")
    np.testing.assert_array_equal(
        evaluate(plane, tasks(net(9)), grid, progress=False, precision="tf32").losses, exact.losses
    )  # on a CPU there is none


def test_loss_and_errors_from_one_forward_pass(plane):
    calls = []

    def both(model, batch):
        calls.append(batch)
        logits = model(batch[0])
        return F.cross_entropy(logits, batch[1]), (logits.argmax(1) != batch[1]).sum()

    model = net(9)
    found = evaluate(plane, {"train": Task(model, loss, TRAIN, loss_and_wrong=both)}, plane.grid(2), progress=False)
    expected = evaluate(plane, {"train": tasks(model)["train"]}, plane.grid(2), progress=False)
    assert_same(found, expected)
    assert len(calls) == 3 * 7


# --- the model stays --------------------------------------------------------------------------------------------------


def picture_of(model):
    tensors = [*model.parameters(), *model.buffers()]
    values = [t.detach().clone() for t in (*tensors, *(p.grad for p in model.parameters()))]
    return values, [t.data_ptr() for t in tensors], [m.training for m in model.modules()], torch.get_rng_state()


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_stays_as_it_was(plane, fails):
    model = net(9).train()
    model[1].eval()
    loss(model, TRAIN[0]).backward()
    calls = 0

    def failing(model, batch):
        nonlocal calls
        calls += 1
        if fails and calls == 12:
            raise RuntimeError("out of memory")
        return loss(model, batch)

    before = picture_of(model)
    task = Task(model, failing, TRAIN, wrong=wrong)
    if fails:
        with pytest.raises(RuntimeError, match="out of memory"):
            evaluate(plane, {"train": task}, plane.grid(3), progress=False)
    else:
        evaluate(plane, {"train": task}, plane.grid(3), progress=False)
    after = picture_of(model)
    assert all(map(torch.equal, before[0], after[0])) and before[1:3] == after[1:3]
    assert torch.equal(before[3], after[3]) and calls >= 12


def test_the_model_may_be_one_of_the_solutions_itself():
    model, other = net(0), net(1)
    model.load_state_dict(solution(0))
    other.load_state_dict(solution(1))
    line = Line(model.state_dict(), other.state_dict(), model)
    found = evaluate(line, tasks(model), line.grid(5), "keep", progress=False)
    expected = evaluate(Line(solution(0), solution(1), model), tasks(net(9)), line.grid(5), "keep", progress=False)
    assert_same(found, expected)


def test_tied_weights_move_together():
    class Tied(nn.Module):
        def __init__(self, value):
            super().__init__()
            self.first = nn.Linear(1, 1, bias=False)
            self.second = self.first
            nn.init.constant_(self.first.weight, value)

        def forward(self, x):
            return self.second(self.first(x))

    model = Tied(0.0)
    task = Task(model, lambda model, x: model(x).mean(), [torch.ones(2, 1)])
    line = Line(Tied(0.0).state_dict(), Tied(2.0).state_dict(), model)
    surface = evaluate(line, {"train": task}, (np.array([0.25, 0.75]),), progress=False)
    assert surface.values("train").tolist() == [0.25, 2.25]


def test_a_compiled_model(plane):
    compiled = torch.compile(net(9), backend="eager")
    grid = plane.grid(2)
    assert_same(
        evaluate(plane, tasks(compiled), grid, progress=False), evaluate(plane, tasks(net(9)), grid, progress=False)
    )


def test_no_point_depends_on_those_before_it(plane):
    """Neither through the loader's shuffling nor through the masks of dropout."""
    data = torch.utils.data.TensorDataset(*map(torch.cat, zip(*TRAIN, strict=True)))
    task = Task(net(9), loss, torch.utils.data.DataLoader(data, 10, shuffle=True), wrong=wrong)
    whole = evaluate(plane, {"train": task}, plane.grid(3), progress=False)
    torch.manual_seed(77)
    part = evaluate(plane, {"train": task}, tuple(axis[1:] for axis in plane.grid(3)), progress=False)
    np.testing.assert_array_equal(part.losses, whole.losses[:, 1:, 1:])
    np.testing.assert_array_equal(part.anchor_losses, whole.anchor_losses)


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(plane, tmp_path_factory):
    """An evaluation in one go: its result and where its files lie."""
    out = tmp_path_factory.mktemp("whole") / "plane"
    return evaluate(plane, tasks(net(9)), plane.grid(4), out=out, progress=False), out


def test_the_result_comes_back_from_its_files(whole):
    surface, out = whole
    read = results.load(Surface, out)
    assert_same(read, surface)
    _, rows = journal.read(out)
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
    assert list(journal.read(out)[1]) == [*range(3 + 3)]  # the anchors, and three points
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
        journal.read(tmp_path / "line")


def test_losses_beyond_all_numbers_are_kept(tmp_path):
    model = Point(0.0)
    task = Task(model, lambda model, _: model.weight.sum() * math.inf, [torch.ones(1)])
    line = Line(Point(1.0).state_dict(), Point(2.0).state_dict(), model)
    for _ in range(2):  # the second time from the file
        surface = evaluate(line, {"train": task}, (np.array([-1.0, 0.5]),), out=tmp_path / "far", progress=False)
        assert np.isnan(surface.losses[0, 0]) and surface.losses[0, 1] == math.inf


# --- refused, and shown -----------------------------------------------------------------------------------------------


def test_bad_choices(plane):
    one, other = tasks(net(9)), tasks(net(9))
    with pytest.raises(ValueError, match=r"the tasks must share one model, .* not 2"):
        evaluate(plane, {"train": one["train"], "test": other["test"]})
    with pytest.raises(ValueError, match=r"not of the tasks' model: '1\.bias' is not the same"):
        evaluate(plane, tasks(nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 3))))
    with pytest.raises(ValueError, match="batchnorm must be one of 'recompute', 'interpolate', 'keep', not 'eval'"):
        evaluate(plane, one, batchnorm="eval")
    with pytest.raises(ValueError, match="precision must be one of 'fp32', 'tf32', 'bf16', not 'half'"):
        evaluate(plane, one, precision="half")
    with pytest.raises(ValueError, match="together must be a whole number of at least 1"):
        evaluate(plane, one, together=0)
    with pytest.raises(ValueError, match="grid must hold the values of each of 2 coordinates"):
        evaluate(plane, one, (np.zeros(3),))
    with pytest.raises(ValueError, match="grid must hold the values of each of 2 coordinates"):
        evaluate(plane, one, 5)
    with pytest.raises(TypeError, match="tasks must be Tasks by name"):
        evaluate(plane, one["train"])
    with pytest.raises(TypeError, match=r"needs a Task, such as .* not a Sequential"):
        evaluate(plane, {"train": one["train"].model})
    with pytest.raises(ValueError, match="of must be one of 'train', 'test', not 'valid'"):
        evaluate(plane, one, plane.grid(2), progress=False).values("valid")


def test_a_bar_unless_it_is_not_wanted(plane, capsys):
    evaluate(plane, tasks(net(9)), plane.grid(2), progress=False)
    assert capsys.readouterr() == ("", "")
    evaluate(plane, tasks(net(9)), plane.grid(2))
    assert "7/7" in capsys.readouterr().err
