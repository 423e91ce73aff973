"""Several experiments at once: all that is missing, each training once."""

from dataclasses import replace
from pathlib import Path

import pytest

from ssgd.cli.main import main
from ssgd.lab.experiments import Picture, Results, experiment, get, plans
from ssgd.lab.experiments.cells import smoke
from ssgd.lab.experiments.planning import missing
from ssgd.lab.experiments.running import carry_out
from ssgd.lab.train import Execution
from ssgd.lab.train.engine import Stopped

from .tiny_experiments import cut_after, made_of, tiny

A, B, C = (tiny(name, weight_decay=decay) for name, decay in (("a", 1e-4), ("b", 2e-4), ("c", 3e-4)))
SAME_AS_A = replace(A, name="test/same-as-a")


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Execution(device="cpu", progress=False)


def counted(folder="results"):
    return {path.stem: len(path.read_text().splitlines()) for path in Path(folder).glob("*.jsonl")}


def test_what_two_need_is_trained_once_and_counts_for_both(here):
    results = Results("results")
    experiments = [made_of(A, B, name="first"), made_of(SAME_AS_A, C, name="second")]
    found = plans(experiments, "paper", results)
    assert list(missing(found)) == [f"test/{label}/seed-0" for label in "abc"]
    assert carry_out(found, here, results) == {}
    assert counted() == {"first": 2, "second": 1}
    after = plans(experiments, "paper", Results("results"))
    assert [len(plan.runs) for plan in after] == [2, 2] and not missing(after)
    assert carry_out(after, here, results) == {} and counted() == {"first": 2, "second": 1}


def test_what_was_cut_under_one_name_goes_on_whatever_else_needs_it(here, monkeypatch):
    long, same = replace(A, phases="4"), replace(SAME_AS_A, phases="4")
    results, first, second = Results("results"), made_of(long, name="first"), made_of(same, name="second")
    with monkeypatch.context() as patch, pytest.raises(Stopped):
        cut_after(2, patch)
        carry_out(plans([second], "paper", results), here, results)
    found = plans([first, second], "paper", results)
    assert list(missing(found)) == ["test/same-as-a/seed-0"] and missing(found)["test/same-as-a/seed-0"][1].begun == 2
    curves = replace(first, needs=("curve",))  # for which what was cut may lack epochs
    assert list(missing(plans([curves, second], "paper", results))) == ["test/a/seed-0"]


@pytest.mark.parametrize("processes", ["2", "4"])
def test_another_number_of_processes_is_refused_as_another_training(here, processes, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", processes)
    results = Results("results")
    with pytest.raises(ValueError, match=rf"test/a/seed-0 has devices=1, and {processes} processes.*: leave torchrun"):
        carry_out(plans([made_of(A)], "paper", results), here, results)
    with pytest.raises(ValueError, match="use --nproc-per-node 5"):
        carry_out(plans([made_of(replace(A, devices=5))], "paper", results), here, results)


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_a_limit_is_that_of_all(here, limit):
    results = Results("results")
    found = plans([made_of(A, B, name="first"), made_of(C, name="second")], "paper", results)
    assert carry_out(found, here, results, limit=limit) == {}
    assert sum(counted().values()) == limit


def test_side_by_side_the_longest_of_all_begin_first_and_stems_before_what_grows_from_them(here, monkeypatch):
    begun = []
    monkeypatch.setattr(
        "ssgd.lab.experiments.on_ray.train_on_ray", lambda runs, *_: begun.append([r.name for r in runs])
    )
    longer = replace(C, phases="2", name="test/longer")
    experiments = [made_of(A, B, name="first"), made_of(C, longer, name="second"), experiment("fig7")]
    results = Results("results")
    carry_out(plans(experiments, "smoke", results), here, results, on="ray")
    first, after = begun
    assert sorted(first) == ["fig7/smoke/base-m", "test/a", "test/b", "test/c", "test/longer"]
    assert first.index("test/longer") < first.index("test/a") < first.index("test/b") < first.index("test/c")
    assert sorted(after) == ["fig7/smoke/base-f", "fig7/smoke/both"]


def test_a_run_is_made_for_the_one_that_needs_its_curve(here):
    seldom, often = replace(A, evaluate_every=5), replace(SAME_AS_A, evaluate_every=1)
    results = Results("results")
    found = plans([made_of(seldom, name="table"), made_of(often, name="curves", needs=("curve",))], "paper", results)
    assert list(missing(found)) == ["test/same-as-a/seed-0"]
    assert carry_out(found, here, results) == {} and counted() == {"curves": 1}


def test_a_run_is_made_for_the_one_that_draws_its_solution(here):
    picture = Picture("line", "drawn", {"base": "SGD", "both-0.29": "S-SGD"})
    recipes = [smoke(get(f"table2/cifar100/resnet20/{label}")) for label in picture.of]
    line = made_of(*recipes, name="line", picture=picture)
    results = Results("results")
    found = plans([made_of(replace(recipes[0], name="test/same")), line], "smoke", results)
    assert carry_out(found, here, results) == {}
    assert counted() == {"line": 2} and Path("results/drawn/smoke/line.npz").exists()


def test_figures_2_and_7_share_their_runs_and_each_gets_its_picture(here):
    results = Results("results")
    found = plans([experiment("fig2"), experiment("fig7")], "smoke", results)
    assert len(missing(found)) == 3
    assert carry_out(found, here, results) == {}
    assert sum(counted().values()) == 3
    assert sorted(path.name for path in Path("results").rglob("*.npz")) == ["line.npz", "plane.npz"]
    branched = next(run.recipe for run in found[0].runs if run.label == "both")
    assert (here.run_folder(branched, 0) / "resumed.jsonl").exists()  # it went on from the stem


def test_a_picture_that_two_draw_is_computed_once(here, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        "ssgd.lab.experiments.pictures._spectrum", lambda *args: (drawn.append(args[-1]), _touch(args[-1]))
    )
    results = Results("results")
    found = plans([experiment("figA4"), experiment("figA6")], "smoke", results)
    assert carry_out(found, here, results) == {}
    assert sorted(path.name for path in drawn) == ["base", "both"]


def _touch(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_name(f"{path.name}.npz").touch()


def test_what_begins_at_a_stem_is_no_other_experiments(here):
    """An equal training from the start ends elsewhere in the last bits, and lies in no valley with the others."""
    stemmed = experiment("fig7").recipes("smoke")
    whole = replace(next(recipe for recipe in stemmed if recipe.name.endswith("base-f")), name="test/whole")
    names = list(missing(plans([made_of(whole), experiment("fig7")], "smoke", Results("results"))))
    assert len(names) == 4 and "test/whole/seed-0" in names


def test_every_pattern_must_be_of_one_and_what_has_none_is_left_out(here):
    experiments = [made_of(A, B, name="first"), made_of(C, name="second")]
    found = plans(experiments, "paper", Results("results"), only=["/b/", "seed-0"])
    assert [len(plan.runs) for plan in found] == [2, 1]
    (only,) = plans(experiments, "paper", Results("results"), only="/c/")
    assert only.experiment.name == "second"
    with pytest.raises(ValueError, match=r"no run of first or second has '/d/' in its name, such as test/a/seed-0"):
        plans(experiments, "paper", Results("results"), only=["/a/", "/d/"])


def test_the_command_takes_several_names(here, capsys):
    words = ["reproduce", "table1", "baseline", "table1", "--scale", "smoke", "--device", "cpu"]
    assert main([*words, "--plan"]) == 0
    told = capsys.readouterr().out
    apart = [len(plan.to_do) for plan in plans([experiment(n) for n in words[1:3]], "smoke", Results("results"))]
    together = len(missing(plans([experiment(n) for n in words[1:3]], "smoke", Results("results"))))
    assert f"in all: {together} to do, each training once\ncost: " in told and together < sum(apart)
    assert told.count("table1 (") == 1 and not Path("runs").exists()
    assert main([*words, "--limit", "2"]) == 0
    told = capsys.readouterr().out
    assert f"in all: {together} to do, each training once, 2 of them now" in told
    assert told.count("still missing: runs:") == 2 and sum(counted().values()) == 2
