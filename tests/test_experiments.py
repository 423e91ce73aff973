"""Experiments: what they are made of, what counts as done, how they are run, and what they leave."""

import json
import math
import re
import shutil
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ssgd import paper_level
from ssgd.analysis import Spectrum, Surface
from ssgd.analysis import results as analysis
from ssgd.cli.main import main
from ssgd.lab.experiments import (
    EXPERIMENTS,
    SCALES,
    Picture,
    Results,
    experiment,
    experiments,
    get,
    names,
    plan,
    questions,
    wording,
)
from ssgd.lab.experiments.cells import smoke
from ssgd.lab.experiments.identity import identity
from ssgd.lab.experiments.planning import expected_seconds, longest_first
from ssgd.lab.experiments.rows import Row
from ssgd.lab.experiments.running import branch, carry_out
from ssgd.lab.train import Execution, Recipe, train
from ssgd.lab.train.checkpoint import read_safetensors
from ssgd.lab.train.engine import Stopped
from ssgd.lab.train.rundir import RunDir

from .test_results import NEEDED as OF_A_ROW
from .tiny_experiments import cut_after, made_of, tiny

COMMITTED = Path(__file__).parent.parent / "results"
NEEDED = OF_A_ROW | {"scale", "recipe", "curve"}


def row_of(recipe, seed=0, **more):
    recipe = replace(recipe, seeds=(seed,)).resolved("cpu")
    told = {name: getattr(recipe, name) for name in ("model", "data", "method", "phases")}
    return Row(
        {"experiment": recipe.name, "seed": seed, "recipe": recipe.to_json(), **told, "test_accuracy": 50.0, **more}
    )


def written(name):
    return [json.loads(line) for line in Path(f"results/{name}.jsonl").read_text().splitlines()]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Execution(device="cpu", progress=False)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    return tmp_path_factory.mktemp("all")


# --- what experiments are made of -------------------------------------------------------------------------------------


def test_every_table_and_figure_of_the_paper_has_an_experiment():
    tables = [*(f"table{n}" for n in (1, 2, 3, 4, 5)), "tableA1", "tableA2"]
    figures = [*(f"fig{n}" for n in range(2, 8)), *(f"figA{n}" for n in range(1, 7))]
    ours = [
        "baseline",
        "noise_units",
        "ablations",
        "equal_cost",
        "tune",
        "front",
        "tolerance",
        "front-text",
        "tolerance-text",
        "tolerance-digits",
        "other_tasks",
    ]
    assert {one.name for one in experiments() if one.part} == {*tables, *figures, "comparison"}
    assert [one.name for one in experiments() if not one.part] == ours
    assert [one.name for one in experiments()] == list(EXPERIMENTS)


def test_a_name_is_one_training_wherever_it_stands():
    known = {}
    for one in experiments():
        for cell in (*one.cells, *one.also):
            if cell.make is not None:
                assert known.setdefault(cell.name, cell.recipe) == cell.recipe, (one.name, cell.name)


def test_a_recipe_is_built_when_it_is_asked_for(monkeypatch):
    for make in EXPERIMENTS.values():
        make.cache_clear()
    built = []
    monkeypatch.setattr("ssgd.lab.experiments.cells.replace", lambda recipe, **names: built.append(names) or recipe)
    assert len(names()) > 500 and not built
    get("table1/cifar10/75-25S-25S")
    assert built == [{"name": "table1/cifar10/75-25S-25S"}]
    for make in EXPERIMENTS.values():
        make.cache_clear()


def test_levels_of_the_paper_are_ratios_of_norms():
    assert paper_level(0.5) == 0.5 / math.sqrt(3)
    assert get("table2/cifar10/resnet20/both-0.29").level == get("fig3/smoothout/0.29").level == paper_level(0.5)
    assert get("noise_units/sphere/0.5").level == 0.5


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_paper_recipes_have_names_and_smaller_scales_do_less(name):
    runs = {scale: plan(experiment(name), scale, Results("nowhere")).runs for scale in SCALES}
    for run in runs["paper"]:
        assert replace(run.recipe, seeds=get(run.recipe.name).seeds) == get(run.recipe.name)
    known = {(identity(run.recipe), run.seed) for run in runs["paper"]}
    assert {(identity(run.recipe), run.seed) for run in runs["small"]} <= known
    passes = [sum(run.passes for run in runs[scale]) for scale in SCALES]
    assert passes[0] < passes[1] <= passes[2] and len(runs["smoke"]) <= len(runs["small"]) <= len(runs["paper"])


def test_the_papers_number_of_runs():
    counted = {name: len(plan(experiment(name), "paper", Results("nowhere")).runs) for name in EXPERIMENTS}
    assert counted["table1"] == 2 * 5 * 5 and counted["table2"] == 2 * 6 * 3 * 5 == 2 * counted["tableA1"]
    assert counted["fig3"] == (4 * 10 + 2) * 5 and counted["figA1"] == (6 * 10 + 2) * 5
    assert counted["noise_units"] == (1 + 2 * 10) * 3 and counted["baseline"] == 2 * 3 * 3
    assert counted["ablations"] == 5 * 3 * 3 * 3  # nets, decays, methods, seeds


@pytest.mark.parametrize(
    "name", ["table1/cifar100/75-25S-25S", "fig5/both-sgdr/4096", "fig3/conv/0.29", "table5/large/base"]
)
def test_smoke_keeps_methods_and_phases(name):
    recipe, short = get(name), smoke(get(name))
    ways = [dict.fromkeys((phase.method, phase.level) for phase in r.schedule.phases) for r in (recipe, short)]
    assert list(ways[0]) == list(ways[1]) and (short.perturb, short.distribution) == (
        recipe.perturb,
        recipe.distribution,
    )
    assert short.schedule.epochs <= 3 and short.name == name.replace("/", "/smoke/", 1)


def test_smoke_leaves_the_numbers_in_methods_names():
    assert smoke(Recipe(name="a/b", phases="25-50(sam-10:0.1)", lr=(0.1,))).phases == "1-1(sam-10:0.1)"


SPLIT_IN_TWO = Recipe(method="both", phases="2-1-2S", lr=(0.1,))  # noise goes by the number of its phase
CLIMBS_AT_LAST = Recipe(phases="2-2(sam:0.1)", lr=(0.1,))
DROPPED_AT_LAST = Recipe(phases="2-2(dropconnect:0.3)", lr=(0.1,))


# --- what counts as done ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (get("table1/cifar100/75-50-50"), get("table2/cifar100/resnet20/base"), True),
        (get("fig3/all/0.23"), get("table2/cifar100/resnet20/both-0.23"), True),
        (Recipe(method="smoothout"), Recipe(method="smoothout", distribution="uniform"), True),
        (Recipe(method="both"), Recipe(method="both", level=0.29, phases="75S-50S-50S"), True),
        (Recipe(distribution="sphere", perturb="conv"), Recipe(distribution="uniform"), True),
        (Recipe(), Recipe(seeds=(3,), evaluate_every=5), True),
        (Recipe(), Recipe(level=0.3), True),  # SGD has none
        (Recipe(), Recipe(lr=(0.2, 0.02, 0.002), lr_for_batch=256), True),
        (get("other_tasks/ptb-large/base"), get("table5/large/base"), True),
        (Recipe(method="both", phases="5S-5S", lr=(0.1,)), Recipe(method="both", phases="10", lr=(0.1,)), False),
        (Recipe(phases="5-5", lr=(0.1, 0.01)), Recipe(phases="10", lr=(0.1,)), False),
        (Recipe(phases="5-5", lr=(0.1, 0.01)), Recipe(phases="10", lr=(0.01,)), False),
        (Recipe(phases="5-5", lr=(0.1,)), Recipe(phases="10", lr=(0.1,)), True),
        (SPLIT_IN_TWO, replace(SPLIT_IN_TWO, phases="3-2S"), False),
        (Recipe(phases="2(ema)-2(ema:0.999)", lr=(0.1,)), Recipe(method="ema", phases="4", lr=(0.1,)), False),
        (Recipe(), Recipe(weight_decay=5e-4), False),
        (Recipe(), Recipe(held_out=5000), False),
        (Recipe(), Recipe(devices=4), False),
        (get("comparison/dropconnect"), get("comparison/dropconnect-conv"), False),
        (DROPPED_AT_LAST, replace(DROPPED_AT_LAST, perturb="conv"), False),
        (Recipe(), Recipe(method="halves"), False),
        (Recipe(method="both"), Recipe(method="both", distribution="uniform"), False),
        (Recipe(method="both"), Recipe(method="both", perturb="conv"), False),
        (Recipe(method="sam"), Recipe(method="sam", perturb="conv"), False),
        (Recipe(method="sam"), Recipe(method="sam", bn_stats="first"), False),
        (Recipe(method="sam"), Recipe(method="sam", distribution="uniform"), True),
        (SPLIT_IN_TWO, replace(SPLIT_IN_TWO, distribution="uniform"), False),
        (CLIMBS_AT_LAST, replace(CLIMBS_AT_LAST, bn_stats="first"), False),
        (Recipe(method="both"), Recipe(method="both", phases="75-50S-50S"), False),
        (Recipe(method="m-arwp"), Recipe(method="m-arwp", settings={"share": 0.3}), False),
    ],
)
def test_recipes_are_the_same_training_whatever_they_are_called(a, b, same):
    assert (identity(a) == identity(b)) == same


def test_the_committed_baseline_counts_wherever_it_occurs():
    results = Results(COMMITTED)
    assert not results.skipped
    assert not plan(experiment("baseline"), "paper", results).to_do
    done = [run.name for run in plan(experiment("table2"), "paper", results).runs if not run.to_do]
    assert {f"table2/{data}/resnet20/base/seed-{n}" for data in ("cifar10", "cifar100") for n in range(3)} <= {*done}


def test_a_precision_that_is_asked_for_must_be_that_of_the_row(tmp_path):
    results = Results(tmp_path)
    results.append("any", row_of(tiny(precision="bf16")))
    assert results.find(tiny(), 0) and results.find(tiny("other", precision="bf16"), 0)
    assert results.find(tiny(precision="fp32"), 0) is None and results.find(tiny(), 1) is None


def test_a_curve_that_is_needed_must_be_whole(tmp_path):
    results, recipe = Results(tmp_path), tiny()
    results.append("a", row_of(recipe))
    results.append("b", row_of(recipe, curve=[None, 50.0]))
    assert results.find(recipe, 0) and results.find(recipe, 0, ["curve"]) is None
    results.append("c", row_of(recipe, curve=[40.0, 50.0]))
    assert Results(tmp_path).find(recipe, 0, ["curve"])["curve"] == [40.0, 50.0]
    for needs in (("curve",), ()):
        assert not plan(made_of(recipe, needs=needs), "paper", Results(tmp_path)).to_do


def test_a_run_without_what_is_asked_of_it_is_made_again_beside_its_row(here):
    """As the rows of the front, which were made before there were figures of tolerance."""
    recipe, results = replace(tiny(), tolerance=True), Results("results")
    old, failed = (row_of(replace(recipe, tolerance=False), seed) for seed in (0, 1))
    results.append("test", old)
    results.append("test", Row({**failed, "diverged": "the loss is nan"}))
    assert not plan(made_of(tiny(seeds=(0, 1))), "paper", results).to_do
    todo = plan(made_of(replace(recipe, seeds=(0, 1))), "paper", results)
    assert [run.seed for run in todo.to_do] == [0]
    before = Path("results/test.jsonl").read_text()
    assert carry_out(todo, here, results) == {}
    assert Path("results/test.jsonl").read_text().startswith(before) and len(written("test")) == 3
    results = Results("results")
    assert not plan(made_of(recipe), "paper", results).to_do
    assert "tolerance" in results.of(made_of(recipe).cells[0])[0]


def test_rows_of_the_front_lack_tolerance_and_those_of_the_price_may_lack_statistics():
    results = Results(COMMITTED)
    made = {run.name: run for run in plan(experiment("front"), "paper", results).runs}
    assert made["front/cifar100/resnet20/both-0.17/seed-0"].to_do
    lacking = [
        run.name for run in plan(experiment("equal_cost"), "paper", results, only="cifar100/resnet20/base/").to_do
    ]
    assert lacking == [f"equal_cost/cifar100/resnet20/base/seed-{seed}" for seed in (1, 2)]


def test_a_row_that_lacks_what_a_plan_needs_is_passed_over(tmp_path, capsys):
    row = {"recipe": {"name": "x", "data": "digits", "model": "small-cnn"}, "seed": 0}
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n")
    assert Results(tmp_path).skipped == ["x.jsonl, line 1: has no experiment"]
    words = ["reproduce", "fig4", "--scale", "smoke", "--plan", "--results", str(tmp_path)]
    assert main(words) == 0 and "to do" in capsys.readouterr().out
    assert main([*words, "--limit", "-1"]) != 0 and "limit must be a whole number" in capsys.readouterr().err


def test_a_torn_line_is_passed_over_and_never_touched(tmp_path):
    file = tmp_path / "test.jsonl"
    before = json.dumps(row_of(tiny())).encode() + b'\n["no row"]\n{"experiment": "te'
    file.write_bytes(before)
    results = Results(tmp_path)
    assert len(results.rows) == 1 and [told.partition(":")[0][-1] for told in results.skipped] == ["2", "3"]
    results.append("test", row_of(tiny(), seed=1))
    assert file.read_bytes().startswith(before + b"\n") and file.read_bytes().endswith(b"}\n")
    assert [Results(tmp_path).find(tiny(), seed) is not None for seed in (0, 1, 2)] == [True, True, False]


@pytest.mark.parametrize("use", ["check_place", "alone", "append"])
def test_the_folder_of_results_is_made_when_it_is_needed(tmp_path, use):
    results = Results(tmp_path / "deep" / "results")
    assert not results.folder.exists()
    if use == "append":
        results.append("any", row_of(tiny()))
    else:
        with getattr(results, use)() or nullcontext():
            pass
    assert results.folder.is_dir()


def test_rows_begin_with_the_first_line(tmp_path):
    (tmp_path / "any.jsonl").touch()
    Results(tmp_path).append("any", row_of(tiny()))
    assert (tmp_path / "any.jsonl").read_text().startswith("{")


def test_a_row_of_another_version_is_passed_over(tmp_path):
    row = row_of(tiny())
    row["recipe"]["colour"] = "red"
    (tmp_path / "test.jsonl").write_text(json.dumps(row) + "\n")
    assert len(Results(tmp_path).skipped) == 1


# --- what it costs ----------------------------------------------------------------------------------------------------


def test_the_expected_time_comes_from_rows_of_the_same_net_and_device():
    recipes = tiny(method="both"), tiny("large", model="resnet20")
    runs = plan(made_of(*recipes), "paper", Results("nowhere")).runs
    assert [run.passes for run in runs] == [2, 1]
    told = {"passes": 4.0, "recipe": tiny().to_json()}
    rows = [{**told, "device": "cpu", "seconds": 8.0, "at_once": 2}, {**told, "device": "H200", "seconds": 1.0}]
    assert expected_seconds(runs, rows, "cpu", 1) == (8 / 2 / 4 * 2, {"resnet20"})
    assert expected_seconds(runs, rows, "H200", 4) == (1 / 4 / 4 * 2, {"resnet20"})
    assert expected_seconds(runs, rows, "other", 1) == (0, {"small-cnn", "resnet20"})
    odd = [{**rows[0], key: value} for key in ("seconds", "passes", "at_once") for value in (None, 0, math.nan)]
    assert expected_seconds(runs, odd, "cpu", 1) == (0, {"small-cnn", "resnet20"})


def test_a_row_without_a_curve_is_of_no_use_where_one_is_needed(tmp_path):
    (tmp_path / "test.jsonl").write_text(json.dumps({**row_of(tiny()), "curve": None}) + "\n")
    results = Results(tmp_path)
    assert results.find(tiny(), 0) is not None and results.find(tiny(), 0, ["curve"]) is None


def test_of_data_without_a_row_no_time_is_known_and_its_runs_begin_first():
    runs = plan(made_of(tiny("a"), tiny("b", data="nowhere")), "paper", Results("nowhere")).runs
    known = {"passes": 1.0, "seconds": 1.0, "device": "cpu", "recipe": tiny().to_json()}
    assert expected_seconds(runs, [known], "cpu", 1) == (1.0, {"small-cnn"})
    assert [run.label for run in longest_first(runs, [known], "cpu")] == ["b", "a"]


def test_side_by_side_the_longest_begin_first_and_unknown_nets_before_them(here, monkeypatch):
    recipes = tiny("a", seeds=(0, 1)), tiny("b", method="both", seeds=(0, 1)), tiny("c", model="resnet20")
    results = Results("results")
    found = plan(made_of(*recipes), "paper", results)
    begun = []
    monkeypatch.setattr(
        "ssgd.lab.experiments.on_ray.train_on_ray", lambda runs, *_: begun.append([r.name for r in runs])
    )
    carry_out(found, here, results, on="ray")
    known = {"passes": 1.0, "device": "cpu", "seconds": 1.0, "at_once": 1}
    results.rows.append({**known, "recipe": tiny().to_json()})
    carry_out(found, here, results, on="ray")
    results.rows.append({**known, "recipe": tiny(model="resnet20").to_json(), "seconds": 1.5})
    carry_out(found, here, results, on="ray")
    carry_out(found, here, results, on="ray", limit=3)  # of those that come first, seed by seed
    a, b, c = ["test/a"] * 2, ["test/b"] * 2, ["test/c"]
    assert begun == [[*b, "test/a", *c, "test/a"], [*c, *b, *a], [*b, *c, *a], ["test/b", "test/c", "test/a"]]


def test_equal_cost_takes_its_levels_from_those_that_tune_tries():
    tuned = {get(name).level for name in names() if name.startswith("tune/cifar100/resnet20/split-")}
    assert tuned == {paper_level(a) for a in (0.17, 0.26, 0.43)}
    rows = map(json.loads, (COMMITTED / "tune.jsonl").read_text().splitlines())
    best = max((row for row in rows if row["method"] == "split"), key=lambda row: row["test_accuracy"])
    assert best["level"] == questions.SPLIT
    for label, (method, level, phases) in questions.CONTENDERS.items():
        assert method not in ("sam", "asam") or level in questions.TUNED[method][2]
        recipe = get(f"equal_cost/cifar10/vgg16/{label}")
        assert (recipe.method, recipe.level, recipe.phases) == (method, level, phases)
        assert (recipe.distribution, recipe.held_out) == ("uniform", 0)
        assert 0 not in recipe.seeds and get("tune/cifar10/vgg16/base").seeds == (0,)


def test_front_states_every_level_of_noise_as_a_ratio_of_norms():
    recipes = [run.recipe for run in plan(experiment("front"), "paper", Results("nowhere")).runs]
    assert {(recipe.distribution, recipe.held_out, recipe.seeds) for recipe in recipes} == {("sphere", 5000, (0,))}
    told = {recipe.name.rpartition("/")[2]: (recipe.method, recipe.level, recipe.weight_decay) for recipe in recipes}
    assert told["one-sided-halves-0.25"] == ("one-sided-halves", 0.25, 5e-4)
    assert told["both-0.17"] == ("both", 0.17, 5e-4) and told["base-decay-2e-3"] == ("base", None, 2e-3)


def test_a_plan_says_all_before_anything_is_done(here, capsys):
    assert main(["reproduce", "fig7", "--plan", "--device", "cpu"]) == 0
    shown = capsys.readouterr().out
    assert "3 runs, 0 done, 3 to do\n" in shown and "\ncost: 525 passes over the data\n" in shown
    assert "expected time: not known: no finished row on cpu is of resnet20" in shown
    assert "then the plane from the solutions: results/fig7/plane.npz" in shown
    assert (
        main(["reproduce", "table2", "--plan", "--scale", "small", "--device", "cpu", "--only", "vgg6/*/seed-1"]) == 0
    )
    shown = capsys.readouterr().out
    assert "2 seeds" in shown and "6 runs, 0 done" in shown
    assert re.search(r"^table2/cifar100/vgg6/both-0.4 +1 +350$", shown, re.MULTILINE)
    both = plan(experiment("table2"), "small", Results("results"), only=("vgg6/*/seed-1", "wrn28-2/base/seed-0"))
    assert len(both.runs) == 6 + 2
    words = ["reproduce", "equal_cost", "--plan", "--device", "cpu", "--only", "equal_cost/cifar100/resnet20/*"]
    words += ["--limit", str(len(questions.CONTENDERS) + 1)]
    assert main(words) == 0
    listed = re.findall(r"^equal_cost/cifar100/resnet20/(\S+) +([\d, ]+?) +\d+$", capsys.readouterr().out, re.MULTILINE)
    assert dict(listed) == {**dict.fromkeys(questions.CONTENDERS, "1"), "base": "1, 2"}
    assert not list(Path().iterdir())


def test_a_plan_counts_the_rows_there_are(here, capsys):
    assert main(["reproduce", "baseline", "--plan", "--device", "cpu", "--results", str(COMMITTED)]) == 0
    assert "18 runs, 18 done, 0 to do" in capsys.readouterr().out
    assert main(["reproduce", "--results", str(COMMITTED)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(EXPERIMENTS)
    assert any(re.match(r"baseline +our own question +18 of 18 ", line) for line in lines)


def test_an_unknown_scale_gets_a_sentence():
    with pytest.raises(ValueError, match="scale must be one of 'smoke', 'small', 'paper', not 'tiny'"):
        plan(experiment("fig4"), "tiny", Results("nowhere"))


def test_an_unknown_name_gets_a_sentence(here, capsys):
    assert main(["reproduce", "tabel2"]) == 2
    assert "no experiment called 'tabel2': did you mean table2" in capsys.readouterr().err
    assert main(["reproduce", "fig4", "--only", "base", "typo", "--device", "cpu"]) == 2
    shown = capsys.readouterr()
    assert "no run of fig4 has 'typo' in its name, such as table2/cifar10/resnet20/" in shown.err and not shown.out
    assert main(["reproduce", "fig4", "--scale", "smoke", "--device", "cpu", "--limit", "0"]) == 2
    assert "limit must be a whole number of at least 1" in capsys.readouterr().err


# --- how it is run ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_runs_in_seconds_and_again_at_no_cost(name, shared, monkeypatch, capsys):
    monkeypatch.chdir(shared)
    words = ["reproduce", name, "--scale", "smoke", "--device", "cpu"]
    assert main(words) == 0
    assert "nothing is missing" in capsys.readouterr().out
    before = {path: path.stat().st_mtime_ns for path in shared.rglob("*")}
    monkeypatch.setattr("ssgd.lab.experiments.running.compare", None)
    assert main(words) == 0
    assert " 0 to do" in capsys.readouterr().out
    assert {path: path.stat().st_mtime_ns for path in shared.rglob("*")} == before
    one, results = experiment(name), Results("results")
    for run in plan(one, "smoke", results).runs:
        row = results.find(run.recipe, run.seed)
        assert row.keys() >= NEEDED and row["scale"] == "smoke"
        assert len(row["curve"]) == row["epochs"] and "loss" in row["curves"]
    if one.picture is not None:
        kind = Spectrum if one.picture.kind == "spectrum" else Surface
        labels = one.picture.of if kind is Spectrum else [one.picture.kind]
        for label in labels:
            found = analysis.load(kind, f"results/{one.picture.folder}/smoke/{label}")
            assert np.isfinite(found.values if kind is Spectrum else found.losses).all()
            if kind is Surface:
                assert found.names == list(one.picture.of.values())


def test_a_mixture_tells_the_distribution_of_its_noise_whatever_comes_last(shared, monkeypatch):
    monkeypatch.chdir(shared)
    assert main(["reproduce", "table1", "--scale", "smoke", "--device", "cpu"]) == 0
    runs = plan(experiment("table1"), "smoke", Results("results")).runs  # some were made under another name
    distributions = {(run.row["method"], run.row["phases"]): run.row["distribution"] for run in runs}
    assert (
        distributions["both", "1-1S-1"] == distributions["both", "1-1-1S"] == "uniform"
        and distributions["base", "1-1-1"] is None
    )


def test_speech_keeps_what_figure_6_draws(shared, monkeypatch):
    monkeypatch.chdir(shared)
    assert main(["reproduce", "fig6", "--scale", "smoke", "--device", "cpu"]) == 0
    rows = [run.row for run in plan(experiment("fig6"), "smoke", Results("results")).runs]
    assert {row["method"] for row in rows} == {"base", "both"}
    assert all(len(row["curves"][name]) == 2 for row in rows for name in ("loss", "valid_cer"))


def test_a_run_made_under_another_name_is_not_made_again(here):
    results = Results("results")
    assert carry_out(plan(made_of(tiny("a", seeds=(0, 1))), "paper", results), here, results) == {}
    other = plan(made_of(tiny("b", seeds=(0, 1, 2))), "paper", results)
    assert [run.seed for run in other.to_do] == [2]
    assert len(plan(made_of(tiny("a"), tiny("b")), "paper", Results("nowhere")).runs) == 1  # nor twice in one plan


def test_a_few_runs_at_a_time_seed_by_seed(here):
    experiment = made_of(tiny("a", seeds=(0, 1)), tiny("b", method="split", seeds=(0, 1)))
    for count in (1, 2, 4, 4):
        results = Results("results")
        assert carry_out(plan(experiment, "paper", results), here, results, limit=max(1, count // 2)) == {}
        rows = written("test")
        assert len(rows) == count
    assert [(row["method"], row["seed"]) for row in rows] == [("base", 0), ("split", 0), ("base", 1), ("split", 1)]
    assert [run.seed for run in plan(experiment, "paper", results, seeds=[7, 8]).to_do] == [7, 7, 8, 8]


def test_a_row_that_a_crash_has_swallowed_is_written_from_the_folder(here, monkeypatch):
    (result,) = train(tiny(), here)
    results = Results("results")
    monkeypatch.setattr("ssgd.lab.train.job.Run", None)  # nothing is trained
    assert carry_out(plan(made_of(tiny()), "paper", results), here, results) == {}
    assert written("test") == [{**result, "scale": "paper", "at_once": 1}]


def test_a_run_that_fails_does_so_alone_and_is_told(here, monkeypatch, capsys):
    bad = replace(tiny("bad"), phases="3", lr=(1e6,))
    made = made_of(bad, tiny("good"), tiny("far", data="nowhere"))
    monkeypatch.setitem(EXPERIMENTS, "test", lambda: made)
    assert main(["reproduce", "test", "--device", "cpu"]) == 1
    shown = capsys.readouterr()
    bad = r"^test/bad/seed-0 failed: the (test )?loss is \w+ after epoch \d: lower lr"
    assert re.search(bad, shown.err, re.MULTILINE)
    assert "test/far/seed-0 failed: no data set called 'nowhere'" in shown.err
    assert re.search(r"^test/good +1 of 1 +\d+\.\d\d ", shown.out, re.MULTILINE)
    assert re.search(r"^test/bad +0 of 1 +1 diverged ", shown.out, re.MULTILINE)
    assert "still missing: runs: 1; new rows go to results/test.jsonl" in shown.out
    assert sorted(row["experiment"] for row in written("test")) == ["test/bad", "test/good"]


def test_runs_of_two_precisions_take_turns(here):
    results = Results("results")
    experiment = made_of(tiny("a", precision="bf16"), tiny("b", precision="fp32"))
    assert carry_out(plan(experiment, "paper", results), here, results) == {}
    assert [row["recipe"]["precision"] for row in results.rows] == ["bf16", "fp32"]


def test_minutes_are_those_of_all_runs_and_the_same_command_goes_on(here, monkeypatch):
    experiment = made_of(tiny("a", precision="bf16"), tiny("b", precision="fp32"))
    plain = time.monotonic
    monkeypatch.setattr("ssgd.lab.experiments.running.time.monotonic", lambda: plain() + 200 * len(written_so_far()))
    for count in (1, 2):  # a clock that jumps when a run has ended
        results = Results("results")
        todo = plan(experiment, "paper", results)
        with pytest.raises(Stopped, match="the time is up") if count == 1 else nullcontext():
            assert carry_out(todo, replace(here, minutes=3), results) == {}
        assert len(written("test")) == count
    with pytest.raises(ValueError, match="minutes are for runs of one process"):
        carry_out(todo, replace(here, minutes=3), results, on="ray")


def written_so_far():
    return written("test") if Path("results/test.jsonl").exists() else []


def test_a_command_whose_time_is_up_says_so(here, capsys):
    words = ["reproduce", "fig4", "--scale", "smoke", "--device", "cpu"]
    assert main([*words, "--minutes", "1e-9"]) == 124
    assert "the time is up; all is saved. The same command goes on: " in capsys.readouterr().err
    assert not Path("results/fig4.jsonl").exists()
    assert main(words) == 0 and len(written("fig4")) == len(plan(experiment("fig4"), "smoke", Results("x")).runs)


# --- pictures ---------------------------------------------------------------------------------------------------------


def lined():
    """Two runs, neither of which goes on from the other, and the line between them."""
    picture = Picture("line", "fig2", {"base": "SGD", "both-0.29": "S-SGD"})
    recipes = [smoke(get(f"table2/cifar100/resnet20/{label}")) for label in picture.of]
    return made_of(*recipes, picture=picture)


def test_figures_2_and_7_are_of_the_same_solutions():
    line, plane = experiment("fig2"), experiment("fig7")
    known = [{one.name: one for one in drawn.recipes("paper")} for drawn in (line, plane)]
    assert known[0] == known[1] and line.stem == plane.stem
    assert set(line.picture.of) == set(plane.picture.of) - {plane.stem}


def test_a_picture_takes_the_weights_of_an_equal_run_and_trains_again_without_them(here):
    results, fig2 = Results("results"), lined()
    sgd = next(recipe for recipe in fig2.recipes("smoke") if recipe.method == "base")
    assert carry_out(plan(made_of(replace(sgd, name="test/same")), "paper", results), here, results) == {}
    assert [run.label for run in plan(fig2, "smoke", results).to_do] == ["both-0.29"]
    shutil.rmtree("runs")
    found = plan(fig2, "smoke", results)
    assert [run.label for run in found.to_do] == ["base", "both-0.29"]
    assert carry_out(found, here, results) == {}
    assert Path("results/fig2/smoke/line.npz").exists() and not plan(fig2, "smoke", results).pictures
    made = [row["experiment"] for row in results.rows]  # a row for each run, also of the training that was made twice
    assert sorted(made) == sorted(["test/same", *(run.recipe.name for run in found.to_do)])
    assert carry_out(found, here, results) == {} and len(results.rows) == 3
    shutil.rmtree("runs")
    assert not plan(fig2, "smoke", results).to_do


def test_an_equal_runs_weights_are_looked_for_below_out_and_only_where_nothing_is_branched(here):
    results, recipe, picture = Results("results"), tiny(), experiment("fig2").picture
    results.append("x", row_of(replace(recipe, name="test/same")))

    def planned(**more):
        (run,) = plan(made_of(recipe, picture=picture, **more), "paper", results, "elsewhere").runs
        return run.folder, run.to_do

    own, other = (
        replace(here, out="elsewhere").run_folder(replace(recipe, name=f"test/{n}"), 0) for n in ("one", "same")
    )
    assert planned() == (own, True)
    for folder in (other, own):
        folder.mkdir(parents=True)
        (folder / "weights.safetensors").touch()
        assert planned() == (folder, False)
        assert planned(stem="stem") == (own, folder != own)


def test_a_branch_ends_as_if_it_had_been_trained_from_the_start(here):
    recipes = {recipe.name.rpartition("/")[2]: recipe for recipe in experiment("fig7").recipes("smoke")}
    results = Results("results")
    assert carry_out(plan(experiment("fig7"), "smoke", results), here, results) == {}
    for label in ("base-f", "both"):
        recipe = recipes[label]
        whole = replace(here, out="whole")
        train(recipe, whole)
        assert (here.run_folder(recipe, 0) / "resumed.jsonl").exists()
        states = [read_safetensors(way.run_folder(recipe, 0) / "weights.safetensors") for way in (here, whole)]
        assert all((states[0][name] == states[1][name]).all() for name in states[1])
        metrics = [(way.run_folder(recipe, 0) / "metrics.jsonl").read_bytes() for way in (here, whole)]
        assert metrics[0] == metrics[1]


def test_the_seconds_of_a_branch_are_those_of_the_whole_training(here):
    stem, recipe = tiny("stem"), replace(tiny("longer"), phases="1-1")
    train(stem, here)
    clock = RunDir(here.run_folder(stem, 0))
    clock.add_timing({"epoch": 1, "seconds": 1000.0})
    clock.add_timing({"epoch": 1, "seconds": 0.0})  # taken up again
    clock.add_timing({"epoch": 1, "seconds": 500.0})
    branch(stem, recipe, here)
    (result,) = train(recipe, here)
    assert 1500 <= result["seconds"] < 1600 and result["passes"] == 2


def test_a_cosine_over_the_whole_has_no_stem(here):
    stem, recipe = (
        replace(tiny(), name=name, phases=phases, anneal="cosine") for name, phases in (("a", "1"), ("b", "1-1"))
    )
    with pytest.raises(ValueError, match="a cosine over the whole is another over a part"):
        branch(stem, recipe, here)


def test_a_run_that_diverges_has_a_row_and_is_not_made_again(here, capsys):
    good, bad = tiny("good"), replace(tiny("bad"), phases="3", lr=(1e6,))
    experiment, results = made_of(good, bad), Results("results")
    failures = carry_out(plan(experiment, "paper", results), here, results)
    assert list(failures) == ["test/bad/seed-0"] and "lower lr" in failures["test/bad/seed-0"]
    rows = {row["experiment"]: row for row in Results("results").rows}
    row = rows["test/bad"]
    assert row["diverged"].endswith("lower lr or the level") and "test_accuracy" not in row
    facts = {"recipe", "seed", "seconds", "passes", "curve", "device", "commit", "scale", "at_once"}
    assert facts <= row.keys() <= rows["test/good"].keys() | {"diverged"}
    again = plan(experiment, "paper", Results("results"))
    assert not again.to_do and re.search(r"bad +0 of 1 +1 diverged", wording.outcome(again, results))
    assert carry_out(again, here, results) == {} and len(Results("results").rows) == 2
    assert expected_seconds(again.runs, [row], "cpu", 1)[1] == {"small-cnn"}  # its time is not that of a whole run


def test_a_picture_of_what_diverged_is_not_waited_for(here):
    recipes = lined().recipes("paper")
    worse = [replace(recipe, lr=(1e6,) * len(recipe.lr)) if recipe.method == "both" else recipe for recipe in recipes]
    drawn, results = made_of(*worse, picture=lined().picture), Results("results")
    assert len(carry_out(plan(drawn, "smoke", results), here, results)) == 1
    again = plan(drawn, "smoke", Results("results"))
    assert again.pictures and not again.to_do


def test_processes_that_made_the_same_run_leave_one_row(tmp_path, here):
    recipe = tiny()
    plans = [plan(made_of(recipe), "paper", Results(tmp_path)) for _ in range(2)]
    for number, planned in enumerate(plans):  # made before either has run
        carry_out(planned, replace(here, out=str(tmp_path / f"runs-{number}")), Results(tmp_path))
    first, second = (Results(tmp_path) for _ in range(2))
    with first.alone():
        assert len(first.rows) == 1
        assert first.append("other", row_of(tiny(), seed=7)) is None
    with second.alone():
        assert len(second.rows) == 2 and second.find(tiny(), 7)


def test_a_branch_needs_a_stem_that_is_its_beginning(here):
    stem, recipe = tiny("stem"), tiny("longer", seeds=(1,))
    longer = replace(recipe, seeds=(0,), phases="1-1")
    for other in (recipe, replace(longer, method="both"), replace(longer, weight_decay=0.0)):
        with pytest.raises(ValueError, match="cannot go on from test/stem: only what comes after its phases"):
            branch(stem, other, here)
    with pytest.raises(ValueError, match="goes on from test/stem, which has not been trained here"):
        branch(stem, longer, here)
    picture = experiment("fig2").picture
    results, made = Results("results"), made_of(stem, longer, stem="stem", picture=picture)
    found = plan(made, "paper", results, only="longer")
    assert list(carry_out(found, here, results)) == ["test/longer/seed-0"]


def test_stems_are_those_of_each_task_and_not_needed_where_nothing_is_drawn(here):
    """Task a has a stem for two seeds, of which one is trained; b has none."""
    a, b = (
        replace(tiny("a/stem"), name="test/a/stem", seeds=(0, 1)),
        replace(tiny(), name="test/b/base", weight_decay=0.0),
    )
    longer = replace(a, name="test/a/longer", phases="1-1")
    results, experiment = Results("results"), made_of(a, longer, b, stem="stem")
    assert carry_out(plan(experiment, "paper", results, seeds=[0]), here, results) == {}
    assert carry_out(plan(experiment, "paper", results, seeds=[1], only="longer"), here, results) == {}
    begun = {seed: (here.run_folder(longer, seed) / "resumed.jsonl").exists() for seed in (0, 1)}
    assert begun == {0: True, 1: False}
    names = [(row["experiment"], row["seed"], row["passes"]) for row in results.rows]
    assert names[:3] == [("test/a/stem", 0, 1), ("test/b/base", 0, 1), ("test/a/longer", 0, 2)]
    assert names[3:] == [("test/a/longer", 1, 2)]


def test_every_recipe_of_an_experiment_can_be_trained_by_name():
    assert {"fig3/smoothout-x2/0.23", "fig7/base-m", "figA6/both", "equal_cost/cifar10/vgg16/sam-0.05"} <= {*names()}


@pytest.mark.parametrize("task", questions.TASKS)
def test_other_tasks_compare_at_the_same_epochs_and_at_the_same_cost(task):
    labels = questions.labels(task)
    base, ssgd, split, half, one_sided, *twice = (get(f"other_tasks/{task}/{label}").schedule for label in labels)
    shared = questions.STEM_EPOCHS.get(task, 0)
    assert (split.epochs, split.passes) == (base.epochs, base.passes) == (one_sided.epochs, one_sided.passes)
    assert one_sided.phases[-1].level == split.phases[-1].level
    assert (ssgd.epochs, ssgd.passes) == (base.epochs, 2 * base.passes - shared)
    assert base.passes <= half.passes <= base.passes + len(base.phases)  # an odd phase is rounded up
    assert half.peak == base.peak
    assert [each.passes for each in twice] == ([] if shared else [ssgd.passes])
    if shared:
        begun = get(f"other_tasks/{task}/stem").schedule
        assert {begun.phases} == {each.phases[:1] for each in (base, ssgd, split, half, one_sided)}
    if base.epochs == 2 * half.epochs:
        for epoch in range(1, half.epochs):
            assert half.lr(epoch) in [pytest.approx(base.lr(2 * epoch + i)) for i in (0, 1)]


def test_rows_that_cannot_be_written_are_told_before_any_training(here):
    Path("file").write_text("")
    results = Results("file/results")
    with pytest.raises(OSError, match=r"file/results could not be written"):
        carry_out(plan(made_of(tiny()), "paper", results), here, results)
    assert not Path("runs").exists()


WHOLE = {"model": "small-cnn", "passes": 1.0, "seconds": 1.0, "device": "cpu"}


@pytest.mark.parametrize("spoilt", [{}, {"passes": "x"}, {"seconds": None}, {"model": ...}, {"recipe": ...}])
def test_a_row_with_a_figure_of_another_kind_is_no_fault(tmp_path, spoilt):
    row = {key: value for key, value in {**row_of(tiny()), **WHOLE, **spoilt}.items() if value is not ...}
    (tmp_path / "x.jsonl").write_text(json.dumps(row) + "\n")
    found = plan(made_of(tiny(seeds=(4,))), "paper", Results(tmp_path))
    unknown = {"small-cnn"} if spoilt else set()
    assert expected_seconds(found.to_do, Results(tmp_path).rows, "cpu", 1)[1] == unknown


def test_a_picture_is_of_the_experiments_own_seed(here, capsys):
    assert main(["reproduce", "fig2", "--scale", "smoke", "--seeds", "5"]) == 0
    assert not list(Path("results").glob("fig2/**/line.npz"))
    assert "still missing: results/fig2/smoke/line.npz" in capsys.readouterr().out
    shutil.rmtree("runs")
    assert not plan(experiment("fig2"), "smoke", Results("results"), seeds=[5]).to_do  # of which no weights are needed
    assert main(["reproduce", "fig2", "--scale", "smoke"]) == 0
    assert len(list(Path("results").glob("fig2/**/line.npz"))) == 1


def test_minutes_bound_the_picture_too(here, capsys):
    assert main(["reproduce", "fig2", "--scale", "smoke"]) == 0
    shutil.rmtree("results/fig2")
    assert main(["reproduce", "fig2", "--scale", "smoke", "--minutes", "1e-9"]) == 124
    assert not list(Path("results").glob("fig2/**/line.npz"))


def test_a_run_that_was_cut_costs_what_is_left(here, monkeypatch):
    results, recipe = Results("results"), replace(tiny(), method="both", phases="1-2S-1S", lr=(0.1,))
    (before,) = plan(made_of(recipe), "paper", results).to_do
    assert (before.begun, before.left, before.passes) == (0, 7, 7)
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        cut_after(2, patch)
        carry_out(plan(made_of(recipe), "paper", results), here, results)
    cut = plan(made_of(recipe), "paper", results)
    assert [(run.begun, run.left) for run in cut.to_do] == [(2, 4)]
    told = wording.of_plans([cut], results, here)
    assert "1 to do, each training once (1 of which go on where they were cut)" in told and "cost: 4 passes" in told
    shutil.rmtree(before.folder / "checkpoints")  # then it begins anew
    assert [run.begun for run in plan(made_of(recipe), "paper", results).to_do] == [0]
