"""What the page says first: how many numbers are reproduced, and a line for each question of our own."""

import math
from dataclasses import replace

from ssgd.lab.report.answers import best, by_cost, by_task, compared, counted, gain, gains, nearest, off, ranges
from ssgd.lab.report.beyond import beyond
from ssgd.lab.report.measured import Measured
from ssgd.lab.report.page import render, show
from ssgd.lab.report.paper import parts
from ssgd.lab.report.questions import Line, baseline, questions
from ssgd.lab.report.statistics import Difference, Sample
from ssgd.lab.report.wording import subject
from tests.report_rows import page_of, run, write_results

PARTS = {part.name: part for part in parts()}


def line(method, gained=None, passes=175.0, protocol="net, data", count=2, test=70.0):
    spread = (gained or 0) - 0.1, (gained or 0) + 0.1
    difference = None if gained is None else Difference(gained, 0.1, count, *spread, count)
    return Line(protocol, method, passes, Sample(test, math.nan, count), difference)


LINES = [
    line("sgd"),
    line("split (0.26)", 0.69),
    line("halves", 0.41),
    line("both signs (0.5)", 0.33, 350.0),
    line("ASAM (0.5)", 1.16, 350.0),
    line("SAM (0.05)", 2.0, 350.0, count=1),
    line("sgd", protocol="other"),
    line("split (0.26)", 1.3, protocol="other"),
]


def test_numbers_are_counted_once_and_those_of_ours_alone_never():
    def said(*runs):
        return counted([o for part in PARTS.values() for o in show(part, list(runs), Measured()).outcomes])

    nothing, sgd = said(), said(run("table2/cifar100/resnet20/sgd", 1, test_accuracy=68.1))
    total = nothing.split()[4]
    assert nothing == f"None of the paper's {total} numbers has been run."
    assert sgd.startswith(f"Of the paper's {total} numbers, each counted once, 1 was run: 1 reproduced.")
    assert said(run("table4/an4/sgcn-190/adam", test_wer=20.0)) == nothing


def test_gains_that_are_reproduced_say_how_many_seeds_they_have_and_how_large_they_are():
    def said(*runs):
        return compared([o for part in PARTS.values() for o in show(part, list(runs), Measured()).outcomes])

    sgd = [run("table2/cifar100/resnet20/sgd", seed, test_accuracy=68.0) for seed in (1, 2)]
    assert said() == said(*sgd) == ""  # without a gain there is nothing to say
    small, large = (run("fig3/all/0.3", 1, test_accuracy=value) for value in (69.1, 69.4))  # the paper gains 1.21
    many = [run("table2/cifar100/resnet20/ssgd-0.5", seed, test_accuracy=69.4) for seed in (1, 2)]
    one = "Of those, 1 have a gain or a loss over SGD: 1 are reproduced, 1 of them by a single seed, and in"
    assert said(*sgd, small) == f"{one} 1 of the 1 ours is smaller than the paper's."
    assert said(*sgd, large) == f"{one} 0 of the 1 ours is smaller than the paper's."
    again = run("fig3/all/0.3", 1, test_accuracy=60.0, test_accuracy_recomputed_bn=69.1)
    based = [replace(one, row={**one.row, "test_accuracy_recomputed_bn": 68.0}) for one in sgd]
    told = said(*based, again, *many)
    assert told.endswith("too: by that 1 of them are reproduced, by their own 0.") and " 1 tell their accuracy" in told
    assert said(*sgd, small, *many).startswith("Of those, 2 have a gain or a loss over SGD: 2 are reproduced, 1 of")


def test_a_control_of_ours_has_a_row_once_it_was_run():
    def rows(*runs):
        return [o.cell.row for o in show(PARTS["fig5"], list(runs), Measured()).outcomes]

    assert len(rows()) == 16 and not any("," in name for name in rows())
    assert rows(run("fig5/sgd-rate-4/4096", 1))[-1] == "SGD, rate × 4"


def test_gains_of_the_first_protocol():
    assert gain(LINES[1]) == "split (0.26) +0.69 (+0.59 to +0.79)"
    assert gain(line("split", -0.2, count=1)) == "split −0.20 (one seed)"
    assert gains(LINES).startswith("net, data, over SGD: split (0.26) +0.69") and "other" not in gains(LINES)
    assert by_cost(LINES) == (
        "net, data, points over SGD: at SGD's cost split (0.26) +0.69, halves +0.41; "
        "at a higher cost ASAM (0.5) +1.16, both signs (0.5) +0.33"
    )
    assert ranges(LINES).startswith("over SGD, by setting: split (0.26) +0.69 to +1.30; halves +0.41 to +0.41")


def test_the_best_the_nearest_and_how_far_off():
    tried = [line("SAM (0.05)", test=68.5), line("SAM (0.1)", test=68.3), line("ASAM (1)", test=60.0)]
    other = line("SAM (0.1)", test=91.0, protocol="net, other data")
    assert best(tried) == best([*tried, other]) == "net, data, the best: SAM (0.05), ASAM (1)"
    assert nearest({"cifar10": {1e-4: -0.5, 5e-4: 0.1}}) == "nearest to the paper's: 0.0005 on cifar10 (+0.10)"
    assert off({"uniform": {0.5: 68.0, 0.9: 1.0}, "sign": {}}, {0.5: 69.5}).endswith("on average: uniform 1.50")
    assert by_task([line("base (adam)"), line("both signs (0.5)", -6.8), line("ssgd-half (0.5)", 1.0)]) == (
        "both signs over the base: net, data −6.80 (−6.90 to −6.70)"
    )


def test_without_runs_there_is_no_answer():
    assert {question.answer for question in [*questions([]), beyond([])]} == {""}
    assert baseline([run("baseline/cifar10/5e-4", test_accuracy=92.2)]).answer.endswith("0.0005 on cifar10 (+0.03)")
    assert "None of the paper&#39;s" in render([], Measured())


def test_the_top_of_the_page_says_what_came_out(tmp_path):
    (tmp_path / "results").mkdir()
    write_results(tmp_path / "results")
    top, overview = page_of(tmp_path / "results", tmp_path).split("<main>")[0:2]
    assert "each counted once" in top and "What a gain costs." in top
    table = overview.partition('<h2 id="parts">')[0]
    assert "nearest to the paper&#39;s:" in table and "both signs over the base:" in table
    assert subject("Which one? Ours.") == "Which one?" and subject("Of 92.1 %. More.") == "Of 92.1 %"
