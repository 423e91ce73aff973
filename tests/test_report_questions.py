"""Our own questions on the page of `ssgd report`: what answers them, and what is compared with what."""

import math
import re

import pytest

from ssgd.lab.experiments import EXPERIMENTS, experiment
from ssgd.lab.experiments.rows import Row
from ssgd.lab.report.answers import answer
from ssgd.lab.report.outcomes import Judge
from ssgd.lab.report.page import show
from ssgd.lab.report.surfaces import Measured
from ssgd.lab.report.verdicts import Interval
from tests.report_rows import known, page_of, row, run, write_results

OURS = (
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
)


def lines(name, *rows):
    """What a question shows, by what is shared and the method."""
    shown = show(experiment(name), Judge(known(*rows)), Measured()).run
    return {(column, one.cell.row): one for column, found in shown.items() for one in found}


def charts(name, *rows):
    return show(experiment(name), Judge(known(*rows)), Measured()).charts


def cost(label, seed, accuracy, data="cifar100", **figures):
    return run(f"equal_cost/{data}/resnet20/{label}", seed, test_accuracy=accuracy, **figures)


CIFAR100 = "resnet20, cifar100, weight decay 0.0005"


def test_a_gain_is_that_of_the_same_seeds_and_seeds_of_tuning_are_left_out():
    rows = [run("table2/cifar100/resnet20/base", seed, test_accuracy=68.0) for seed in range(3)]
    rows += [cost("sam-0.05", seed, 68.5 + seed / 10) for seed in range(3)]
    rows += [run("fig3/all/0.29", seed, test_accuracy=69.5) for seed in range(3)]  # under another name
    rows += [run("fig3/all/0.52", seed, test_accuracy=65.0) for seed in range(3)]  # no contender
    found = lines("equal_cost", *rows)
    assert list(found) == [(CIFAR100, name) for name in ("SGD", "both signs (0.29)", "SAM (0.05)")]
    sam = found[CIFAR100, "SAM (0.05)"]
    assert (sam.ours.gain.middle, list(sam.ours.differences), sam.passes) == (pytest.approx(0.65), [1, 2], 350)
    assert found[CIFAR100, "SGD"].ours.gain is None and found[CIFAR100, "SGD"].ours.sample.count == 2
    assert not lines("equal_cost", *rows[:3])  # a base stands where something is compared with it
    assert not lines("tune", *rows)


def test_of_table_1_every_mix_of_phases_has_its_price():
    mixes = {"37S-25S-25S": "in 87 epochs", "75-50-25S": "last 25 of 150 epochs"}
    mixes |= {"75-25S-50": "75-25S-50", "75-25S-25S": "last 50 of 125 epochs"}
    told = lines("equal_cost", cost("base", 1, 68.0), *(run(f"table1/cifar100/{phases}", 1) for phases in mixes))
    assert {name for _, name in told} == {"SGD", *(f"both signs (0.29), {when}" for when in mixes.values())}


def test_a_chart_has_gains_alone_and_no_interval_of_one_seed():
    rows = [cost("base", seed, 68.0) for seed in (1, 2, 3)] + [cost("split-0.15", s, 68.0 + s) for s in (1, 2, 3)]
    rows += [cost("halves", 1, 68.5), cost("both-0.29", 7, 69.0)]  # one seed, and none in common
    (group,) = charts("equal_cost", *rows)[0]["groups"]
    drawn = {one["name"]: one for one in group["rows"]}
    assert list(drawn) == ["halves without noise", "split (0.15)"]
    gain = lines("equal_cost", *rows)[CIFAR100, "split (0.15)"].ours.gain
    assert drawn["split (0.15)"] == {
        "name": "split (0.15)",
        "cost": 1.0,
        "mean": gain.middle,
        "low": pytest.approx(gain.low, rel=1e-4),
        "high": pytest.approx(gain.high, rel=1e-4),
        "paper": None,
        "count": 3,
        "seeds": [1.0, 2.0, 3.0],
    }
    halves = drawn["halves without noise"]
    assert (halves["low"], halves["high"], halves["seeds"]) == (None, None, [0.5])
    assert not charts("equal_cost", cost("split-0.15", 1, 68.0))


def test_statistics_gathered_again_give_the_gain_and_the_trainings_own_stand_beside():
    rows = [cost("base", seed, 68.0, test_accuracy_recomputed_bn=68.1) for seed in (1, 2)]
    rows += [cost("split-0.15", seed, 68.5, test_accuracy_recomputed_bn=68.6 + seed) for seed in (1, 2)]
    base, found = lines("equal_cost", *rows).values()
    assert (base.ours.sample.mean, base.own.sample.mean, base.ours.gain) == (pytest.approx(68.1), 68.0, None)
    assert (found.ours.sample.mean, found.ours.gain.middle) == (pytest.approx(70.1), pytest.approx(2.0))
    assert (found.own.sample.mean, found.own.gain.middle) == (68.5, 0.5)


def test_what_the_noise_of_split_brings_is_its_difference_to_the_halves():
    rows = [cost("base", seed, 68.0) for seed in (1, 2)] + [cost("halves", seed, 68.1 + seed / 10) for seed in (1, 2)]
    late = "75-50S-50S-split-0.15"  # what is halved from epoch 76 on has no such control
    rows += [cost(label, seed, 68.9) for label in ("split-0.15", "both-0.29", late) for seed in (1, 2, 3)]
    noise = {name: one.noise for (_, name), one in lines("equal_cost", *rows).items() if one.noise}
    assert list(noise) == ["split (0.15)"]
    assert noise["split (0.15)"].middle == pytest.approx(0.65)


def test_an_ablation_has_the_gains_of_its_own_sgd():
    gains = {("A", "1e-4"): 1.0, ("A", "5e-4"): 0.5, ("A-2", "5e-4"): 0.125, ("B", "5e-4"): 0.25}
    rows = []
    for (net, decay), gain in gains.items():
        for seed in range(3):
            rows.append(run(f"ablations/{net}/{decay}/base", seed, test_accuracy=60 + seed))
            rows.append(run(f"ablations/{net}/{decay}/split-0.15", seed, test_accuracy=60 + seed + gain))
    found = {column: one for (column, _), one in lines("ablations", *rows).items() if one.ours.gain}
    assert sorted(one.ours.gain.middle for one in found.values()) == sorted(gains.values())
    assert all(len(one.ours.differences) == 2 for one in found.values())  # seed 0 was tuning's
    assert f"{CIFAR100}, devices 2" in found and found["resnet20-B, cifar100, weight decay 0.0005"]


def test_rows_without_a_recipe_stand_among_the_settings():
    old = {key: value for key, value in run("cifar100").items() if key != "recipe"}
    rows = [Row({**old, "experiment": f"side-by-side/{label}", "seed": seed, "passes": 1, "test_accuracy": 66 + gain})
            for label, gain in (("base", 0), ("halves", 0.5), ("split-0.15", 1.5)) for seed in (1, 2)]  # fmt: skip
    found = lines("ablations", *rows)
    last = found["resnet20-A, cifar100, weight decay 0.0001", "split (0.15, sphere)"]
    assert (last.ours.gain.middle, last.noise.middle, last.passes) == (1.5, 1.0, 175)


def test_a_level_stands_at_the_papers_unit():
    (drawn,) = charts("noise_units", run("fig3/all/0.29", 1), run("noise_units/sphere/0.5", 1), cost("base", 1, 68.0))
    ours = {
        panel["name"]: [one["points"] for one in panel["series"] if one["who"] == "ours"] for panel in drawn["panels"]
    }
    assert {name: points[0][0][0] for name, points in ours.items()} == {"uniform": 0.5, "sphere": 0.5}
    assert list(lines("noise_units", run("fig3/all/0.29", 1))) == [("uniform", "level 0.29")]


def test_what_is_held_out_is_tuned_and_has_a_front():
    rows = [run(f"tune/cifar100/resnet20/{label}", 0, test_accuracy=68.0) for label in ("base", "split-0.098")]
    assert list(lines("tune", *rows)) == [(CIFAR100, "SGD"), (CIFAR100, "split (0.098)")]
    noise = run("front/cifar100/resnet20/one-sided-0.25", 0, test_accuracy=67.0)
    assert list(lines("front", *rows, noise)) == [(CIFAR100, "SGD"), (CIFAR100, "one-sided noise (0.25, sphere)")]


def of_a_task(task, metric, values):
    return [run(f"other_tasks/{task}/{label}", s, **{metric: v}) for label, by in values.items() for s, v in by.items()]


SPEECH = {"base": {1: 20.0, 2: 20.0, 3: 20.0}, "both": {1: 18.0}, "split": {1: 15.0, 2: 17.0, 3: 21.0}}
SPEECH["both-half"] = {2: 19.0}
IMAGES = {"base": {1: 80.0, 2: 81.0}, "split": {1: 82.0, 2: 83.0}}
OTHER = [*of_a_task("an4", "test_wer", SPEECH), *of_a_task("tiny-imagenet10", "test_accuracy", IMAGES)]
WORDS = "an4, WER, %"


def test_other_tasks_gain_upwards_or_downwards():
    found = lines("other_tasks", *OTHER)
    names = ["base (adam)", "both signs (0.29)", "split (0.14)", "both signs, ½ epochs (0.29)"]
    assert [name for column, name in found if column == WORDS] == names
    assert [found[WORDS, name].passes for name in names] == [45, 90, 45, 46]
    fewer, more = found[WORDS, names[2]].ours, found["tiny-imagenet10, accuracy, %", names[2]].ours
    assert fewer.differences == {1: -5.0, 2: -3.0, 3: 1.0} and fewer.gain.middle == pytest.approx(-7 / 3)
    assert more.differences == {1: 2.0, 2: 2.0} and more.gain == Interval(2.0, 0.0)
    drawn = {one["name"]: one for one in charts("other_tasks", *OTHER)[0]["groups"][0]["rows"]}
    right = {name: pytest.approx(-found[WORDS, name].ours.gain.middle, rel=1e-4) for name in names[1:]}
    assert {name: one["mean"] for name, one in drawn.items()} == right  # to the right where better
    reach = 7.5891  # by hand: 4.3027 · 3.055 / √3, as no other difference has a spread
    assert (drawn[names[2]]["low"], drawn[names[2]]["high"]) == pytest.approx((7 / 3 - reach, 7 / 3 + reach), rel=1e-4)


def test_the_spread_of_a_gain_is_that_of_all_differences_from_its_base():
    rows = [cost("base", seed, 68.0) for seed in (1, 2, 3)]
    for label, values in {"split-0.15": (1.0, 2.0, 3.0), "halves": (0.5, 0.5, 0.5)}.items():
        rows += [cost(label, seed, 68.0 + value) for seed, value in enumerate(values, 1)]
    gains = [one.ours.gain for one in lines("equal_cost", *rows).values() if one.ours.gain]
    reach = 2.7764 * math.sqrt(2 / 4) / math.sqrt(3)  # two of the four degrees of freedom have no spread
    assert [gain.reach for gain in gains] == pytest.approx([reach, reach], rel=1e-4)


def test_runs_of_another_length_have_their_own_base():
    longer = [run(f"other_tasks/an4/{label}-60-epochs", 1, test_wer=v) for label, v in (("base", 30), ("split", 29))]
    found = lines("other_tasks", *longer, *OTHER)
    assert found[WORDS, "split (0.14, 60 epochs)"].ours.gain.middle == pytest.approx(-1.0)
    assert found[WORDS, "split (0.14)"].ours.gain.middle == pytest.approx(-7 / 3)


@pytest.mark.parametrize("name", OURS)
def test_without_rows_there_is_nothing_to_show_nor_to_say(name):
    shown = show(experiment(name), Judge(known()), Measured())
    assert not shown.run and not shown.answer
    drawn = [panel["series"] for one in shown.charts for panel in one["panels"]]
    assert all(one["who"] == "paper" for series in drawn for one in series)


def test_answers_are_a_line_each():
    def said(name, *rows):
        return answer(name, show(experiment(name), Judge(known(*rows)), Measured()).outcomes)

    rows = [cost("base", seed, 68.0) for seed in (1, 2)] + [
        cost("split-0.15", seed, 68.5 + seed / 10) for seed in (1, 2)
    ]
    rows += [cost("asam-0.5", seed, 69.0 + seed / 10) for seed in (1, 2)] + [cost("sam-0.05", 1, 70.0)]
    gains = "at its cost split (0.15) +0.65 ± 0.20; at a higher cost ASAM (0.5) +1.15 ± 0.20"
    gains = "at its cost split (0.15) +0.65 ± 0.22; at a higher cost SAM (0.05) +2.00"
    by_cost = f"{CIFAR100}, over the base: {gains}"
    assert said("equal_cost", *rows) == by_cost
    nearest = said("baseline", run("baseline/cifar10/5e-4", test_accuracy=92.2))
    assert nearest == "nearest to the paper's: 0.0005 on cifar10 (+0.03)"
    assert said("noise_units", run("fig3/all/0.29", test_accuracy=68.4)).endswith("on average: uniform 1.00")
    assert (
        said("other_tasks", *OTHER)
        == "an4, WER, %, over the base: at its cost split (0.14) −2.33 ± 7.59; at a higher cost both signs (0.29) −2.00"
    )


def test_a_question_is_told_in_its_own_words(tmp_path):
    section = re.compile(r'<section id="other_tasks">.*?</section>', re.DOTALL)
    assert "Not run." in section.search(page_of(tmp_path, tmp_path))[0]
    write_results(tmp_path)
    told = section.search(page_of(tmp_path, tmp_path))[0]
    assert "minus the base" in told and "minus SGD" not in told and "Not run." not in told
    assert "−2.00 ± " in told and 'data-chart="other_tasks-wer"' in told


def test_a_question_names_what_diverged():
    gone = {**row("equal_cost/cifar100/resnet20/split-0.15", 2), "diverged": "so"}
    gone.pop("test_accuracy")
    shown = show(EXPERIMENTS["equal_cost"](), Judge(known(Row(gone))), Measured())
    assert shown.diverged == [f"split (0.15) ({CIFAR100}, seed 2)"] and not shown.run
