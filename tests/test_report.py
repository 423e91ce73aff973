"""`ssgd report`: what is read, what is compared with what, what is said of it, and that the page holds it all."""

import json
import math
import re
import shutil
import sys
from dataclasses import fields, replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from ssgd.cli.main import main
from ssgd.lab import reproduce
from ssgd.lab.recipes import RECIPES
from ssgd.lab.report import cells, paper
from ssgd.lab.report.cells import (
    NOT_REPRODUCED,
    NOT_RUN,
    OURS_ALONE,
    REPRODUCED,
    UNDECIDED,
    Cell,
    outcome,
    tally,
    verdict,
)
from ssgd.lab.report.charts import WHOLE_SPECTRUM, charts_of, learning_curves, section
from ssgd.lab.report.matching import RUNS_OF, USUAL, joined_phases, matching, same
from ssgd.lab.report.measured import Measured, read_measured
from ssgd.lab.report.page import show
from ssgd.lab.report.runs import as_run, read_runs
from ssgd.lab.report.statistics import Sample, paired, sample, t_quantile
from ssgd.lab.reproduce.pictures import SIZES
from ssgd.lab.train.recipe import Recipe
from tests.report_rows import page_of, row, run, write_results, write_rows

ROOT = Path(__file__).parent.parent
PARTS = {part.name: part for part in paper.parts()}
PAPER = ("table1", "table2", "table3", "table4", "table5", "tableA1", "tableA2")
FIGURES = ("fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "figA1", "figA2", "figA3", "figA4", "figA5", "figA6")


def cell(part, row, column):
    return next(c for c in PARTS[part].cells if c.row == row and c.column == column)


# Statistics


@pytest.mark.parametrize("freedom, known", [(1, 12.7062), (2, 4.3027), (4, 2.7764), (9, 2.2622), (30, 2.0423)])
def test_quantiles_of_students_t(freedom, known):
    assert t_quantile(0.975, freedom) == pytest.approx(known, abs=1e-4)
    assert t_quantile(0.025, freedom) == pytest.approx(-known, abs=1e-4)


def test_mean_and_spread():
    assert sample([2.0, 4.0, 9.0]) == Sample(5.0, pytest.approx(math.sqrt(13)), 3)
    assert math.isnan(sample([2.0]).sd)
    with pytest.raises(ValueError, match="no mean"):
        sample([])


def test_differences_are_those_of_common_seeds():
    found = paired({0: 1.0, 1: 2.0, 2: 3.0, 7: 99.0}, {0: 0.0, 1: 0.0, 2: 0.0, 8: -99.0})
    assert (found.mean, found.sd, found.count, found.gained) == (2.0, 1.0, 3, 3)
    assert (found.low, found.high) == pytest.approx((2 - 2.4841, 2 + 2.4841), abs=1e-4)
    assert paired({0: 1.0, 1: 2.0, 2: 3.0}, {0: 1.0, 1: 9.0, 2: 9.0}, less_is_better=True).gained == 2
    assert paired({0: 1.0, 1: 9.0}, {0: 1.0, 1: 2.0}).gained == 1
    assert paired({0: 1.0}, {1: 1.0}) is None
    assert math.isnan(paired({0: 1.0}, {0: 2.0}).low)


# The verdict


BASE = Cell("SGD", "", 68.0, 0.4)


@pytest.mark.parametrize(
    "ours, gain, said",
    [
        (Sample(69.6, 0.2, 3), 1.5, REPRODUCED),
        (Sample(70.1, 0.2, 3), 2.0, NOT_REPRODUCED),  # 0.6 off, the spreads are 0.5 together
        (Sample(70.1, 0.4, 3), 2.0, REPRODUCED),
        (Sample(70.0, 0.2, 3), 2.0, REPRODUCED),  # just as far as both reach
        (Sample(69.5, 0.2, 3), 0.0, NOT_REPRODUCED),
        (Sample(69.3, math.nan, 1), 1.3, REPRODUCED),
        (Sample(69.5, 0.2, 3), -0.4, NOT_REPRODUCED),  # a loss where the paper has a gain
        (Sample(69.5, 0.2, 3), None, UNDECIDED),
        (Sample(60.0, 0.2, 3), None, NOT_REPRODUCED),
        (None, None, NOT_RUN),
    ],
)
def test_verdict_needs_the_mean_and_the_sign_of_the_gain(ours, gain, said):
    assert verdict(Cell("S-SGD", "", 69.5, 0.3, base=BASE), ours, gain) == said


def test_gains_are_those_of_common_seeds_where_there_are_any():
    adam = {1: 46.0, 2: 35.0, 3: 61.0}
    runs = [run("table4/connected-digits/sgcn-190/adam", seed, test_wer=value) for seed, value in adam.items()]
    noisy = {1: 33.0, 2: 28.0, 4: 10.0}
    runs += [run("table4/connected-digits/sgcn-190/ssgd-adam", seed, test_wer=value) for seed, value in noisy.items()]
    found = cell("table4", "12x190 SGCN, S-SGD Adam", "digits")
    assert outcome(found, "table4", runs).gain == pytest.approx(-10.0)
    assert outcome(found, "table4", [*runs[:3], runs[-1]]).gain == pytest.approx(10.0 - 142 / 3)


def test_statistics_gathered_again_are_told_and_decide_nothing():
    asked = cell("table2", "ResNet20, S-SGD (0.5)", "CIFAR-100")
    runs = [run("table2/cifar100/resnet20/ssgd-0.5", 1, test_accuracy=60.0, test_accuracy_recomputed_bn=69.4)]
    found = outcome(asked, "table2", runs)
    assert (found.verdict, found.anew.mean, found.anew.count) == (NOT_REPRODUCED, 69.4, 1)
    assert found.anew_verdict == UNDECIDED  # the gain is not known
    sgd = run("table2/cifar100/resnet20/sgd", 1, test_accuracy=59.0, test_accuracy_recomputed_bn=68.0)
    assert outcome(asked, "table2", [*runs, sgd]).anew_verdict == REPRODUCED
    assert outcome(asked, "table2", [*runs, sgd]).verdict == NOT_REPRODUCED
    assert outcome(asked, "table2", [run("table2/cifar100/resnet20/ssgd-0.5", 1)]).anew is None
    assert outcome(replace(asked, metric="train_accuracy"), "table2", runs).anew is None


def test_verdict_where_the_paper_says_less():
    assert verdict(Cell("SGD", "", 80.0), Sample(80.7, math.nan, 1), None) == REPRODUCED  # 1 % stands in
    assert verdict(Cell("SGD", "", 80.0), Sample(80.9, math.nan, 1), None) == NOT_REPRODUCED
    assert verdict(Cell("AN4", "", None), Sample(20.0, math.nan, 1), None) == OURS_ALONE


def test_a_gain_decides_only_where_the_paper_has_one():
    ours = Sample(68.1, 0.2, 3)
    assert verdict(Cell("S-SGD", "", 68.0, 0.3, base=BASE), ours, -0.1) == REPRODUCED  # the paper's is 0
    assert verdict(Cell("S-SGD", "", 68.0, 0.3, base=Cell("SGD", "", None)), ours, -0.1) == REPRODUCED


def test_a_shortened_run_of_what_the_paper_does_not_have_is_ours_alone():
    short = {"phases": "10-10-10", "name": "table3/small/resnet18/sgd"}
    small = run("table3/resnet18/sgd", changes=short, scale="small")
    target = replace(cell("table3", "ResNet18, SGD", "top 1"), paper=None)
    assert outcome(target, "table3", [small]).verdict == OURS_ALONE


def test_a_tally_has_the_verdicts_that_occur():
    assert tally([outcome(cell("table2", "ResNet20, SGD", "CIFAR-100"), "table2", [])]) == {NOT_RUN: 1}


def test_perplexity_gains_downwards():
    runs = [run("table5/small/sgd", test_perplexity=88.9), run("table5/small/ssgd-0.7", test_perplexity=84.9)]
    found = outcome(cell("table5", "small, S-SGD (0.7)", "test"), "table5", runs)
    assert (found.verdict, found.gain) == (REPRODUCED, pytest.approx(-4.0))
    worse = [run("table5/small/sgd", test_perplexity=84.0), runs[1]]
    assert outcome(found.cell, "table5", worse).verdict == NOT_REPRODUCED


# Which runs a cell is compared with


def test_a_run_counts_wherever_its_training_stands():
    runs = [run("fig3/all/0.5", test_accuracy=69.5)]
    for part, label, column in [
        ("table2", "ResNet20, S-SGD (0.5)", "CIFAR-100"),
        ("fig3", "S-SGD", "0.5"),
        ("figA1", "S-SGD", "0.5"),
        ("tableA2", "ResNet20, S-SGD (0.5)", "CIFAR-100"),
    ]:
        assert outcome(cell(part, label, column), part, runs).ours == {0: 69.5}
    assert not outcome(cell("fig3", "S-SGD conv only", "0.5"), "fig3", runs).ours


def test_of_two_runs_of_a_training_the_one_made_for_the_part_counts():
    runs = [run("baseline/cifar100/5e-4", 0, test_accuracy=68.4), run("fig7/sgd-f", 0, test_accuracy=68.2)]
    runs += [run("baseline/cifar100/5e-4", 1, test_accuracy=68.0)]
    found = {part: outcome(cell(part, *where), part, runs).ours for part, where in WHERE.items()}
    assert found == {"fig7": {0: 68.2, 1: 68.0}, "table2": {0: 68.4, 1: 68.0}}


def test_sgd_cut_in_two_is_table_5s():
    """At one rate the cut means nothing to SGD; to S-SGD it does."""
    cut = run("beyond/ptb-large/base", 1, test_perplexity=79.0)
    found = outcome(cell("table5", "large, SGD", "test"), "table5", [cut])
    assert (found.ours, found.small, found.verdict) == ({1: 79.0}, False, REPRODUCED)
    noisy = run("table5/large/ssgd-0.9", 1, {"phases": "29S-26S"}, test_perplexity=77.0)
    assert matching([noisy], cell("table5", "large, S-SGD (0.9)", "test").wanted, "table5") == []


def test_phases_are_joined_only_where_the_cut_means_nothing():
    sgd = {"method": "sgd", "lr": [0.1]}
    assert joined_phases("29-26", sgd) == "55" and joined_phases("29-26", {**sgd, "lr": [0.1, 0.01]}) == "29-26"
    assert joined_phases("29(ema)-26", sgd) == "29(ema)-26"


def test_levels_that_differ_by_rounding_are_the_same():
    assert same(0.1 + 0.2, 0.3) and not same(0.3, 0.31)


WHERE = {"fig7": ("SGD_f", "test"), "table2": ("ResNet20, SGD", "CIFAR-100")}


@pytest.mark.parametrize("part", [name for name, part in PARTS.items() if part.cells])
def test_another_training_does_not_slip_in(part):
    """Whatever field of the recipe that decides a result is another: no cell takes it."""
    runs = [run(name) for name in RECIPES]
    deciding = {f.name for f in fields(Recipe)} - {"name", "seeds", "evaluate_every", "precision", "parallel"}
    for c in PARTS[part].cells:
        (own, *_) = matching(runs, c.wanted, part)
        for name in (
            deciding if "distribution" in c.wanted else deciding - {"distribution"}
        ):  # without noise it decides nothing
            changed = {name: other(own.recipe[name])}
            made = {**own.row, **changed, "recipe": {**own.recipe, **changed}}
            assert not matching([as_run(made)], c.wanted, part), (c.row, c.column, name)


def other(value):
    if value is None:
        return 7
    changed = {
        bool: lambda: not value,
        str: lambda: f"{value}-1",
        list: lambda: [*value, 0.5],
        dict: lambda: {"x": 1.0},
    }
    return changed.get(type(value), lambda: value + 1)()


def test_usual_values_are_those_that_a_recipe_has_of_itself():
    plain = Recipe().to_json()
    assert {name: plain[name] for name in USUAL} == USUAL


def test_marks_on_all_phases_say_nothing():
    wanted = cell("table1", "37S-25S-25S", "CIFAR-10").wanted
    assert matching([run("table1/cifar10/37S-25S-25S")], wanted, "table1")
    assert matching([run("table1/cifar10/37S-25S-25S", changes={"phases": "37-25-25"})], wanted, "table1")


def test_a_seed_counts_once_and_fields_that_older_rows_lack_have_their_usual_value():
    wanted = cell("table2", "ResNet20, SGD", "CIFAR-100").wanted
    old = row("table2/cifar100/resnet20/sgd", 1)
    for name in ("perturb", "recompute_bn", "normalise"):
        old["recipe"].pop(name, None)
    runs = [as_run(old), run("table2/cifar100/resnet20/sgd"), run("fig3/sgd")]
    assert [found.seed for found in matching(runs, wanted, "table2")] == [0, 1]
    four = row("fig5/sgd/1024")
    assert matching([as_run(four)], cell("fig5", "SGD", "1024").wanted, "fig5")
    del four["recipe"]["devices"]
    assert not matching([as_run(four)], cell("fig5", "SGD", "1024").wanted, "fig5")
    without = {key: value for key, value in {**old["recipe"], **old}.items() if key != "recipe"}
    assert not matching([as_run(without)], wanted, "table2")


def test_shortened_runs_stand_in_for_their_own_part_alone_and_are_marked():
    short = {"phases": "10-10-10", "name": "table3/small/resnet18/sgd"}
    small = run("table3/resnet18/sgd", changes=short, scale="small", test_accuracy=70.5)
    target = cell("table3", "ResNet18, SGD", "top 1")
    found = outcome(target, "table3", [small])
    assert found.ours == {0: 70.5} and found.small and found.verdict == UNDECIDED
    assert not outcome(target, "table9", [small]).ours
    whole = run("table3/resnet18/sgd", 1, test_accuracy=70.0)
    assert outcome(target, "table3", [small, whole]).ours == {1: 70.0}
    assert not outcome(target, "table3", [run("table3/resnet18/sgd", changes=short)]).ours
    marked = {"phases": "10-10S-10S", "name": "table3/small/resnet18/ssgd"}
    noisy = next(c for c in PARTS["table3"].cells if c.row.startswith("ResNet18, S-SGD") and c.column == "top 1")
    assert not outcome(noisy, "table3", [run("table3/resnet18/ssgd", changes=marked, scale="small")]).ours
    marked["phases"] = "10S-10S-10S"  # on all of them they say nothing
    assert outcome(noisy, "table3", [run("table3/resnet18/ssgd", changes=marked, scale="small")]).ours


def test_a_shortened_run_gains_over_a_shortened_one_alone():
    short = {"phases": "10-10-10", "name": "table3/small/resnet18/x"}
    base, noisy = (
        run(f"table3/resnet18/{m}", changes=short, scale="small", test_accuracy=a)
        for m, a in (("sgd", 60), ("ssgd", 61))
    )
    target = next(c for c in PARTS["table3"].cells if c.row.startswith("ResNet18, S-SGD") and c.column == "top 1")
    both = outcome(target, "table3", [base, noisy])
    assert (both.verdict, both.gain) == (UNDECIDED, 1.0)
    whole = outcome(target, "table3", [base, run("table3/resnet18/ssgd", test_accuracy=target.paper)])
    assert (whole.verdict, whole.gain, whole.small) == (UNDECIDED, None, False)


def test_whole_runs_made_at_a_small_scale_count_like_others():
    found = outcome(
        cell("table2", "ResNet20, SGD", "CIFAR-100"),
        "table2",
        [run("table2/cifar100/resnet20/sgd", scale="small", test_accuracy=68.2)],
    )
    assert found.verdict == REPRODUCED and not found.small


def test_every_recipe_of_a_table_or_figure_has_its_cell():
    every = [(part.name, c.wanted) for part in PARTS.values() for c in part.cells if c.wanted]
    named = [name for name in RECIPES if name.split("/")[0] in {*PARTS} - {"figA6"}]  # of which spectra are looked at
    assert len(named) > 100
    for made in map(run, named):
        assert any(matching([made], wanted, part) for part, wanted in every), made.experiment


def test_every_cell_of_a_run_has_its_recipe():
    runs = [run(name) for name in RECIPES]
    for part in PARTS.values():
        for c in part.cells:
            assert matching(runs, c.wanted, part.name), (part.name, c.row, c.column)


# What is read


def test_lines_that_cannot_be_used_are_counted_and_told(tmp_path):
    good = row("fig3/all/0.5")
    lines = [
        json.dumps(good),
        json.dumps(good)[:200],  # torn
        "[1, 2]",
        json.dumps({**good, "seed": "zero"}),
        json.dumps({**good, "test_accuracy": math.nan}),
        json.dumps({**good, "curve": ["a"]}),
        json.dumps({**good, "scale": "smoke"}),
        "",
    ]
    (tmp_path / "x.jsonl").write_bytes("\n".join(lines).encode() + b'{"experiment": "\xff')
    runs, complaints, smoke = read_runs(tmp_path)
    assert (len(runs), len(complaints), smoke) == (1, 6, 1)
    assert complaints[0] == "x.jsonl, line 2: is torn or not JSON" and "seed" in complaints[2]
    page = page_of(tmp_path, tmp_path)
    assert "6 unreadable lines or files were left out" in page and "x.jsonl, line 2" in page
    assert "1 smoke tests are not shown" in page


def test_statistics_gathered_later_join_the_run_they_are_of(tmp_path):
    runs = [run("price/cifar100/resnet20/ssgd-0.5", seed, test_accuracy=68.0 + seed) for seed in (1, 2, 3)]
    runs.append(run("price/cifar100/resnet20/sgd", 1, test_accuracy=68.0, test_accuracy_recomputed_bn=68.1))
    (tmp_path / "price.jsonl").write_text("".join(json.dumps(dict(one.row)) + "\n" for one in runs))
    later = [(runs[0], 69.0, 69.5), (runs[1], 12.0, 13.0), (runs[3], 68.0, 99.0)]  # the second is of another training
    rows = [
        {"experiment": one.experiment, "seed": one.seed, "test_accuracy": own, "recomputed": anew}
        for one, own, anew in later
    ]
    (tmp_path / "recomputed-bn.json").write_text(json.dumps({"rows": rows}))
    found, complaints, _ = read_runs(tmp_path)
    assert [one.metric("test_accuracy_recomputed_bn") for one in found] == [69.5, None, None, 68.1] and not complaints
    (tmp_path / "recomputed-bn.json").write_text('{"rows": [{}]}')
    found, complaints, _ = read_runs(tmp_path)
    assert len(found) == 4 and complaints == ["recomputed-bn.json: is torn, or its rows lack something"]


def test_broken_pictures_are_told_too(tmp_path):
    write_results(tmp_path)
    (tmp_path / "fig7" / "plane.npz").write_bytes(b"PK not a zip")
    (tmp_path / "fig2" / "line.json").unlink()
    found = read_measured(tmp_path)
    assert len(found.complaints) == 2 and not found.surfaces and len(found.spectra) == 2
    assert "fig7/plane.npz" in page_of(tmp_path, tmp_path)


def test_lines_and_planes_are_judged_by_their_runs_own_figures():
    runs = [run(f"fig7/{label}", test_accuracy=69.0, train_accuracy=90.0) for label in ("sgd-m", "sgd-f", "ssgd")]
    for label in ("SGD_m", "SGD_f", "S-SGD"):
        for column, ours in (("train", 90.0), ("test", 69.0)):
            assert outcome(cell("fig7", label, column), "fig7", runs).ours == {0: ours}
    assert outcome(cell("fig2", "SGD", "test accuracy"), "fig2", runs).ours == {0: 69.0}  # SGD_f is the same training
    late = cell("fig2", "S-SGD, the last 50 epochs", "test accuracy")
    assert outcome(late, "fig2", runs).ours == {0: 69.0} and outcome(late, "fig2", runs).verdict == OURS_ALONE
    assert outcome(cell("fig2", "S-SGD", "test accuracy"), "fig2", runs).verdict == NOT_RUN  # its number is table 2's
    others = [run("table2/cifar100/resnet20/ssgd-0.5", test_accuracy=69.4)]
    assert outcome(cell("fig2", "S-SGD", "test accuracy"), "fig2", others).ours == {0: 69.4}
    assert show(PARTS["fig2"], runs, Measured()).charts[0]["missing"] == "our line is not computed yet"
    for part in ("fig2", "fig7"):
        assert "batch-norm's statistics gathered anew" in PARTS[part].note


def test_spectra_have_a_verdict(tmp_path):
    write_results(tmp_path)
    measured = read_measured(tmp_path)
    assert [o.verdict for o in show(PARTS["figA6"], [], measured).outcomes] == [REPRODUCED]  # SGD's is the larger
    assert [o.verdict for o in show(PARTS["figA6"], [], Measured(spectra=measured.spectra[:1])).outcomes] == [NOT_RUN]


def test_a_spectrum_of_less_decides_nothing(tmp_path):
    write_results(tmp_path)
    whole = read_measured(tmp_path).spectra
    assert (reproduce.get("figA6").picture.samples, *SIZES["spectrum"]["paper"]) == WHOLE_SPECTRUM
    for less in (
        {"samples": 5_000},
        {"values": whole[0].values[:2], "weights": whole[0].weights[:2]},
        {"values": whole[0].values[:, :60], "weights": whole[0].weights[:, :60]},
    ):
        found = show(PARTS["figA6"], [], Measured(spectra=[replace(whole[0], **less), whole[1]]))
        assert [(o.verdict, o.small) for o in found.outcomes] == [(UNDECIDED, True)]
        assert sum("(small: " in series["name"] for series in found.charts[0]["series"]) == 1


def test_a_part_that_shows_anothers_runs_prefers_them():
    for name, part in RUNS_OF.items():
        assert {recipe.name.split("/")[0] for recipe in reproduce.get(name).recipes("paper")} == {part}
    for name in PARTS.keys() - RUNS_OF.keys() - {"figA4", "figA5"}:  # of spectra
        assert name in {recipe.name.split("/")[0] for recipe in reproduce.get(name).recipes("paper")}
    elsewhere, own = (
        run("table2/cifar10/resnet20/sgd", 0, {"name": n}, test_accuracy=a) for n, a in (("x", 1), ("table2/x", 2))
    )
    for part in ("table2", "tableA1", "fig4"):
        assert [one.row["test_accuracy"] for one in matching([elsewhere, own], PARTS[part].cells[0].wanted, part)] == [
            2
        ]


# The page


class Rows(HTMLParser):
    """Counts the rows of each section's tables, and keeps what stands in each."""

    def __init__(self, page):
        super().__init__()
        self.section, self.rows, self.drawings, self.body = "", {}, set(), False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "section":
            self.section = attributes["id"]
        if tag in ("thead", "tbody"):
            self.body = tag == "tbody"
        if tag == "tr" and self.body:
            self.rows[self.section] = self.rows.get(self.section, 0) + 1
        if tag == "figure" and attributes["class"] == "chart":
            self.drawings.add(attributes["data-chart"])


@pytest.mark.parametrize("made_up", [True, False])
def test_every_table_has_its_rows_and_every_figure_its_drawing(made_up, tmp_path):
    (tmp_path / "results").mkdir()
    if made_up:
        write_results(tmp_path / "results")
    page = page_of(tmp_path / "results", tmp_path)
    found = Rows(page)
    for part in PARTS.values():
        assert found.rows[part.name] >= max(1, sum(not cell.ours for cell in part.cells))
    assert {*FIGURES, "baseline", "level"} <= found.drawings and not {*PAPER} & found.drawings
    drawn = {c["name"]: c for c in data_of(page)["charts"]}
    for name in ("fig2", "fig3", "fig4", "fig5", "fig7", "figA1", "figA2", "figA3"):
        assert any(series["paper"] and series["points"] for series in drawn[name]["series"])
        assert ("missing" in drawn[name]) == (not any(not series["paper"] for series in drawn[name]["series"]))
    for name in (*PARTS, "baseline", "level", "price", "tune", "beyond"):
        assert f"ssgd reproduce {name}" in page


def data_of(page):
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1])


def test_the_page_needs_no_network(tmp_path):
    page = page_of(tmp_path, tmp_path)
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href)=["'](https?:)?//""", page) and "@import" not in page and "url(" not in page


def test_whatever_stands_in_a_row_is_text(tmp_path):
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
    changes = ({"method": "split", "level": 0.1}, {})
    rows = [{**row("cifar100", 1, one), "model": evil, "device": evil, "data": evil} for one in changes]
    rows = [{**one, "experiment": "price/x"} for one in rows]
    write_rows(tmp_path / "<b>x.jsonl", [*rows, {"experiment": evil}])
    page = page_of(tmp_path, tmp_path)
    assert "alert(1)" in page and "<script>alert" not in page and "<img" not in page and "<b>x" not in page
    assert page.count("</script>") == page.count("<script")
    assert evil in json.dumps(data_of(page)).replace("\\", "")


def test_what_diverged_is_told_and_is_no_figure():
    def of(name, seed, **figures):
        made = {**row(name, seed), "diverged": "the loss is nan after epoch 3: lower lr or the level", **figures}
        return as_run({key: value for key, value in made.items() if key not in ("test_accuracy",) or figures})

    part, good = PARTS["table2"], run("table2/cifar100/resnet20/sgd", 1, test_accuracy=68.0)
    cell = next(c for c in part.cells if (c.row, c.column) == ("ResNet20, SGD", "CIFAR-100"))
    found = outcome(cell, "table2", [of("table2/cifar100/resnet20/sgd", 0)])
    assert (found.sample, found.diverged, found.verdict) == (None, 1, NOT_REPRODUCED)
    found = outcome(cell, "table2", [of("table2/cifar100/resnet20/sgd", 0), good])
    assert (found.sample.count, found.diverged, found.verdict) == (1, 1, REPRODUCED)
    alone = Cell("x", "y", None, wanted=cell.wanted)
    assert outcome(alone, "table2", [of("table2/cifar100/resnet20/sgd", 0)]).verdict == OURS_ALONE
    with pytest.raises(ValueError, match="has no figure that is a number"):
        as_run({key: value for key, value in row("cifar100").items() if key != "test_accuracy"})


def test_what_diverged_stands_in_the_way_of_nothing():
    """Neither of a finished run of its seed, nor of the curves of the others; a shortened one decides nothing."""
    part, curve = PARTS["fig4"], [90.0] * 175
    lost = {**row("table2/cifar10/resnet20/sgd", 0, curve=[50.0] * 12), "experiment": "table2/x", "diverged": "so"}
    lost = as_run({key: value for key, value in lost.items() if key != "test_accuracy"})
    good = [run("table2/cifar10/resnet20/sgd", seed, curve=curve) for seed in (0, 1)]
    found = outcome(part.cells[0], "fig4", [lost, *good])
    assert (list(found.ours), found.diverged) == ([0, 1], 0)
    (drawn,) = learning_curves(part, [replace(lost, seed=2), *good], "test")
    assert (drawn["name"], len(drawn["points"])) == ("SGD, 2 of 3 seeds", 175)
    short = replace(lost, scale="small", phases="5-5-5")
    assert outcome(part.cells[0], "fig4", [short]).verdict == UNDECIDED


def test_our_questions_name_what_diverged(tmp_path):
    changes = ({"method": "split", "level": 0.1}, {})
    rows = [{**row("cifar100", 1, one), "experiment": "price/x"} for one in changes]
    gone = {**row("cifar100", 2, changes[0]), "experiment": "price/x", "diverged": "so"}
    gone.pop("test_accuracy")
    write_rows(tmp_path / "results" / "price.jsonl", [*rows, gone])
    page = page_of(tmp_path / "results", tmp_path)
    told = "Diverged, and in no line for want of a figure: split (0.1"
    assert page.count(told) == 2  # split and the price
    write_rows(tmp_path / "alone" / "price.jsonl", [gone])
    alone = page_of(tmp_path / "alone", tmp_path)
    section = alone[alone.index('<section id="price">') :].partition("</section>")[0]
    assert alone.count(told) == 2 and told in section and "Not run" not in section


def test_the_page_says_what_diverged(tmp_path):
    rows = [row("table2/cifar100/resnet20/sgd", 0, diverged="the loss is nan after epoch 3")]
    rows[0].pop("test_accuracy")
    write_rows(tmp_path / "results" / "table2.jsonl", rows)
    page = page_of(tmp_path / "results", tmp_path)
    assert '<td class="n">diverged</td>' in page and "0 training runs" not in page
    write_rows(tmp_path / "results" / "more.jsonl", [row("table2/cifar100/resnet20/sgd", 1)])
    assert "<small>1 more diverged</small>" in page_of(tmp_path / "results", tmp_path)


def test_a_curve_says_of_how_many_seeds_it_is():
    curve, broken = [90.0] * 175, [None, 80.0] * 87 + [80.0]

    def drawn(*curves):
        runs = [run("table2/cifar10/resnet20/sgd", seed, curve=one) for seed, one in enumerate(curves)]
        (found,) = learning_curves(PARTS["fig4"], runs, "test")
        return found["name"], len(found["points"])

    assert drawn(curve, curve) == ("SGD", 175)
    assert drawn(broken, curve, []) == ("SGD, 1 of 3 seeds", 175)
    assert drawn(broken, broken) == ("SGD", 88)


def test_without_a_line_figure_2_is_a_section_of_figure_7s_plane(tmp_path):
    write_results(tmp_path)
    shutil.rmtree(tmp_path / "fig2")
    measured = read_measured(tmp_path)
    (drawn,) = charts_of(PARTS["fig2"], [], [], measured, paper.targets())
    assert drawn["x"] == "from SGD_f at 0 to S-SGD at 1, read off figure 7's plane"
    ours = {one["name"]: dict(map(tuple, one["points"])) for one in drawn["series"] if not one["paper"]}
    assert ours["test"][0.0] == pytest.approx(20 * 0.45) and ours["train"][1.0] == pytest.approx(10 * 0.45)
    (surface,) = measured.planes("fig7")
    assert section(replace(surface, names=["a", "b", "c"])) is None
    far = replace(surface, arrays={**surface.arrays, "x": surface.arrays["x"] + 9})
    assert np.isnan(section(far).arrays["errors"]).all()


def test_the_papers_line_of_figure_2_is_two_points():
    (theirs,) = charts_of(PARTS["fig2"], [], [], Measured(), paper.targets())[0]["series"]
    assert theirs["paper"] and theirs["loose"] and len(theirs["points"]) == 2


def test_every_number_of_the_paper_is_carried_along():
    shared = ROOT.parent / "shared" / "paper" / "targets.json"
    if not shared.is_file():
        pytest.skip("the paper's numbers are not beside the repository")
    assert paper.targets() == json.loads(shared.read_text())


def test_the_committed_page_is_that_of_the_committed_results(tmp_path):
    if not (ROOT / "results").is_dir():
        pytest.skip("there are no results here")
    assert page_of(ROOT / "results", tmp_path) == (ROOT / "docs" / "report.html").read_text(), "run `make report`"


def test_report_knows_results_alone():
    for file in (ROOT / "src" / "ssgd" / "report").glob("*.py"):
        assert not re.search(
            r"^\s*(from \.\.(?!files )|from ssgd|import ssgd|import torch)", file.read_text(), re.MULTILINE
        ), file


def test_the_command(tmp_path, capsys, monkeypatch):
    write_rows(tmp_path / "results" / "x.jsonl", [row("fig3/all/0.5")])
    out = tmp_path / "deep" / "page.html"
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"written: {out} (1 runs)\n" and out.read_text().startswith("<!doctype html>")
    write_rows(tmp_path / "results" / "y.jsonl", [{**row("fig3/all/0.5"), "scale": "smoke"}])
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"written: {out} (1 runs, 1 smoke tests left out)\n"
    assert main(["report", "--results", str(tmp_path / "nowhere")]) == 1
    assert "there is no folder" in capsys.readouterr().err
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(tmp_path)]) == 1
    assert f"{tmp_path} is a folder: name a file in it, --out {tmp_path}/report.html" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(out)]) == 1
    assert "pip install 'ssgd[report]'" in capsys.readouterr().err


def test_the_rule_is_on_the_page(tmp_path):
    assert cells.RULE.split(":")[1][:40] in page_of(tmp_path, tmp_path).replace("&#39;", "'")


def test_a_disk_that_refuses_leaves_the_old_page(tmp_path, monkeypatch, capsys):
    write_rows(tmp_path / "results" / "x.jsonl", [row("fig3/all/0.5")])
    out = tmp_path / "page.html"
    out.write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(out)]) == 1
    assert "there is no space left for" in capsys.readouterr().err
    assert out.read_text() == "old" and not list(tmp_path.glob(".*.tmp"))
