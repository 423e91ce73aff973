"""The engine against loops written by hand, bit for bit; and what it does around them."""

import json
import math
import weakref
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.optim import SGD, AdamW
from torch.optim.swa_utils import AveragedModel, get_swa_multi_avg_fn, update_bn

from ssgd import SSGD, models
from ssgd.core.noise import mix
from ssgd.data import registry
from ssgd.files import DiskProblem
from ssgd.methods import METHODS
from ssgd.recipes import get
from ssgd.safetensors import read_safetensors
from ssgd.train import Execution, Recipe, RunDir, classify, compare, progress, train
from ssgd.train.distributed import Ranks
from ssgd.train.engine import drive
from ssgd.train.job import Job, Sources
from ssgd.train.progress import Progress
from ssgd.train.run import Diverged, Run

CPU = torch.device("cpu")
SMALL = Recipe(
    name="small",
    model="small-cnn",
    data="digits",
    train_limit=200,
    test_limit=100,
    phases="2",
    lr=(0.1,),
    weight_decay=5e-4,
    batch=50,
)


def small(**changes):
    return replace(SMALL, **changes)


@pytest.fixture
def quiet(tmp_path):
    return Execution(out=str(tmp_path / "runs"), device="cpu", progress=False)


def source(recipe=SMALL):
    limits = {"train_limit": recipe.train_limit, "test_limit": recipe.test_limit}
    return registry.load(recipe.data, device=CPU, dtype=torch.float32, **limits)


def run_of(recipe, seed=0, data=None):
    return Run(recipe, seed, data or source(recipe), CPU, Ranks())


def folder(execution, recipe=SMALL, seed=0):
    return execution.place(recipe, seed)


def trained(recipe, execution, seed=0):
    """The weights and the metrics that a run of the engine leaves, as bytes."""
    train(recipe, execution)
    place = folder(execution, recipe, seed)
    return (place / "weights.safetensors").read_bytes(), (place / "metrics.jsonl").read_bytes()


def fresh_net(seed=0):
    torch.manual_seed(mix(seed, 0))
    return models.build("small-cnn", 10, 1).to(memory_format=torch.channels_last)


def sgd(net, lr=0.1):
    return SGD(net.parameters(), lr, momentum=0.9, weight_decay=5e-4, fused=True)


def batches(epochs, seed=0, rates=lambda moment: 0.1, base=None):
    """What the engine trains on, with the rate of each step set."""
    data = source()
    for epoch in epochs:
        for step in range(4):
            for group in base.param_groups:
                group["lr"] = rates(epoch + step / 4)
            yield data.epoch(seed, epoch).batch(step, 50)


def plain_step(net, base, x, y):
    loss = F.cross_entropy(net(x), y)
    loss.backward()
    base.step()
    base.zero_grad()
    return loss.item()


def noisy_step(net, opt, x, y, split=False):
    for point, (xb, yb) in opt.split(x, y) if split else ((point, (x, y)) for point in opt.points()):
        with point:
            F.cross_entropy(net(xb), yb).backward()
    opt.step()
    opt.zero_grad()


def assert_ends_as(net, execution, recipe=SMALL, seed=0):
    found = read_safetensors(folder(execution, recipe, seed) / "weights.safetensors")
    expected = net.state_dict()
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor), name


def judged(net, part="test"):
    """Mean loss and accuracy."""
    data = source()
    net.eval()
    with torch.no_grad():
        found = [(net(x), y) for x, y in (data.test_batches() if part == "test" else data.clean_train_batches())]
    logits, labels = torch.cat([logits for logits, _ in found]), torch.cat([y for _, y in found])
    return F.cross_entropy(logits, labels).item(), 100 * (logits.argmax(1) == labels).float().mean().item()


# --- the oracle: loops written by hand --------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 7])
def test_sgd_is_a_plain_torch_loop(quiet, seed):
    """In weights and running statistics bit for bit, and in what is said about them."""
    row = train(small(phases="1-2", lr=(0.1, 0.02), seeds=(seed,)), quiet)[0]
    net = fresh_net(seed)
    base = sgd(net)
    steps = batches(range(3), seed, rates=lambda moment: 0.1 if moment < 1 else 0.02, base=base)
    losses = [plain_step(net, base, x, y) for x, y in steps]
    assert_ends_as(net, quiet, seed=seed)
    metrics = RunDir(folder(quiet, seed=seed)).metrics()
    means = [sum(losses[i : i + 4]) / 4 for i in (0, 4, 8)]
    assert [line["loss"] for line in metrics] == pytest.approx(means, rel=1e-5)
    assert [line["lr"] for line in metrics] == [0.1, 0.02, 0.02]
    assert (row["test_loss"], row["test_accuracy"]) == pytest.approx(judged(net), rel=1e-5)
    assert (row["train_loss"], row["train_accuracy"]) == pytest.approx(judged(net, "train"), rel=1e-5)


def test_the_rate_falls_within_epochs(quiet):
    train(small(anneal="cosine", warm_up=0.5), quiet)
    net = fresh_net()
    base = sgd(net)

    def rates(moment):
        return 0.1 * (1 + math.cos(math.pi * moment / 2)) / 2 * min(1.0, moment / 0.5)

    for x, y in batches(range(2), rates=rates, base=base):
        plain_step(net, base, x, y)
    assert_ends_as(net, quiet)


def test_another_base(quiet):
    train(small(optimizer="adamw", lr=(0.003,), weight_decay=0.1), quiet)
    net = fresh_net()
    base = AdamW(net.parameters(), 0.003, weight_decay=0.1, fused=True)
    for x, y in batches(range(2), rates=lambda moment: 0.003, base=base):
        plain_step(net, base, x, y)
    assert_ends_as(net, quiet)


@pytest.mark.parametrize(("method", "split"), [("ssgd", False), ("split", True)])
def test_noise_is_that_of_the_optimizer_by_hand(quiet, method, split):
    train(small(method=method, level=0.3, law="uniform"), quiet)
    net = fresh_net()
    opt = SSGD(sgd(net), 0.3, model=net, law="uniform", seed=mix(0, 1, 0))
    for x, y in batches(range(2), base=opt):
        noisy_step(net, opt, x, y, split)
    assert_ends_as(net, quiet)


@pytest.mark.parametrize("mark", ["S", "(split:0.3)"])
def test_a_phase_changes_the_method_and_keeps_the_momentum(quiet, mark):
    recipe = small(phases=f"1-1{mark}-1", lr=(0.1, 0.05, 0.01), method="ssgd", level=0.3)
    train(recipe, quiet)
    net = fresh_net()
    base = sgd(net)
    for x, y in batches(range(1), base=base):
        plain_step(net, base, x, y)
    opt = SSGD(base, 0.3, model=net, seed=mix(0, 1, 1))
    for x, y in batches(range(1, 2), rates=lambda moment: 0.05, base=base):
        noisy_step(net, opt, x, y, split=mark != "S")
    for x, y in batches(range(2, 3), rates=lambda moment: 0.01, base=base):
        plain_step(net, base, x, y)
    assert_ends_as(net, quiet)
    found = [(line["method"], line["level"]) for line in RunDir(folder(quiet)).metrics()]
    assert found == [("sgd", None), ("ssgd" if mark == "S" else "split", 0.3), ("sgd", None)]


def test_neighbouring_phases_of_one_method_are_one_training(quiet):
    """Only the rate changes; the noise goes on."""
    train(small(phases="1-1", lr=(0.1, 0.02), method="ssgd", level=0.3), quiet)
    net = fresh_net()
    opt = SSGD(sgd(net), 0.3, model=net, seed=mix(0, 1, 0))
    for x, y in batches(range(2), rates=lambda moment: 0.1 if moment < 1 else 0.02, base=opt):
        noisy_step(net, opt, x, y)
    assert_ends_as(net, quiet)


def test_swa_is_judged_and_kept_as_the_average_with_statistics_of_its_own(quiet):
    row = train(small(method="swa"), quiet)[0]
    net = fresh_net()
    base = sgd(net)
    average = AveragedModel(net, multi_avg_fn=get_swa_multi_avg_fn())
    for x, y in batches(range(2), base=base):
        plain_step(net, base, x, y)
        average.update_parameters(net)
    data = source()
    update_bn((data.epoch(0, 1).batch(step, 50)[0] for step in range(4)), average.module)
    assert (row["test_loss"], row["test_accuracy"]) == pytest.approx(judged(average.module), rel=1e-5)
    assert (row["train_loss"], row["train_accuracy"]) == pytest.approx(judged(average.module, "train"), rel=1e-5)
    assert_ends_as(average.module, quiet)


# --- all methods ------------------------------------------------------------------------------------------------------


def of(method):
    """A short recipe of any method."""
    restarts = {"phases": "1*1", "epochs": 2} if METHODS[method].warm_restarts else {}
    return small(method=method, name=method, train_limit=100, **restarts)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "mirror"])
def test_every_method_trains(quiet, method):
    row = train(of(method), quiet)[0]
    metrics = RunDir(folder(quiet, of(method))).metrics()
    assert len(metrics) == row["epochs"] == 2 * METHODS[method].epochs
    assert row["passes"] == row["epochs"] * METHODS[method].passes and row["method"] == method
    for line in [row, *metrics]:
        assert all(math.isfinite(value) for value in line.values() if isinstance(value, float))
    before = fresh_net().state_dict()
    after = read_safetensors(folder(quiet, of(method)) / "weights.safetensors")
    assert not torch.equal(after["body.0.weight"], before["body.0.weight"])


def test_mirror_without_ranks_says_what_it_needs(quiet):
    with pytest.raises(ValueError, match="method=mirror needs an even number of processes, not 1"):
        train(of("mirror"), quiet)


def test_settings_reach_the_method():
    opt = run_of(small(method="m-arwp", level=0.02, settings={"share": 0.3, "eta": 2.0})).opt
    assert (opt.param_groups[0]["noise"], opt.share, opt.eta) == (0.02, 0.3, 2.0)
    opt = run_of(small(method="ssgd", level=0.2, law="sign", perturb="dense", bn_stats="once")).opt
    assert (opt.law.name, len(opt.selected), opt.bn_stats) == ("sign", 1, "once")
    assert run_of(small(method="ema", level=0.9)).opt.decay == 0.9
    opt = run_of(small(method="sam", level=0.2, perturb="dense", bn_stats="once")).opt
    assert (opt.param_groups[0]["rho"], len(opt.selected), opt.bn_stats) == (0.2, 1, "once")


def test_dropout_has_the_level_of_its_phase(quiet, tmp_path):
    elsewhere = replace(quiet, out=str(tmp_path / "elsewhere"))
    half = trained(small(method="dropout", level=0.5), quiet)[0]
    assert trained(small(phases="2(dropout:0.5)"), elsewhere)[0] == half
    assert trained(small(name="less", method="dropout", level=0.2), elsewhere)[0] != half
    for phases in ("1-1(dropout:0.5)", "1(dropout:0.2)-1(dropout:0.5)"):
        with pytest.raises(ValueError, match="dropout changes the model and so needs all phases for itself"):
            run_of(small(phases=phases))


def test_bfloat16_trains_over_weights_of_full_precision(quiet):
    row = train(small(precision="bf16", recompute_bn=True), quiet)[0]
    assert math.isfinite(row["test_loss"]) and row["recipe"]["precision"] == "bf16"
    found = read_safetensors(folder(quiet) / "weights.safetensors")
    assert found["head.weight"].dtype == torch.float32 and not torch.equal(
        found["head.weight"], fresh_net().head.weight
    )


# --- equal runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ssgd", "dropout"])
def test_two_runs_are_equal_byte_for_byte(quiet, tmp_path, method):
    recipe = small(method=method)
    first = trained(recipe, quiet)
    torch.rand(3)
    assert trained(recipe, replace(quiet, out=str(tmp_path / "again"))) == first
    assert trained(replace(recipe, seeds=(1,)), quiet, seed=1) != first


def test_a_seed_is_one_initialisation_and_one_data_order_for_all_methods():
    found = {0: set(), 1: set()}
    for method in ("sgd", "ssgd", "split", "dropout", "swa"):
        for seed in found:
            run = run_of(small(method=method), seed)
            start, seen = run.net.head.weight.detach().clone(), []
            hook = run.net.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
            for _ in range(4):
                run.step()
            hook.remove()
            run.finish_epoch()
            run.net.register_forward_pre_hook(lambda _, inputs, seen=seen: seen.append(inputs[0]))
            run.step()
            images = torch.cat(seen[1::2] if method == "ssgd" else seen)  # which sees every batch twice
            found[seed].add((start.numpy().tobytes(), images.numpy().tobytes()))
    assert len(found[0]) == len(found[1]) == 1 and not found[0] & found[1]


def test_runs_side_by_side_are_what_they_are_alone(quiet, tmp_path):
    recipes = [small(name="plain", seeds=(0, 1)), small(name="noisy", method="ssgd", seeds=(1, 0))]
    compare(recipes, quiet)
    alone = replace(quiet, out=str(tmp_path / "alone"))
    for recipe in reversed(recipes):
        for seed in (1, 0):
            expected = trained(replace(recipe, seeds=(seed,)), alone, seed)
            place = folder(quiet, recipe, seed)
            assert ((place / "weights.safetensors").read_bytes(), (place / "metrics.jsonl").read_bytes()) == expected


def test_recomputed_statistics_leave_the_training_alone(quiet, tmp_path):
    as_usual, again = small(phases="3"), small(phases="3", recompute_bn=True)
    train(as_usual, quiet)
    elsewhere = replace(quiet, out=str(tmp_path / "again"))
    train(again, elsewhere)
    one, other = (read_safetensors(folder(where) / "weights.safetensors") for where in (quiet, elsewhere))
    statistics = {name for name in one if "running" in name}
    assert all(torch.equal(one[name], other[name]) for name in one.keys() - statistics if "tracked" not in name)
    assert statistics and not any(torch.equal(one[name], other[name]) for name in statistics)
    for mine, theirs in zip(*(RunDir(folder(where)).metrics() for where in (quiet, elsewhere)), strict=True):
        assert (mine["loss"], mine["accuracy"]) == (theirs["loss"], theirs["accuracy"])
        assert mine["test_loss"] != theirs["test_loss"]


@pytest.mark.parametrize("changes", [{"recompute_bn": True}, {"method": "ssgd"}, {"method": "swa"}])
def test_an_evaluation_leaves_no_trace(changes):
    run = run_of(small(**changes))
    for _ in range(3):
        run.step()
    before = {name: tensor.clone() for name, tensor in run.net.state_dict().items()}
    assert run.evaluate("test") == run.evaluate("test") and run.net.training
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.net.state_dict().items())


# --- results and failures ---------------------------------------------------------------------------------------------


def test_a_result_tells_what_statistics_gathered_again_would_bring(quiet):
    noisy = small(method="ssgd", level=0.5)
    (asked,) = train(replace(noisy, name="asked", recompute_bn=True), quiet)
    (row,) = train(noisy, quiet)
    assert row["test_accuracy_recomputed_bn"] == asked["test_accuracy"] != row["test_accuracy"]
    assert "test_accuracy_recomputed_bn" not in asked
    weights = read_safetensors(
        folder(quiet) / "weights.safetensors"
    )  # what was judged: with the statistics of the training
    again = read_safetensors(folder(quiet, replace(noisy, name="asked")) / "weights.safetensors")
    learned = [name for name in weights if name.endswith((".weight", ".bias"))]
    assert all(torch.equal(weights[name], again[name]) == (name in learned) for name in weights)


def test_a_result_says_all_about_its_run(quiet, tmp_path):
    recipe = small(method="ssgd", level=0.3, seeds=(3, 4))
    rows = train(recipe, replace(quiet, results=str(tmp_path / "new" / "results.jsonl")))
    assert " ".join(rows[0]) == (
        "experiment model data method mode level law phases weight_decay devices seed epochs passes seconds"
        " train_loss train_accuracy train_top5_accuracy test_loss test_accuracy test_top5_accuracy"
        " test_accuracy_recomputed_bn skipped device versions commit recipe curve curves"
    )
    expected = {"experiment": "small", "method": "ssgd", "mode": "both", "level": 0.3, "law": "sphere", "passes": 4.0}
    assert {key: rows[0][key] for key in expected} == expected
    assert [row["seed"] for row in rows] == [3, 4] and rows[0]["device"] == "cpu"
    assert [json.loads(line) for line in (tmp_path / "new" / "results.jsonl").open()] == rows
    for seed, row in zip((3, 4), rows, strict=True):
        assert RunDir(folder(quiet, seed=seed)).result() == row
        assert Recipe.from_json(row["recipe"]) == replace(recipe, seeds=(seed,), precision="fp32")
    names = {path.name for path in folder(quiet, seed=3).iterdir()}
    assert names == {
        "recipe.json", "environment.json", "metrics.jsonl", "timings.jsonl", "checkpoints", "weights.safetensors",
        "result.json", "lock",
    }  # fmt: skip


def test_a_row_that_a_kill_has_swallowed_is_added_by_the_next_call(quiet, tmp_path):
    file = tmp_path / "results.jsonl"
    told = replace(quiet, results=str(file))
    rows = train(small(seeds=(3, 4)), told)
    whole = file.read_bytes()
    assert train(small(seeds=(3, 4)), told) == rows and file.read_bytes() == whole
    file.write_bytes(whole.splitlines(keepends=True)[1])
    assert train(small(seeds=(3, 4)), told) == rows
    assert sorted(file.read_bytes().splitlines()) == sorted(whole.splitlines())


def test_the_result_is_that_of_the_last_epoch_not_of_the_best(quiet):
    row = train(small(phases="6-1", lr=(0.1, 30.0)), quiet)[0]
    metrics = RunDir(folder(quiet)).metrics()
    accuracies = [line["test_accuracy"] for line in metrics]
    assert row["test_accuracy"] == accuracies[-1] < max(accuracies) - 10
    assert row["test_loss"] == metrics[-1]["test_loss"]


def test_evaluations_are_as_rare_as_asked_and_the_last_is_made(quiet):
    train(small(phases="5", evaluate_every=2), quiet)
    assert [line["epoch"] for line in RunDir(folder(quiet)).metrics() if "test_loss" in line] == [2, 4, 5]


def test_held_out_images_stand_in_for_the_test_set(quiet):
    row = train(small(train_limit=None, held_out=800, phases="1"), quiet)[0]
    steps = len(RunDir(folder(quiet)).metrics()) * 4  # 200 of 1,000 are left to train on
    assert (folder(quiet) / "checkpoints" / f"step-{steps:08d}.pt").exists()
    assert row["test_accuracy"] * 8 % 1 == pytest.approx(0, abs=1e-6)


def test_more_than_five_classes_have_the_first_five_too():
    run = run_of(small())
    found = run.evaluate("test")
    assert list(found) == ["test_loss", "test_accuracy", "test_top5_accuracy"]
    assert 100 > found["test_top5_accuracy"] > found["test_accuracy"]
    run.source.classes = 5
    assert list(run.evaluate("test")) == ["test_loss", "test_accuracy"]


def test_a_run_that_diverges_does_so_alone(quiet):
    bad, good = small(name="bad", lr=(1e6,), phases="4"), small(name="good")
    jobs = compare([bad, good], quiet)
    assert isinstance(jobs[0].failure, Diverged) and jobs[0].result is None
    assert "lower lr or the level" in str(jobs[0].failure)
    assert jobs[1].failure is None and jobs[1].result["test_accuracy"] > 15
    assert RunDir(folder(quiet, bad)).result() is None
    with pytest.raises(Diverged, match=r"the (test )?loss is (nan|inf) after epoch \d: lower lr or the level"):
        train(bad, quiet)


def test_a_last_step_that_diverges_is_seen_by_the_test_loss(quiet):
    recipe = small(lr=(1e30,), phases="1", train_limit=64, batch=64)
    with pytest.raises(Diverged, match=r"the test loss is (nan|inf) after epoch 1: lower lr or the level"):
        train(recipe, quiet)
    assert RunDir(folder(quiet)).result() is None


def test_a_results_file_that_cannot_be_is_refused_before_the_training(quiet, tmp_path):
    with pytest.raises(ValueError, match=r"is a folder: name a file in it"):
        replace(quiet, results=str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(DiskProblem, match=r"results\.jsonl could not be written"):
        train(small(), replace(quiet, results=str(tmp_path / "file" / "results.jsonl")))
    assert not folder(quiet).exists()


class Bar:
    """Tqdm's, without a terminal."""

    total = passed = 0.0

    def update(self, samples):
        self.passed += samples

    def __getattr__(self, _):
        return lambda *_, **__: None


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


def test_what_was_cut_in_another_way_is_stepped_as_this_run_steps():
    """Under FSDP Adam is not fused; its counters must go where the weights are, which the saved groups decide."""
    recipe = small(optimizer="adam", lr=(1e-3,))
    cut, run = run_of(recipe), run_of(recipe)
    cut.step()
    state = cut.state()
    state["optimizer"]["param_groups"] = [{**group, "fused": False} for group in state["optimizer"]["param_groups"]]
    for entry in state["optimizer"]["state"].values():
        entry["step"] = entry["step"].double()  # loaded as it is, or as float32 beside the weights
    run.load(state)
    assert all(group["fused"] and not group["capturable"] for group in run.opt.param_groups)
    assert {entry["step"].dtype for entry in run.opt.state.values()} == {torch.float32}


def test_torchs_switches_suit_all_recipes(quiet, monkeypatch):
    """Where every batch has a length of its own, trying all algorithms for each would cost more than it saves."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    monkeypatch.setattr("ssgd.train.engine.drive", lambda *_: None)
    speech = replace(get("utterances"), precision="fp32")
    for recipes, tried in (([small()], True), ([small(), speech], False), ([speech, small()], False)):
        compare(recipes, quiet)
        assert torch.backends.cudnn.benchmark is tried


def test_one_process_has_one_precision(quiet):
    with pytest.raises(ValueError, match="one precision, not in bf16 and fp32"):
        compare([small(), small(name="other", precision="bf16")], quiet)


def test_two_recipes_of_one_name_are_refused(quiet):
    with pytest.raises(ValueError, match="two recipes have the same name and would share a folder"):
        compare([small(), small(method="ssgd")], quiet)
    assert not folder(quiet).exists()


def test_a_finished_run_is_read_and_not_trained_again(quiet, monkeypatch):
    first = train(small(), quiet)
    before = {path: path.stat().st_mtime_ns for path in folder(quiet).rglob("*")}
    monkeypatch.setattr(Run, "__init__", None)
    assert train(small(), quiet) == first
    assert {path: path.stat().st_mtime_ns for path in folder(quiet).rglob("*")} == before


def test_more_seeds_train_only_what_is_new(quiet):
    first = train(small(), quiet)
    assert train(small(seeds=(0, 1)), quiet)[:1] == first


def test_another_recipe_in_the_folder_is_refused(quiet):
    train(small(), quiet)
    with pytest.raises(ValueError, match=r"another recipe:\n  lr: here \[0\.1\], asked \[0\.2\]"):
        train(small(lr=(0.2,)), quiet)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "resnet21"}, "no model called 'resnet21'"),
        ({"data": "nowhere"}, "no data set called 'nowhere'"),
        ({"batch": 500}, "a batch of 500 cannot be filled from 200 training samples"),
        ({"method": "ssgd", "level": -1.0}, "the noise level is"),
    ],
)
def test_what_cannot_be_trained_says_why(quiet, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        train(small(**changes), quiet)


@pytest.mark.parametrize(
    ("data", "kind", "model", "other"),
    [
        ("digits", "images", "sgcn-small", "speech"),
        ("digits", "images", "lstm-tiny", "language"),
        ("fake-text", "language", "small-cnn", "images"),
        ("fake-speech", "speech", "lstm-tiny", "language"),
    ],
)
def test_a_model_for_another_kind_of_data_is_refused(data, kind, model, other):
    with pytest.raises(ValueError, match=f"{model} is for {other}, and {data} is {kind}: choose another"):
        run_of(small(model=model, data=data))


def test_evaluation_leaves_every_module_in_its_mode():
    net = models.build("small-cnn", 10, 1)
    frozen = next(module for module in net.modules() if isinstance(module, torch.nn.BatchNorm2d))
    frozen.eval()
    seen = []
    frozen.register_forward_hook(lambda *_: seen.append(net.training))
    batch = torch.randn(4, 1, 8, 8), torch.randint(10, (4,))
    classify.count(net, [batch], nullcontext, torch.device("cpu"))
    assert seen == [False] and net.training and not frozen.training


def test_compilation_is_told(quiet, monkeypatch, capsys):
    monkeypatch.setattr(progress, "LONG", 0.0)
    monkeypatch.setattr(Run, "compiles_next", property(lambda run: run.position == 0))
    train(small(phases="1"), replace(quiet, progress=True))
    told = capsys.readouterr().err
    assert "compiling, a minute at most" in told and told.count("compiled in 0 s") == 1
