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
from ssgd.lab.experiments import Cell, Results, experiment, experiments, names
from ssgd.lab.experiments.identity import ASIDE
from ssgd.lab.experiments.pictures import SIZES
from ssgd.lab.experiments.rows import Row
from ssgd.lab.experiments.statistics import Sample, paired, sample, t_quantile
from ssgd.lab.experiments.tables import targets
from ssgd.lab.report.answers import counted, gains_of_the_paper
from ssgd.lab.report.charts import WHOLE_SPECTRUM, charts_of, learning_curves
from ssgd.lab.report.outcomes import Judge, tally
from ssgd.lab.report.own import own_runs
from ssgd.lab.report.page import render, show
from ssgd.lab.report.surfaces import Measured, read_measured, section
from ssgd.lab.report.verdicts import (
    ABOVE,
    BELOW,
    CALIBRATED,
    FAILED,
    NOT_RUN,
    OURS_ALONE,
    REPRODUCED,
    RULE,
    UNDECIDED,
    Interval,
    Spread,
    judge,
    pooled,
    rates,
    welch,
)
from ssgd.lab.train.recipe import Recipe
from tests.report_rows import known, page_of, row, run, write_results, write_rows

ROOT = Path(__file__).parent.parent
PARTS = {one.name: one for one in experiments() if one.part}
PAPER = ("table1", "table2", "table3", "table4", "table5", "tableA1", "tableA2")
FIGURES = ("fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "figA1", "figA2", "figA3", "figA4", "figA5", "figA6")


def cell(part, row, column):
    return next(c for c in PARTS[part].cells if c.row == row and c.column == column)


def found(part, row, column, *rows):
    return Judge(known(*rows)).outcome(cell(part, row, column))


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


def test_welchs_interval_has_its_freedom_from_both_sides():
    found = welch(1.0, Spread(2.0, 4), 1 / 5, Spread(1.0, 9), 1 / 10)
    freedom = (0.8 + 0.1) ** 2 / (0.8**2 / 4 + 0.1**2 / 9)
    assert found.reach == pytest.approx(t_quantile(0.975, freedom) * math.sqrt(0.9), rel=1e-2)
    assert (found.low + found.high) / 2 == pytest.approx(1.0)
    assert welch(1.0, Spread(0.0, 3), 1, Spread(0.0, 2), 1).reach == 0


def test_a_spread_is_pooled_over_groups_of_different_means():
    assert pooled([[1.0, 3.0], [10.0, 12.0, 14.0], [7.0]]) == Spread(pytest.approx(math.sqrt(10 / 3)), 3)
    assert pooled([[1.0], []]) is None


@pytest.mark.parametrize(
    "middle, reach, gain, single, said",
    [
        (0.1, 0.5, 1.2, False, REPRODUCED),
        (0.1, 0.7, 1.2, False, UNDECIDED),  # it reaches further than half of the paper's gain
        (0.1, 0.5, -1.2, False, REPRODUCED),
        (0.6, 0.5, 1.2, False, ABOVE),
        (-0.6, 0.5, 1.2, False, BELOW),
        (0.1, 0.5, 1.2, True, UNDECIDED),
        (-0.6, 0.5, 1.2, True, BELOW),  # a single seed that lies outside
        (0.1, 0.5, None, False, UNDECIDED),
        (0.0, 0.1, 0.0, False, UNDECIDED),
    ],
)
def test_a_verdict_is_that_of_the_interval(middle, reach, gain, single, said):
    assert judge(Interval(middle, reach), gain, single) == said
    assert judge(None, gain, single) == UNDECIDED


def test_the_rule_seldom_errs_and_says_how_often():
    for one in rates():
        if one["true"] == "the paper's gain":
            assert one[BELOW] + one[ABOVE] < 6
        if one["true"] == "no gain":
            assert one[REPRODUCED] < 1


WHERE = "table2", "ResNet20, S-SGD (0.4)", "CIFAR-100"
NOISY, SGD = "table2/cifar100/resnet20/both-0.23", "table2/cifar100/resnet20/base"


def trained(name, *values, **more):
    return [run(name, seed, test_accuracy=value, **more) for seed, value in enumerate(values, 1)]


def test_accuracy_and_gain_have_a_verdict_each():
    """The paper has 68.00 and 69.35, that is +1.35, with spreads of 0.39 and 0.44 over five seeds."""
    sgd = trained(SGD, *(66.9, 67.0, 67.1) * 3)
    one = found(*WHERE, *sgd, *trained(NOISY, *(68.25, 68.35, 68.45) * 3))
    assert (one.verdict, one.gain_verdict) == (BELOW, REPRODUCED)
    assert one.ours.gain.middle == pytest.approx(1.35) and one.gain_interval.low < 0 < one.gain_interval.high
    one = found(*WHERE, *sgd, *trained(NOISY, *(69.25, 69.35, 69.45) * 3))
    assert (one.verdict, one.gain_verdict) == (REPRODUCED, ABOVE)
    one = found(*WHERE, *trained(NOISY, 69.25, 69.35))
    assert (one.ours.gain, one.gain_verdict) == (None, UNDECIDED)  # what it is compared with has not been run


def test_a_single_seed_is_undecided_unless_it_lies_outside():
    sgd = trained(SGD, 67.9, 68.0, 68.1)
    assert found(*WHERE, *sgd, *trained(NOISY, 69.3)).verdict == UNDECIDED
    one = found(*WHERE, *sgd, *trained(NOISY, 60.0))
    assert (one.verdict, one.gain_verdict) == (BELOW, BELOW)
    assert found(*WHERE, *trained(NOISY, 60.0)).verdict == BELOW  # the paper's spread stands in


def test_a_number_that_a_setting_was_fitted_to_is_calibrated():
    sgd = found("table2", "ResNet20, SGD", "CIFAR-100", *trained(SGD, 68.0, 68.1))
    assert (sgd.verdict, sgd.gain_verdict) == (CALIBRATED, None)
    noisy = found("fig3", "S-SGD", "0.5", *trained("fig3/all/0.29", 69.0, 69.1), *trained(SGD, 68.0, 68.1))
    assert (noisy.verdict, noisy.gain_verdict) == (CALIBRATED, CALIBRATED)
    train = found("fig7", "SGD_f", "train", *trained(SGD, 68.0, 68.1, train_accuracy=91.0))
    assert train.verdict != CALIBRATED  # it was not fitted to that


def test_a_number_without_a_gain_is_measured_by_the_largest_that_is_counted_from_it():
    where = "table2", "VGG16, SGD", "CIFAR-100"
    name = "table2/cifar100/vgg16/base"
    paper = cell(*where).paper
    assert found(*where, *trained(name, *[paper - 0.1, paper, paper + 0.1] * 3)).verdict == REPRODUCED
    assert found(*where, *trained(name, *[paper - 3, paper, paper + 3])).verdict == UNDECIDED


def test_statistics_gathered_again_give_the_figure_where_rows_have_them():
    again = {"test_accuracy_recomputed_bn": 69.4}
    rows = [*trained(NOISY, 60.0, 60.2, **again), run(NOISY, 3, test_accuracy=61.0)]
    one = found(*WHERE, *rows)
    assert (one.ours.values, one.own.sample.count) == ({1: 69.4, 2: 69.4}, 3)
    base = trained(SGD, 59.0, 59.0)
    one = found(*WHERE, *rows, *base)
    assert one.ours.gain.middle == pytest.approx((1.0 + 1.2) / 2)  # the base has none: both sides are the runs' own
    one = found(*WHERE, *rows, *trained(SGD, 59.0, 59.0, test_accuracy_recomputed_bn=68.0))
    assert one.ours.gain.middle == pytest.approx(1.4) and one.own.gain.middle == pytest.approx(1.1)
    assert found(*WHERE, *trained(NOISY, 60.0)).own is None


def test_gains_are_those_of_common_seeds_where_there_are_any():
    adam = {1: 46.0, 2: 35.0, 3: 61.0}
    rows = [run("table4/connected-digits/sgcn-190/base", seed, test_wer=value) for seed, value in adam.items()]
    noisy = {1: 33.0, 2: 28.0, 4: 10.0}
    rows += [run("table4/connected-digits/sgcn-190/both-0.29", s, test_wer=value) for s, value in noisy.items()]
    where = "table4", "12x190 SGCN, S-SGD Adam", "digits"
    assert found(*where, *rows).ours.gain.middle == pytest.approx(-10.0)
    assert found(*where, *rows[:3], rows[-1]).ours.gain.middle == pytest.approx(10.0 - 142 / 3)


def test_perplexity_gains_downwards():
    """The paper falls by 3.99, from 88.85 to 84.86, and has no spread: ours stands in."""
    base = [run("table5/small/base", seed, test_perplexity=88.8 + seed / 10) for seed in range(3)]
    less = [run("table5/small/both-0.4", seed, test_perplexity=87.8 + seed / 10) for seed in range(3)]
    one = found("table5", "small, S-SGD (0.7)", "test", *base, *less)
    assert (one.verdict, one.gain_verdict, one.ours.gain.middle) == (ABOVE, BELOW, pytest.approx(-1.0))


def test_a_tally_has_the_verdicts_that_occur():
    assert tally([NOT_RUN, None, NOT_RUN]) == {NOT_RUN: 2}


# Which rows a cell is compared with


def test_a_row_counts_wherever_its_training_stands():
    noisy = run("fig3/all/0.29", test_accuracy=69.5)
    row, data = "ResNet20, S-SGD (0.5)", "CIFAR-100"
    for where in [("table2", row, data), ("fig3", "S-SGD", "0.5"), ("figA1", "S-SGD", "0.5"), ("tableA2", row, data)]:
        assert found(*where, noisy).ours.values == {0: 69.5}
    assert not found("fig3", "S-SGD conv only", "0.5", noisy).ours.values


def test_of_two_rows_of_a_training_the_one_made_for_the_part_counts():
    rows = [run("baseline/cifar100/5e-4", 0, test_accuracy=68.4), run("fig7/base-f", 0, test_accuracy=68.2)]
    rows += [run("baseline/cifar100/5e-4", 1, test_accuracy=68.0)]
    assert found("fig7", "SGD_f", "test", *rows).ours.values == {0: 68.2, 1: 68.0}
    assert found("table2", "ResNet20, SGD", "CIFAR-100", *rows).ours.values == {0: 68.4, 1: 68.0}


def test_sgd_cut_in_two_is_table_5s():
    """At one rate the cut means nothing to SGD; to S-SGD it does."""
    one = found("table5", "large, SGD", "test", run("other_tasks/ptb-large/base", 1, test_perplexity=79.0))
    assert one.ours.values == {1: 79.0}
    noisy = run("table5/large/both-0.52", 1, {"phases": "29S-26S"}, test_perplexity=77.0)
    assert not found("table5", "large, S-SGD (0.9)", "test", noisy).ours.values


@pytest.mark.parametrize("part", [name for name, part in PARTS.items() if part.cells])
def test_another_training_does_not_slip_in(part):
    """Whatever field of the recipe that decides a result is another: no cell takes it."""
    noise = {"distribution", "perturb", "per_rank", "bn_stats"}
    deciding = {f.name for f in fields(Recipe)} - ASIDE - noise
    changes = {"method": "sam", "level": 0.123, "phases": "7-7-7", "lr": (0.7,), "epochs": 7, "anneal": "cosine"}
    changes["settings"] = {"x": 1.0}
    for one in PARTS[part].cells[:6]:
        for name in sorted(deciding):
            mine = getattr(one.recipe, name)
            try:
                other = replace(one.recipe, **{name: changes.get(name) or changed(name, mine)})
                same = Cell("other", lambda other=other: other).identity == one.identity
            except ValueError:  # the field cannot have another value here
                continue
            assert not same or (name == "level" and one.recipe.method in ("base", "sgdr")), (one.name, name)


def changed(name, value):
    choices = {"optimizer": "adamw", "normalise": "global", "bad": "skip", "decayed": "weights", "parallel": "fsdp"}
    if name in choices or value is None:
        return choices.get(name, 7)
    return not value if isinstance(value, bool) else f"{value}-1" if isinstance(value, str) else value + 1


def test_every_cell_has_a_recipe_that_can_be_trained_by_name():
    known_names = set(names())
    for one in experiments():
        for c in (*one.cells, *one.also):
            assert c.make is None or c.name in known_names, (one.name, c.name)


# What is read


def test_lines_that_cannot_be_used_are_counted_and_told(tmp_path):
    good = row("fig3/all/0.29")
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
    results = Results(tmp_path)
    assert (len(results.rows), len(results.skipped)) == (2, 6)
    assert results.skipped[0] == "x.jsonl, line 2: is torn or not JSON" and "seed" in results.skipped[2]
    page = page_of(tmp_path, tmp_path)
    assert "6 unreadable lines or files were left out" in page and "x.jsonl, line 2" in page
    assert "1 smoke tests are not shown" in page and "1 training runs" in page


def test_statistics_gathered_later_join_the_row_they_are_of(tmp_path):
    name = "equal_cost/cifar100/resnet20/both-0.29"
    rows = [run(name, seed, test_accuracy=68.0 + seed) for seed in (1, 2, 3)]
    rows.append(run("table1/cifar10/75-50-50", 1, test_accuracy=68.0, test_accuracy_recomputed_bn=68.1))
    write_rows(tmp_path / "x.jsonl", rows)
    later = [(rows[0], 69.0, 69.5), (rows[1], 12.0, 13.0), (rows[3], 68.0, 99.0)]  # the second is of another training
    told = [
        {"experiment": one["experiment"], "seed": one.seed, "test_accuracy": own, "recomputed": again}
        for one, own, again in later
    ]
    (tmp_path / "recomputed-bn.json").write_text(json.dumps({"rows": told}))
    results = Results(tmp_path)
    assert [one.metric("test_accuracy_recomputed_bn") for one in results.rows] == [69.5, None, None, 68.1]
    assert not results.skipped
    (tmp_path / "recomputed-bn.json").write_text('{"rows": [{}]}')
    results = Results(tmp_path)
    assert len(results.rows) == 4 and results.skipped == ["recomputed-bn.json: is torn, or its rows lack something"]


def test_broken_pictures_are_told_too(tmp_path):
    write_results(tmp_path)
    (tmp_path / "fig7" / "plane.npz").write_bytes(b"PK not a zip")
    (tmp_path / "fig2" / "line.json").unlink()
    measured = read_measured(tmp_path)
    assert len(measured.complaints) == 2 and not measured.surfaces and len(measured.spectra) == 2
    assert "fig7/plane.npz" in page_of(tmp_path, tmp_path)


def test_whatever_is_damaged_is_told_and_ends_nothing(tmp_path):
    write_results(tmp_path)
    kept = len(Results(tmp_path).rows)
    (tmp_path / "b.jsonl").mkdir()
    (tmp_path / "deep.jsonl").write_text("[" * 100_000 + "\n")
    whole = bytearray((tmp_path / "fig7" / "plane.npz").read_bytes())
    for place in (whole.index(b"PK\x01\x02") + 10, 8):  # the method of compression, in the list and at the member
        whole[place] = 99
    (tmp_path / "fig7" / "plane.npz").write_bytes(whole)
    results = Results(tmp_path)
    assert len(results.rows) == kept and results.skipped == ["deep.jsonl, line 1: is torn or not JSON"]
    assert read_measured(tmp_path).complaints == ["fig7/plane.npz: cannot be read (NotImplementedError)"]
    assert "deep.jsonl" in page_of(tmp_path, tmp_path)


def test_lines_and_planes_are_judged_by_their_runs_own_figures():
    rows = [run(f"fig7/{label}", test_accuracy=69.0, train_accuracy=90.0) for label in ("base-m", "base-f", "both")]
    for label in ("SGD_m", "SGD_f", "S-SGD"):
        for column, ours in (("train", 90.0), ("test", 69.0)):
            assert found("fig7", label, column, *rows).ours.values == {0: ours}
    column = "test accuracy"
    assert found("fig2", "SGD", column, *rows).ours.values == {0: 69.0}  # SGD_f is the same training
    late = found("fig2", "S-SGD, the last 50 epochs", column, *rows)
    assert late.ours.values == {0: 69.0} and late.verdict == OURS_ALONE
    assert found("fig2", "S-SGD", column, *rows).verdict == NOT_RUN  # its number is table 2's
    assert found(
        "fig2", "S-SGD", column, run("table2/cifar100/resnet20/both-0.29", test_accuracy=69.4)
    ).ours.values == {0: 69.4}
    assert show(PARTS["fig2"], Judge(known(*rows)), Measured()).charts[0]["missing"] == "ours is not computed yet"
    for part in ("fig2", "fig7"):
        assert "batch-norm's statistics gathered anew" in PARTS[part].note


def test_spectra_have_a_verdict(tmp_path):
    write_results(tmp_path)
    measured = read_measured(tmp_path)
    assert [o.verdict for o in show(PARTS["figA6"], Judge(known()), measured).outcomes] == [
        REPRODUCED
    ]  # SGD's is the larger
    less = Measured(spectra={("figA6", "base"): measured.spectra["figA6", "base"]})
    assert [o.verdict for o in show(PARTS["figA6"], Judge(known()), less).outcomes] == [NOT_RUN]


def test_a_spectrum_of_less_decides_nothing(tmp_path):
    write_results(tmp_path)
    whole, both = read_measured(tmp_path).spectra.values()
    assert (experiment("figA6").picture.samples, *SIZES["spectrum"]["paper"]) == WHOLE_SPECTRUM
    for less in (
        {"samples": 5_000},
        {"values": whole.values[:2], "weights": whole.weights[:2]},
        {"values": whole.values[:, :60], "weights": whole.weights[:, :60]},
    ):
        spectra = {("figA6", "base"): replace(whole, **less), ("figA6", "both"): both}
        shown = show(PARTS["figA6"], Judge(known()), Measured(spectra=spectra))
        assert [(o.verdict, o.small) for o in shown.outcomes] == [(UNDECIDED, True)]
        assert sum("(small: " in one["label"] for one in drawn_series(shown.charts[0])) == 1


# What is said of it


def every(*rows):
    return [one for part in PARTS.values() for one in show(part, Judge(known(*rows)), Measured()).outcomes]


def test_numbers_are_counted_once_and_those_of_ours_alone_never():
    nothing = counted(every())
    total = nothing.split()[4]
    assert nothing == f"None of the paper's {total} numbers has been run."
    assert counted(every(run("table4/an4/sgcn-190/base", test_wer=20.0))) == nothing
    sgd = counted(every(run(SGD, 1, test_accuracy=68.1)))
    proves_nothing = "used to choose settings, which proves nothing."
    assert (
        sgd
        == f"We ran 1 of the paper's {total} numbers, 1 of them with a single seed. Confirmed: 0; 1 {proves_nothing}"
    )
    noisy = every(*trained(SGD, 67.9, 68.1), *trained(NOISY, 60.0, 60.1))
    assert counted(noisy) == (
        f"We ran 2 of the paper's {total} numbers, 0 of them with a single seed. "
        f"Confirmed: 0; 1 below the paper, 1 {proves_nothing}"
    )
    assert gains_of_the_paper(noisy) == "Gains over SGD confirmed: 0; 1 below the paper."


def test_a_control_of_ours_has_a_row_once_it_was_run():
    def rows(*made):
        return [o.cell.row for o in show(PARTS["fig5"], Judge(known(*made)), Measured()).outcomes]

    assert len(rows()) == 16 and not any("," in name for name in rows())
    assert rows(run("fig5/base-rate-4/4096", 1))[-1] == "SGD, rate × 4"


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
    assert {*FIGURES, "baseline", "noise_units"} <= found.drawings and not {*PAPER} & found.drawings
    drawn = {c["name"]: c for c in data_of(page)["charts"]}
    for name in ("fig2", "fig3", "fig4", "fig5", "fig7", "figA1", "figA2", "figA3"):
        who = [series["who"] for series in drawn_series(drawn[name])]
        assert "paper" in who and ("missing" in drawn[name]) == ("ours" not in who)
    for name in (*PARTS, "baseline", "noise_units", "equal_cost", "tune", "other_tasks"):
        assert f"ssgd reproduce {name}" in page


def drawn_series(chart):
    return [one for panel in chart["panels"] for one in panel["series"]]


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
    rows = [{**one, "experiment": "equal_cost/x"} for one in rows]
    write_rows(tmp_path / "<b>x.jsonl", [*rows, {"experiment": evil}])
    page = page_of(tmp_path, tmp_path)
    assert "alert(1)" in page and "<script>alert" not in page and "<img" not in page and "<b>x" not in page
    assert page.count("</script>") == page.count("<script")


def lost(name, seed):
    made = {**row(name, seed), "diverged": "the loss is nan after epoch 3: lower lr or the level"}
    return Row({key: value for key, value in made.items() if key != "test_accuracy"})


def test_what_diverged_is_told_and_is_no_figure():
    where = "table2", "ResNet20, SGD", "CIFAR-100"
    one = found(*where, lost(SGD, 0))
    assert (one.ours.sample, one.diverged, one.verdict) == (None, (0,), FAILED)
    one = found(*where, lost(SGD, 0), run(SGD, 1, test_accuracy=68.0))
    assert (one.ours.sample.count, one.diverged, one.verdict) == (1, (0,), CALIBRATED)
    assert Judge(known(lost(SGD, 0))).outcome(replace(one.cell, paper=None)).verdict == OURS_ALONE
    with pytest.raises(ValueError, match="has no figure that is a number"):
        Row({key: value for key, value in row("cifar100").items() if key != "test_accuracy"})


def test_what_diverged_stands_in_the_way_of_nothing():
    """Neither of a finished run of its seed, nor of the curves of the others."""
    name, curve = "table2/cifar10/resnet20/base", [90.0] * 175
    good = [run(name, seed, curve=curve) for seed in (0, 1)]
    one = Judge(known(lost(name, 0), *good)).outcome(PARTS["fig4"].cells[0])
    assert (list(one.ours.values), one.diverged) == ([0, 1], ())
    ((drawn,),) = (one["series"] for one in learning_curves(PARTS["fig4"], known(lost(name, 2), *good), "test"))
    assert (drawn["label"], len(drawn["points"])) == ("SGD, 2 of 3 seeds", 175)


def test_the_page_says_what_diverged(tmp_path):
    write_rows(tmp_path / "results" / "table2.jsonl", [lost(SGD, 0)])
    page = page_of(tmp_path / "results", tmp_path)
    assert '<td class="n">diverged</td>' in page and "0 training runs" not in page
    write_rows(tmp_path / "results" / "more.jsonl", [row(SGD, 1)])
    assert "<small>1 more diverged</small>" in page_of(tmp_path / "results", tmp_path)


def test_a_curve_says_of_how_many_seeds_it_is():
    curve, broken = [90.0] * 175, [None, 80.0] * 87 + [80.0]

    def drawn(*curves):
        rows = [run("table2/cifar10/resnet20/base", seed, curve=one) for seed, one in enumerate(curves)]
        ((one,),) = (panel["series"] for panel in learning_curves(PARTS["fig4"], known(*rows), "test"))
        return one["label"], len(one["points"])

    assert drawn(curve, curve) == ("SGD", 175)
    assert drawn(broken, curve, []) == ("SGD, 1 of 3 seeds", 175)
    assert drawn(broken, broken) == ("SGD", 88)


def test_no_line_is_drawn_over_levels_that_the_paper_does_not_tell():
    first = charts_of(PARTS["figA2"], Judge(known()).outcomes(PARTS["figA2"]), known(), Measured())[0]["panels"][0]
    (theirs,) = first["series"]
    assert [x for x, *y in theirs["points"] if y != [None]] == [0.0, 0.8, 0.9, 1.0]
    assert theirs["points"][1] == [0.8, None]


def test_without_a_line_figure_2_is_a_section_of_figure_7s_plane(tmp_path):
    write_results(tmp_path)
    shutil.rmtree(tmp_path / "fig2")
    measured = read_measured(tmp_path)
    (drawn,) = charts_of(PARTS["fig2"], [], known(), measured)
    assert drawn["x"] == "from SGD_f at 0 to S-SGD at 1, read off figure 7's plane"
    ours = {one["label"]: dict(map(tuple, one["points"])) for one in drawn_series(drawn) if one["who"] == "ours"}
    assert ours["test"][0.0] == pytest.approx(20 * 0.45) and ours["train"][1.0] == pytest.approx(10 * 0.45)
    (surface,) = measured.planes("fig7").values()
    assert section(replace(surface, names=["a", "b", "c"])) is None
    _, errors = section(replace(surface, x=surface.x + 9))
    assert np.isnan(list(errors.values())).all()


def test_the_papers_line_of_figure_2_is_two_points():
    (theirs,) = drawn_series(charts_of(PARTS["fig2"], [], known(), Measured())[0])
    assert theirs["who"] == "paper" and "line" not in theirs and len(theirs["points"]) == 2


def test_every_number_of_the_paper_is_carried_along():
    shared = ROOT.parent / "shared" / "paper" / "targets.json"
    if not shared.is_file():
        pytest.skip("the paper's numbers are not beside the repository")
    assert targets() == json.loads(shared.read_text())


def test_the_committed_page_is_that_of_the_committed_results(tmp_path):
    if not (ROOT / "results").is_dir():
        pytest.skip("there are no results here")
    assert page_of(ROOT / "results", tmp_path) == (ROOT / "docs" / "report.html").read_text(), "run `make report`"


def test_the_command(tmp_path, capsys, monkeypatch):
    write_rows(tmp_path / "results" / "x.jsonl", [row("fig3/all/0.29")])
    out = tmp_path / "deep" / "page.html"
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"written: {out} (1 runs)\n" and out.read_text().startswith("<!doctype html>")
    write_rows(tmp_path / "results" / "y.jsonl", [{**row("fig3/all/0.29"), "scale": "smoke"}])
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"written: {out} (1 runs, 1 smoke tests left out)\n"
    assert main(["report", "--results", str(tmp_path / "nowhere")]) == 1
    assert f"there is no {tmp_path}" in capsys.readouterr().err
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(tmp_path)]) == 1
    assert f"{tmp_path} is a folder: name a file in it, --out {tmp_path}/report.html" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(out)]) == 1
    assert "pip install 'ssgd[report]'" in capsys.readouterr().err


def test_runs_of_ones_own_stand_on_the_page(tmp_path):
    """First where nothing of the paper was run, else last; each beside its base."""
    mine = [
        row(
            "digits",
            seed,
            {"method": method, "level": level, "name": f"digits/{method}"},
            test_accuracy=90.0 + gain + seed,
        )
        for method, level, gain in (("base", None, 0), ("both", 0.3, 2))
        for seed in (0, 1)
    ]
    failed = row("digits", 2, {"lr": (9.0, 9.0), "name": "<b>high</b>"}, diverged="the loss is nan")
    del failed["test_accuracy"]
    write_rows(tmp_path / "my.jsonl", [*mine, failed])
    results = Results(tmp_path / "my.jsonl")
    found = Judge(results).outcomes(own_runs(results))
    assert [(o.cell.row, o.cell.column, o.ours.sample and o.ours.sample.mean) for o in found] == [
        ("digits/base: base", "small-cnn, digits, accuracy, %", 90.5),
        ("digits/both: both(0.3)", "small-cnn, digits, accuracy, %", 92.5),
        ("<b>high</b>: base", "small-cnn, digits, accuracy, %", None),
    ]
    assert found[0].ours.gain is None and found[1].ours.gain == Interval(2, 0) and found[2].diverged == (2,)
    page = page_of(tmp_path / "my.jsonl", tmp_path)
    assert page.index("<h3>Your runs<") < page.index(">How much of the paper") and "&lt;b&gt;high&lt;/b&gt;" in page
    assert ">digits/base: base</th>" in page
    assert re.search(r"digits/both.*?\+2.00 ± 0.00.*?92.50 ± 0.71", page, re.DOTALL)
    write_rows(tmp_path / "paper.jsonl", [row("fig3/all/0.29")])
    page = page_of(tmp_path, tmp_path)
    assert page.index("<h3>Other runs<") > page.index(">The paper<") and "Your runs" not in page
    (tmp_path / "my.jsonl").unlink()
    assert "Other runs" not in page_of(tmp_path, tmp_path)


def test_the_rule_is_on_the_page(tmp_path):
    assert RULE.split(":")[1][:40] in page_of(tmp_path, tmp_path).replace("&#39;", "'")


def test_a_disk_that_refuses_leaves_the_old_page(tmp_path, monkeypatch, capsys):
    write_rows(tmp_path / "results" / "x.jsonl", [row("fig3/all/0.29")])
    out = tmp_path / "page.html"
    out.write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    assert main(["report", "--results", str(tmp_path / "results"), "--out", str(out)]) == 1
    assert "there is no space left for" in capsys.readouterr().err
    assert out.read_text() == "old" and not list(tmp_path.glob(".*.tmp"))


def test_the_top_of_the_page_says_what_came_out(tmp_path):
    (tmp_path / "results").mkdir()
    write_results(tmp_path / "results")
    top, overview = page_of(tmp_path / "results", tmp_path).split("</header>")
    assert "test accuracy over SGD" in top and "(both signs, 2 seeds), where the paper says +1.48." in top
    assert "We ran" in top and 'data-chart="first"' in top
    table = overview.partition('<h2 id="parts">')[0]
    assert "nearest to the paper&#39;s:" in table and "over the base: at its cost" in table
    assert "None of the paper&#39;s" in render(known(), Measured())


def test_the_page_is_made_without_comparing_each_row_with_each_cell(tmp_path):
    """The calls grow with rows and cells, not with their product."""
    write_results(tmp_path)
    calls = 0

    def note(frame, event, argument):
        nonlocal calls
        calls += event == "call" and "/ssgd/" in frame.f_code.co_filename

    sys.setprofile(note)
    try:
        page_of(tmp_path, tmp_path)
    finally:
        sys.setprofile(None)
    assert calls < 300_000
