"""What damage does to weights and figures, against closed forms; and that nothing of it stays."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ssgd.analysis import Task, Tolerance, draw_tolerance, load, tolerance, tolerance_of
from ssgd.analysis.damage import DAMAGES, Weights, rounded_to
from ssgd.cli.main import main
from ssgd.lab.experiments import get
from ssgd.lab.train import Execution, train

from .surface_problems import TEST, TRAIN, batches, loss, net, picture_of, wrong


def logits(model, batch):
    return model(batch[0]), batch[1]


def task_of(model, **more):
    return Task(model, loss, TEST, wrong=wrong, as_trained=TRAIN, **more)


def squares(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


def linear(inputs=40, outputs=3, count=64):
    """A linear model without error, whose mean squared error rises by a known amount under noise."""
    torch.manual_seed(0)
    model = nn.Linear(inputs, outputs, bias=False).double()
    with torch.no_grad():
        model.weight.mul_(torch.tensor([[0.3], [1.0], [3.0]]))
    x = torch.randn(count, inputs, dtype=torch.float64) * torch.rand(count, 1)
    return Task(model, squares, list(zip(x.split(20), model(x).detach().split(20), strict=True))), x


def seen_by(task):
    """The task, and a list that gets the model's state at every call of its loss."""
    states = []

    def watched(model, batch):
        states.append({name: t.clone() for name, t in model.state_dict().items()})
        return task.loss(model, batch)

    return Task(task.model, watched, task.batches, as_trained=task.as_trained, inputs=task.inputs), states


# --- weight noise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["noise", "fresh-noise", "filter-noise", "fresh-filter-noise"])
def test_the_expected_loss_of_a_linear_model_under_noise(kind):
    """E L(w + n) = L(w) + Σ_f σ_f² mean ‖x‖² / outputs, with σ_f the ratio times the rms of the tensor or filter."""
    task, x = linear()
    weight = task.model.weight.detach()
    found = tolerance(task, {kind: [0.5]}, draws=300, progress=False)
    mean_square = weight.square().mean(1) if "filter" in kind else weight.square().mean().expand(3)
    expected = 0.25 * (mean_square.sum() / 3 * x.square().sum(1).mean()).item()
    rises = found.losses[1, :, 0] - found.losses[0, 0, 0]
    assert abs(rises.mean() - expected) < 4 * rises.std() / math.sqrt(300)
    assert rises.std() < 0.3 * expected and found.losses[0, 0, 0] == 0
    mean, sd, worst = found.summary("loss")
    assert mean[1, 0] == pytest.approx(found.losses[1].mean()) and worst[1, 0] == found.losses[1].max()
    assert sd[1, 0] == pytest.approx(found.losses[1].std(ddof=1)) and math.isnan(sd[0, 0])


def test_noise_has_the_ratio_of_each_filter_and_one_direction_for_all_ratios():
    model = nn.Sequential(nn.Linear(3000, 2), nn.Linear(2, 2))
    weights = Weights(model)
    assert sum(weights.sizes) == 6004  # no biases
    draw = lambda ratio, by: weights.noisy(ratio, by, torch.Generator().manual_seed(3)) - weights.clean  # noqa: E731
    for by, parts in (("filter", 2), ("tensor", 1)):
        noise, clean = (v[:6000].view(parts, -1).norm(dim=1) for v in (draw(0.3, by), weights.clean))
        torch.testing.assert_close(noise / clean, torch.full((parts,), 0.3), rtol=0.1, atol=0)
    torch.testing.assert_close(2 * draw(0.1, "tensor"), draw(0.2, "tensor"), rtol=1e-2, atol=1e-6)


def test_one_noise_for_all_batches_or_a_new_one_for_each():
    for kind, different in (("noise", 1), ("fresh-noise", 4)):
        task, states = seen_by(linear()[0])
        tolerance(task, {kind: [0.5]}, draws=1, progress=False)
        assert len(states) == 8  # four batches, without damage and with
        assert len({state["weight"].sum().item() for state in states[4:]}) == different


# --- pruning --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.9])
def test_pruning_removes_exactly_the_smallest(share):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 10), nn.Linear(10, 2))
    with torch.no_grad():
        model[1].weight.mul_(10)
        model[0].weight[0] = 0.5  # ties are broken all the same
    weights = Weights(model)
    whole, layers = weights.pruned(share, "model"), weights.pruned(share, "tensor")
    assert (whole == 0).sum() == round(share * 100)
    assert [(part == 0).sum().item() for part in layers.split([80, 20])] == [round(share * 80), round(share * 20)]
    for values in (whole, layers[:80]):
        clean = weights.clean[: len(values)]
        kept = values != 0
        assert torch.equal(values[kept], clean[kept])
        assert share == 0 or clean[~kept].abs().max() <= clean[kept].abs().min()


# --- few bits -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [8, 5, 4, 3, 2])
@pytest.mark.parametrize("by", ["filter", "tensor"])
def test_rounded_weights_lie_on_the_grid_of_the_best_clip(bits, by):
    torch.manual_seed(0)
    model = nn.Conv2d(4, 6, 3, bias=False)
    with torch.no_grad():
        model.weight.mul_(torch.logspace(-2, 1, 6)[:, None, None, None])
        model.weight[2] = 0
    weights, top = Weights(model), 2 ** (bits - 1) - 1
    rows = (6, -1) if by == "filter" else (1, -1)
    found, clean = weights.rounded(bits, by).view(rows), weights.clean.view(rows)
    for values, row in zip(found, clean, strict=True):
        steps = values[values != 0].abs()
        if not len(steps):
            assert not row.any()
            continue
        tried = [row.abs().max() * (i / 1000) / top for i in range(1, 1001)]
        errors = [(rounded_to(row, scale, top) - row).square().sum().item() for scale in tried]
        error = (values - row).square().sum().item()
        assert error <= errors[-1] and error <= 1.4 * min(errors)
        assert len(values.unique()) <= 2 * top + 1
        codes = [(steps / (row.abs().max() * i / 100 / top)) for i in range(1, 101)]
        assert any((code - code.round()).abs().max() < 1e-3 and code.max() < top + 0.5 for code in codes)


def test_rounding_agrees_with_torchao():
    """At its scales, but for its one value more below zero."""
    ao = pytest.importorskip("torchao.quantization", reason="torchao is not installed, whose rounding is compared")
    torch.manual_seed(0)
    clean = nn.Linear(64, 32, bias=False).weight.detach().clone()
    int4 = ao.IntxWeightOnlyConfig(weight_dtype=torch.int4, granularity=ao.PerAxis(0))
    for top, config in ((127, ao.Int8WeightOnlyConfig()), (7, int4)):
        model = nn.Sequential(nn.Linear(64, 32, bias=False))
        model[0].weight.data.copy_(clean)
        ao.quantize_(model, config)
        scale, theirs = model[0].weight.scale.view(-1, 1), model[0].weight.dequantize()
        ours = rounded_to(clean, scale, top)
        both = clean > -(top + 0.499) * scale
        assert both.float().mean() > 0.9
        torch.testing.assert_close(ours[both], theirs[both], rtol=1e-5, atol=1e-7)


# --- inputs and calibration -----------------------------------------------------------------------------------------


def test_the_expected_loss_of_a_linear_model_under_noisy_inputs():
    """E L = L + mean over samples of ratio² · rms(x)² · ‖W‖² / outputs."""
    task, x = linear()
    found = tolerance(task, {"input-noise": [0.5]}, draws=300, progress=False)
    expected = 0.25 * (x.square().mean() * task.model.weight.square().sum() / 3).item()
    rises = found.losses[1, :, 0] - found.losses[0, 0, 0]
    assert abs(rises.mean() - expected) < 4 * rises.std() / math.sqrt(300)


def test_calibration_of_known_confidences():
    """Three of four right, at a confidence of 0.6 each: 15 points off; the loss is the negative log likelihood."""
    scores = torch.log(torch.tensor([[0.6, 0.4]] * 4))
    model = nn.Linear(2, 2, bias=False)
    nn.init.eye_(model.weight)
    labels = torch.tensor([0, 0, 0, 1])
    task = Task(model, loss, [(scores[:3], labels[:3]), (scores[3:], labels[3:])], logits=logits)
    found = tolerance(task, [], progress=False)
    assert found.eces[0, 0].item() == pytest.approx(15, abs=1e-4)
    assert found.errors[0, 0].item() == 25
    assert found.losses[0, 0].item() == pytest.approx(-(3 * math.log(0.6) + math.log(0.4)) / 4)


# --- recalibration --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pruning", "noise", "fresh-noise", "input-noise"])
def test_recalibrated_statistics_are_those_of_the_batches_asked_for(kind):
    """Of the damaged weights, over the first training batches, 16 samples each; the labels are never read."""
    model = net(3)
    trained = [(x, None) for x, _ in TRAIN]
    task, states = seen_by(Task(model, loss, TEST, as_trained=trained))
    found = tolerance(task, {kind: [0.5]}, draws=1, recalibrate=20, progress=False)
    assert found.columns == ["as it is", "recalibrated"] and found.recalibration == 32
    as_it_is, again = states[4], states[6]  # two batches for each of: none, none recalibrated, as it is, recalibrated
    assert torch.equal(as_it_is["1.running_mean"], model[1].running_mean)
    outputs = [F.linear(x, again["0.weight"], again["0.bias"]) for x, _ in TRAIN[:2]]
    mean, variance = (torch.stack([f(o) for o in outputs]).mean(0) for f in (lambda o: o.mean(0), lambda o: o.var(0)))
    if kind in ("pruning", "noise"):
        torch.testing.assert_close(again["1.running_mean"], mean)
        torch.testing.assert_close(again["1.running_var"], variance)
    else:  # of other noise in each batch
        assert not torch.equal(again["1.running_mean"], as_it_is["1.running_mean"])
        assert not torch.allclose(again["1.running_mean"], mean)


def test_every_damage_begins_with_the_trained_statistics_and_the_clean_weights():
    model = net(3)
    task, states = seen_by(task_of(model))
    tolerance(task, {"pruning": [0.9], "input-noise": [0.5]}, draws=1, progress=False)
    for state, (name, value) in ((s, item) for s in (states[0], states[8]) for item in model.state_dict().items()):
        assert torch.equal(state[name], value)


def test_without_batchnorm_there_is_one_column():
    found = tolerance(linear()[0], ["pruning"], progress=False)
    assert found.columns == ["as it is"] and found.losses.shape == (7, 25, 1) and found.recalibration == 0
    assert np.isnan(found.losses[1:, 1:]).all()  # pruning has one draw


# --- nothing stays, nothing is lost ---------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("at", [1, 9, 40])
def test_the_model_stays_as_it_was(error, at):
    model = net(9).train()
    model[1].eval()
    loss(model, TRAIN[0]).backward()
    calls = 0

    def failing(model, batch):
        nonlocal calls
        calls += 1
        torch.rand(2)
        if error is not None and calls == at:
            raise error
        return loss(model, batch)

    before = picture_of(model)
    task = Task(model, failing, TEST, wrong=wrong, as_trained=TRAIN)
    if error is None:
        tolerance(task, draws=2, progress=False)
    else:
        with pytest.raises(error):
            tolerance(task, draws=2, progress=False)
    after = picture_of(model)
    assert all(map(torch.equal, before[0], after[0])) and before[1:3] == after[1:3]
    assert torch.equal(before[3], after[3]) and calls >= at


def test_a_killed_evaluation_goes_on_to_the_identical_files(tmp_path):
    damages = {"noise": [0.2, 0.4], "fresh-noise": [0.3], "input-noise": [0.3], "channel-bits": [4]}
    options = {"draws": 3, "progress": False, "data": {"set": "test"}}
    whole = tolerance(task_of(net(9), logits=logits), damages, out=tmp_path / "whole", **options)
    calls = 0

    def counted(model, batch):
        nonlocal calls
        calls += 1
        if calls == 17:
            raise KeyboardInterrupt
        return logits(model, batch)

    task = task_of(net(9), logits=counted)
    with pytest.raises(KeyboardInterrupt):
        tolerance(task, damages, out=tmp_path / "cut", **options)
    assert len((tmp_path / "cut.jsonl").read_text().splitlines()) == 1 + 4  # four batches each, in two columns
    torch.rand(5)
    found = tolerance(task, damages, out=tmp_path / "cut", **options)
    assert calls == 17 + 4 * (14 - 4)
    for ending in (".npz", ".json"):
        assert (tmp_path / f"cut{ending}").read_bytes() == (tmp_path / f"whole{ending}").read_bytes()
    np.testing.assert_array_equal(found.losses, whole.losses)
    np.testing.assert_array_equal(load(Tolerance, tmp_path / "cut").losses, whole.losses)
    with pytest.raises(ValueError, match=r"holds another evaluation \(other digest\)"):
        tolerance(task_of(net(8), logits=logits), damages, out=tmp_path / "cut", **options)
    with pytest.raises(ValueError, match=r"other data\)"):
        tolerance(task, damages, out=tmp_path / "cut", **{**options, "data": "others"})


def test_the_seed_is_all_that_chance_depends_on():
    first, again, other = (tolerance(task_of(net(9)), ["noise"], draws=2, seed=s, progress=False) for s in (1, 1, 2))
    np.testing.assert_array_equal(first.losses, again.losses)
    assert not np.isclose(first.losses[1:, :2], other.losses[1:, :2]).any()
    assert not np.isclose(first.losses[1:, 0], first.losses[1:, 1]).any()


def test_less_precision_is_close_and_told(tmp_path):
    exact, rough = (
        tolerance(task_of(net(9)), ["noise"], draws=2, precision=p, progress=False) for p in ("fp32", "bf16")
    )
    off = np.abs(rough.losses - exact.losses)[1:]
    assert 1e-6 < off.max() < 0.05 and rough.precision == "bf16"
    with pytest.raises(ValueError, match="precision must be one of 'fp32', 'tf32', 'bf16', not 'half'"):
        tolerance(task_of(net(9)), precision="half")


def test_progress(capsys):
    tolerance(linear()[0], {"pruning": [0.5]})
    assert "2/2" in capsys.readouterr().err


# --- results --------------------------------------------------------------------------------------------------------


def test_figures_are_plain_and_whole():
    figures = tolerance_of(task_of(net(9), logits=logits), draws=3)
    assert json.loads(json.dumps(figures, allow_nan=False)) == figures
    assert figures["columns"] == ["as it is", "recalibrated"] and figures["draws"] == 3
    assert set(figures) == {"columns", "draws", "recalibration", "none", "noise", "pruning", "channel-bits"}
    assert set(figures["noise"]) == {"0.1", "0.2", "0.3", "0.4", "0.5"}
    names = lambda *kinds: {f"{what}{kind}" for what in ("loss", "error", "ece") for kind in kinds}  # noqa: E731
    assert set(figures["noise"]["0.3"]) == names("", "_sd", "_worst")
    assert set(figures["pruning"]["0.5"]) == names("", "_worst")
    assert all(len(pair) == 2 for pair in figures["noise"]["0.3"].values())
    assert set(tolerance_of(linear()[0], draws=1)["none"]["0"]) == {"loss", "loss_worst"}


def test_curves_and_other_figures():
    found = tolerance(task_of(net(9)), {"noise": [0.2, 0.4], "channel-bits": [8, 2]}, draws=4, progress=False)
    strengths, mean, sd = found.curve("noise", "accuracy", "recalibrated")
    assert strengths.tolist() == [0, 0.2, 0.4] and math.isnan(sd[0]) and (sd[1:] >= 0).all()
    np.testing.assert_allclose(mean[1:], 100 - found.errors[1:3, :, 1].mean(1))
    assert found.curve("channel-bits", "loss", "as it is")[0].tolist() == [8, 2]
    np.testing.assert_allclose(found.values("perplexity")[0, 0], np.exp(found.losses[0, 0]))
    assert (found.summary("accuracy")[2] <= found.summary("accuracy")[0]).all()


def test_a_picture_has_a_curve_for_each_name_and_column(tmp_path):
    pytest.importorskip("matplotlib")
    results = [tolerance(task_of(net(seed)), ["noise", "channel-bits"], draws=2, progress=False) for seed in (7, 8, 9)]
    figure = draw_tolerance({"one": results[:2], "two": results[2:]}, path=tmp_path / "tolerance.png")
    noise, bits = figure.axes
    assert [line.get_label() for line in noise.lines] == ["one", "one, recalibrated", "two", "two, recalibrated"]
    assert [line.get_linestyle() for line in noise.lines] == ["-", "--"] * 2
    between = np.mean([result.curve("noise", "accuracy", "as it is")[1] for result in results[:2]], axis=0)
    np.testing.assert_allclose(noise.lines[0].get_ydata(), between)
    assert noise.get_ylabel() == "accuracy, %" and bits.get_xlim()[0] > bits.get_xlim()[1]
    assert (tmp_path / "tolerance.png").stat().st_size > 3000
    assert len(draw_tolerance({"one": [tolerance(linear()[0], draws=2, progress=False)]}).axes) == 8


def test_refusals():
    task = task_of(net(9))
    with pytest.raises(ValueError, match=r"a damage must be one of 'noise', .*, not 'fire'"):
        tolerance(task, ["fire"])
    for kind, strength, sentence in (
        ("noise", -1, "noise takes a ratio of norms, a finite number of at least 0, not -1"),
        ("pruning", 1, "a share of the weights, from 0 to below 1"),
        ("tensor-bits", 1, "a whole number of bits from 2 to 16"),
        ("channel-bits", 2.5, "a whole number of bits from 2 to 16"),
    ):
        with pytest.raises(ValueError, match=sentence):
            tolerance(task, {kind: [strength]})
    with pytest.raises(ValueError, match="draws must be a whole number of at least 1"):
        tolerance(task, draws=0)
    with pytest.raises(TypeError, match="needs a Task"):
        tolerance(task.model)
    with pytest.raises(ValueError, match="the task has no batches"):
        tolerance(Task(task.model, loss, []))
    with pytest.raises(ValueError, match="there are no weights to damage"):
        tolerance(task, weights=[])
    with pytest.raises(ValueError, match="not a parameter of the task's model"):
        tolerance(task, weights=net(1).parameters())
    with torch.no_grad():
        task.model[0].weight[0] = math.nan
    with pytest.raises(ValueError, match="the weights are not finite"):
        tolerance(task)
    words = Task(nn.Embedding(5, 5), lambda m, b: F.cross_entropy(m(b[0]), b[1]), [(torch.arange(5), torch.arange(5))])
    assert "input-noise" not in tolerance(words, draws=1, progress=False).damages
    with pytest.raises(ValueError, match="input-noise needs inputs that are floating-point tensors"):
        tolerance(words, ["input-noise"])


def test_a_selection_of_the_weights_is_damaged():
    model = net(9)
    task, states = seen_by(task_of(model))
    tolerance(task, {"pruning": [0.9]}, weights=[model[4].weight], progress=False)
    assert torch.equal(states[4]["0.weight"], model[0].weight)
    assert (states[4]["4.weight"] == 0).sum() == round(0.9 * 18)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_captured():
    model = net(9).cuda()
    put = lambda data: [(x.cuda(), y.cuda()) for x, y in data]  # noqa: E731
    task = Task(model, loss, put(batches(1, 12, 12)), wrong=wrong, as_trained=put(batches(0, 16, 16)), logits=logits)
    found, plain = (tolerance(task, draws=2, graph=graph, progress=False) for graph in (True, False))
    np.testing.assert_allclose(found.losses, plain.losses, rtol=1e-4)


# --- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs")
    for method in ("base", "both"):
        changes = ["phases=1", "lr=0.1", "train_limit=200", "test_limit=100", f"method={method}", "seeds=0,1"]
        execution = Execution(out=str(out / method), device="cpu", progress=False)
        train(get("digits").with_changes(changes), execution)
    return [str(out / method / "digits" / f"seed-{seed}") for method in ("base", "both") for seed in (0, 1)]


def test_the_command(runs, tmp_path, capsys):
    out, rows = tmp_path / "tolerance", tmp_path / "rows.jsonl"
    words = ["tolerance", *runs, "--damage", "noise=0.3", "pruning=0.5,0.8", "channel-bits", "--draws", "2"]
    words += ["--out", str(out), "--results", str(rows), "--device", "cpu", "--quiet"]
    assert main(words) == 0
    shown = capsys.readouterr().out.splitlines()
    head = ["base/digits", "both/digits"]
    assert all(f"{name}: accuracy, as it is / recalibrated" in shown[0] for name in head)
    assert [line.split()[:2] for line in shown[1:5]] == [
        ["none", "0"],
        ["noise", "0.3"],
        ["pruning", "0.5"],
        ["pruning", "0.8"],
    ]
    found = [json.loads(line) for line in rows.read_text().splitlines()]
    assert [row["seed"] for row in found] == [0, 1, 0, 1]
    clean = [row["none"]["0"]["error"] for row in found]
    mean = [100 - (a + b) / 2 for a, b in zip(clean[0], clean[1], strict=True)]
    assert f"{mean[0]:.2f} / {mean[1]:.2f}" in shown[1]
    files = ["-".join(Path(run).parts[1:]) for run in runs]
    whole = load(Tolerance, out / files[0])
    assert whole.errors[0, 0].tolist() == clean[0] and whole.recalibration == 200
    assert (out / "tolerance.png").stat().st_size
    before = (out / f"{files[3]}.npz").read_bytes()
    folders = [str(Path(run).parent) for run in runs[::2]]  # of all their seeds
    assert main(["tolerance", *folders, *words[1 + len(runs) :]]) == 0  # it takes up what is done
    assert capsys.readouterr().out.splitlines() == shown
    assert (out / f"{files[3]}.npz").read_bytes() == before


def test_the_clean_figures_are_those_of_the_training(runs, tmp_path):
    out = tmp_path / "clean"
    assert main(["tolerance", runs[0], "--damage", "pruning=0", "--out", str(out), "--device", "cpu", "--quiet"]) == 0
    last = json.loads(Path(runs[0], "metrics.jsonl").read_text().splitlines()[-1])
    found = load(Tolerance, out / "-".join(Path(runs[0]).parts[1:]))
    assert found.errors[0, 0, 0] == pytest.approx(100 - last["test_accuracy"])
    assert found.losses[1, 0, 0] == found.losses[0, 0, 0] == pytest.approx(last["test_loss"], rel=1e-5)


def test_what_the_command_cannot_take(runs, tmp_path, capsys):
    for words, sentence in (
        (["--damage", "noise=x"], "--damage noise=x is not NAME=NUMBER,NUMBER"),
        (["--damage", "fire"], "a damage must be one of"),
        (["--draws", "0"], "draws must be a whole number"),
    ):
        assert main(["tolerance", runs[0], *words, "--out", str(tmp_path / "x"), "--device", "cpu", "--quiet"]) == 2
        assert sentence in capsys.readouterr().err


def test_every_damage_is_documented():
    text = (Path(__file__).parent.parent / "docs" / "analysis.md").read_text()
    assert all(f"`{name}`" in text for name in DAMAGES)


def test_texts_have_a_perplexity_and_speech_a_word_error_rate(tmp_path, capsys):
    for name, changes, figure in (("words", ["lr=1.0"], "perplexity"), ("utterances", ["lr=0.003"], "error")):
        execution = Execution(out=str(tmp_path), device="cpu", progress=False)
        (result,) = train(get(name).with_changes(["phases=1", *changes]), execution)
        out, run = tmp_path / name, tmp_path / name / "seed-0"
        words = ["tolerance", str(run), "--damage", "channel-bits=2", "--out", str(out), "--device", "cpu", "--quiet"]
        assert main(words) == 0
        assert f"{name}: {figure}, as it is" in capsys.readouterr().out
        found = load(Tolerance, out / "-".join(run.parts[1:]))
        assert found.losses[1, 0, 0] != found.losses[0, 0, 0]
        if name == "utterances":
            assert found.errors[0, 0, 0] == pytest.approx(result["test_wer"])
            assert found.losses[0, 0, 0] == pytest.approx(result["test_loss"], rel=1e-5)


def test_the_program_of_the_guide(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    guide = (Path(__file__).parent.parent / "docs" / "hardware.md").read_text()
    program = guide.split("```python\n")[1].split("```")[0]
    assert len([line for line in program.splitlines() if line]) <= 25
    space = {}
    torch.manual_seed(0)
    exec(compile(program, "hardware.md", "exec"), space)
    assert (tmp_path / "tolerance.png").stat().st_size > 3000
    assert all(results[0].errors[0, 0, 0] < 10 for results in space["runs"].values())


def test_a_recipe_asks_for_it(tmp_path):
    changes = ["phases=1", "lr=0.1", "train_limit=200", "test_limit=100", "tolerance=true"]
    execution = Execution(out=str(tmp_path), device="cpu", progress=False, results=str(tmp_path / "rows.jsonl"))
    (result,) = train(get("digits").with_changes(changes), execution)
    figures = json.loads((tmp_path / "rows.jsonl").read_text())["tolerance"]
    assert figures == result["tolerance"] and figures["draws"] == 10
    assert set(figures["noise"]) == {"0.1", "0.2", "0.3", "0.4", "0.5"} and len(figures["columns"]) == 2
    assert figures["none"]["0"]["error"][0] == pytest.approx(100 - result["test_accuracy"])
    (plain,) = train(get("digits").with_changes([*changes[:-1], "name=plain"]), execution)
    assert "tolerance" not in plain and plain["test_loss"] == result["test_loss"]
