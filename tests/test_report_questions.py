"""Our own questions on the page of `ssgd report`: which runs answer them, and what is compared with what."""

import re

import pytest

from ssgd.lab.recipes import get
from ssgd.lab.report.beyond import beyond
from ssgd.lab.report.paper import targets
from ssgd.lab.report.questions import SPLIT_LEVEL, baseline, level, price, setting, split, tune
from ssgd.lab.report.runs import as_run, read_runs
from ssgd.lab.report.statistics import Sample
from tests.report_rows import page_of, row, run, write_results


def test_split_is_paired_with_the_sgd_of_its_protocol():
    def of(method, seed, accuracy, **changes):
        level = {"split": 0.15}.get(method)
        return run("cifar100", seed, {"method": method, "level": level, **changes}, test_accuracy=accuracy)

    runs = [of("sgd", seed, 68 + seed / 10) for seed in range(4)] + [
        of("split", seed, 69 + seed / 5) for seed in range(4)
    ]
    runs += [of("sgd", seed, 10.0, weight_decay=1e-4) for seed in range(4)]  # another protocol
    runs += [of("sgd", seed, 10.0, phases="5-5-5") for seed in range(4)]  # the same, cut short
    base, found = split(runs).lines
    assert (base.method, base.difference) == ("SGD", None)
    assert (found.difference.mean, found.difference.gained, found.difference.count) == (pytest.approx(1.15), 4, 4)
    assert found.passes == base.passes == 175


def test_price_takes_what_was_asked_on_seeds_that_tuning_has_not_seen():
    def of(label, seed, accuracy, **changes):
        changes = {"name": f"price/cifar100/resnet20/{label}", **changes}
        return run("cifar100", seed, changes, test_accuracy=accuracy)

    runs = [run("table2/cifar100/resnet20/sgd", seed, test_accuracy=68.0) for seed in range(3)]
    runs += [of("sam", seed, 68.5 + seed / 10, method="sam", level=0.1) for seed in range(3)]
    runs += [run("fig3/all/0.5", seed, test_accuracy=69.5) for seed in range(3)]
    runs += [run("fig3/all/0.9", seed, test_accuracy=65.0) for seed in range(3)]  # nobody's price
    lines = {found.method: found for found in price(runs).lines}
    assert list(lines) == ["SGD", "SAM (0.1)", "both signs (0.5)"]
    assert lines["SAM (0.1)"].difference.mean == pytest.approx(0.65) and lines["SAM (0.1)"].difference.count == 2
    assert not price(runs[:3]).lines and not tune(runs).lines
    held = [run("cifar100", 0, {"method": m, "held_out": 5000}, test_accuracy=66.0) for m in ("sgd", "halves")]
    assert [found.method for found in tune(held).lines] == ["SGD", "halves without noise"]


def test_the_prices_chart_has_gains_alone():
    def of(label, seed, accuracy):
        return run(f"price/cifar100/resnet20/{label}", seed, test_accuracy=accuracy)

    runs = [of("sgd", seed, 68.0) for seed in (1, 2, 3)] + [of("split-0.26", seed, 68.0 + seed) for seed in (1, 2, 3)]
    runs += [of("halves", 1, 68.5), of("ssgd-0.5", 7, 69.0)]  # one seed, and none in common
    (group,) = price(runs).charts[0]["groups"]
    rows = {found["name"]: found for found in group["rows"]}
    assert list(rows) == ["split (0.26)", "halves without noise"]
    gain = price(runs).lines[1].difference
    assert rows["split (0.26)"] == {
        "name": "split (0.26)",
        "passes": 175.0,
        "mean": gain.mean,
        "low": gain.low,
        "high": gain.high,
        "seeds": 3,
    }
    halves = rows["halves without noise"]
    assert (halves["low"], halves["high"], halves["seeds"]) == (None, None, 1)
    assert not price([of("split-0.26", 1, 68.0)]).charts


def test_of_table_1_every_mix_of_phases_has_its_price():
    runs = [run("price/cifar100/resnet20/sgd", 1), run("price/cifar100/resnet20/halves", 1)]
    mixes = [phases for phases in targets()["table1_equal_compute"]["rows"] if "S" in phases]
    runs += [run(f"table1/cifar100/{phases}", 1) for phases in mixes]
    told = " ".join(found.method for found in price(runs).lines)
    assert len(mixes) == 4 and all(phases in told for phases in mixes)


def test_price_tells_what_statistics_gathered_again_bring():
    def of(label, seed, accuracy, **figures):
        return run(f"price/cifar100/resnet20/{label}", seed, test_accuracy=accuracy, **figures)

    runs = [of("sgd", seed, 68.0, test_accuracy_recomputed_bn=68.1) for seed in (1, 2)]
    runs += [of("split-0.26", seed, 68.5, test_accuracy_recomputed_bn=68.6 + seed) for seed in (1, 2)]
    base, found = price(runs).lines
    assert (base.anew.mean, base.anew_difference) == (pytest.approx(68.1), None)
    assert (found.anew.mean, found.anew_difference.mean) == (pytest.approx(70.1), pytest.approx(2.0))
    assert price(runs).anew and not price([of("sgd", 1, 68.0), of("split-0.26", 1, 68.5)]).anew


def test_what_the_noise_of_split_brings_is_its_difference_to_the_halves():
    def of(label, seed, accuracy):
        return run(f"price/cifar100/resnet20/{label}", seed, test_accuracy=accuracy)

    runs = [of("sgd", seed, 68.0) for seed in (1, 2)] + [of("halves", seed, 68.1 + seed / 10) for seed in (1, 2)]
    late = "75-50S-50S-split-0.26"
    runs += [of(label, seed, 68.9) for label in ("split-0.26", "ssgd-0.5", late) for seed in (1, 2, 3)]
    lines = {found.method: found.noise for found in price(runs).lines}
    told = [name for name, noise in lines.items() if noise]
    assert told == ["split (0.26)"]  # what is halved from epoch 76 on has no such control
    assert (lines[told[0]].count, lines[told[0]].mean) == (2, pytest.approx(0.65))
    assert price(runs).noise and not price([found for found in runs if found.method != "halves"]).noise


def test_a_distribution_is_named_where_it_is_not_the_papers():
    runs = [
        run("cifar100", 1, {"method": "split", "level": 0.26, "distribution": distribution})
        for distribution in ("uniform", "sphere")
    ]
    assert [found.method for found in split(runs).lines] == ["split (0.26)", "split (0.26, sphere)"]


def test_price_leaves_out_other_protocols_than_its_own():
    def of(*names):
        return [run(name, seed, test_accuracy=90.0 + seed) for name in names for seed in (1, 2)]

    runs = of("price/cifar10/resnet20/ssgd-0.5", "price/cifar10/resnet20/sgd")
    large = of("fig5/sgd/1024", "fig5/ssgd/1024", "fig5/sgd/4096", "fig5/ssgd/4096")
    assert [found.method for found in price(runs).lines] == ["SGD", "both signs (0.5)"]
    assert price([*runs, *large]) == price(runs)
    table1 = of("table1/cifar10/75-25S-25S", "table1/cifar10/75-50-25S")  # the same protocol
    told = ["both signs (0.5), 75-25S-25S", "both signs (0.5), 75-50-25S"]
    assert [found.method for found in price([*runs, *large, *table1]).lines][2:] == told


def test_what_has_noise_in_some_layers_alone_says_so():
    noise = {"held_out": 5000, "method": "ssgd", "level": 0.5}
    runs = [run("cifar100", 1, {**noise, "perturb": perturb}) for perturb in ("conv", "all")]
    assert [found.method for found in tune(runs).lines] == [
        "both signs (0.5, conv only)",
        "both signs (0.5)",
    ]


def test_a_setting_has_the_gains_of_its_own_sgd():
    gains = {("A", "1e-4"): 1.0, ("A", "5e-4"): 0.5, ("B", "5e-4"): 0.25, ("A-2", "5e-4"): 0.125}
    runs = []
    for (net, decay), gain in gains.items():
        for seed in range(3):
            runs.append(run(f"setting/{net}/{decay}/sgd", seed, test_accuracy=60 + seed))
            runs.append(run(f"setting/{net}/{decay}/split-0.26", seed, test_accuracy=60 + seed + gain))
    runs += [run("fig3/all/0.9", 1), run("price/cifar10/resnet20/split-0.26", 1), run("tune/cifar100/resnet20/sgd", 0)]
    runs += [run("fig3/conv/0.5", 1)]
    found = [one for one in setting(runs).lines if one.difference]
    assert [one.difference.mean for one in found] == list(gains.values())
    assert all(one.difference.count == 2 for one in found)  # seed 0 was tuning's
    assert [one.protocol.split(",")[0] for one in found] == ["resnet20", "resnet20", "resnet20-B", "resnet20"]
    assert found[-1].protocol.endswith("devices 2") and "devices" not in found[0].protocol
    assert get("setting/A/1e-4/split-0.26").level == SPLIT_LEVEL
    assert not setting(runs[:6]).ran  # one setting alone


def test_a_protocol_names_its_batch_and_devices_where_they_are_not_the_usual():
    runs = [run("cifar10", 1, {"method": m, "batch": b, "devices": d}) for m in ("sgd", "halves") for b, d in OTHERS]
    usual = "resnet20, cifar10, weight decay 0.0005"
    told = [usual, f"{usual}, batch 1024", f"{usual}, batch 1024, devices 4"]
    assert list(dict.fromkeys(found.protocol for found in split(runs).lines)) == told


OTHERS = ((128, 1), (1024, 1), (1024, 4))


def test_sgd_with_a_phase_of_another_method_is_no_base():
    phases = "75-50(split:0.15)-50"
    runs = [run("cifar100", 1, {"held_out": 5000, **c}) for c in ({}, {"phases": phases}, {"method": "halves"})]
    assert [(found.method, found.difference is None) for found in tune(runs).lines] == [
        ("SGD", True),
        (f"SGD, {phases}", False),
        ("halves without noise", False),
    ]
    assert not tune(runs[:1]).lines and tune(runs).about.endswith("tried on training images held out.")


def test_baseline_and_level_find_their_runs(tmp_path):
    write_results(tmp_path)
    runs, _, _ = read_runs(tmp_path)
    assert [(found.method, found.test.count) for found in baseline(runs).lines] == [("weight decay 0.0005", 3)] * 2
    drawn = {(series["name"], series["paper"]): series for series in level(runs).charts[0]["series"]}
    assert [point[0] for point in drawn["uniform", False]["points"]] == [0.2, 0.5, 0.8]
    assert [point[0] for point in drawn["sphere", False]["points"]] == [0.3]
    told = [(found.protocol, found.method) for found in level(runs).lines]
    assert told == [
        ("uniform", "level 0.2"),
        ("uniform", "level 0.5"),
        ("uniform", "level 0.8"),
        ("sphere", "level 0.3"),
    ]


def of_a_task(task, metric, figures):
    """Rows as they are left: the figure of the task alone, whatever the seeds of the recipe."""
    for label, by_seed in figures.items():
        for seed, value in by_seed.items():
            made = {**row(f"beyond/{task}/{label}", seed), "test_accuracy": value}
            made[metric] = made.pop("test_accuracy")
            yield as_run(made)


BEYOND = [
    *of_a_task("tiny-imagenet10", "test_accuracy", {"base": {1: 80.0, 2: 80.0}, "split": {1: 81.0, 2: 83.0, 3: 0.0}}),
    *of_a_task("an4", "test_wer", {"split": {1: 21.0, 2: 17.0, 3: 15.0}, "base": {1: 20.0, 2: 20.0, 3: 20.0}}),
    *of_a_task("an4", "test_wer", {"ssgd": {1: 18.0}, "ssgd-half": {1: 19.0}}),
]


def test_beyond_pairs_each_task_with_its_own_base():
    lines = {(found.protocol, found.method): found for found in beyond(BEYOND).lines}
    words, images = "an4, WER, %", "tiny-imagenet10, accuracy, %"
    noisy = [
        f"{name} ({level})" for name, level in (("both signs", 0.5), ("split", 0.25), ("both signs, ½ epochs", 0.5))
    ]
    assert list(lines) == [
        *((words, method) for method in ("base (adam)", *noisy)),
        (images, "base (sgd)"),
        (images, "split (0.25)"),
    ]
    assert [lines[words, method].passes for method in ("base (adam)", *noisy)] == [45, 90, 45, 46]
    fewer, more = lines[words, noisy[1]].difference, lines[images, noisy[1]].difference
    assert (fewer.mean, fewer.gained, fewer.count) == (pytest.approx(-7 / 3), 2, 3)
    assert (more.mean, more.gained, more.count) == (pytest.approx(2.0), 2, 2)
    assert lines[words, "base (adam)"].difference is None and lines[words, "base (adam)"].test == Sample(20.0, 0.0, 3)


def test_beyond_draws_what_is_better_to_the_right_a_task_a_chart():
    speech, images = beyond(BEYOND).charts
    assert (speech["name"], images["name"]) == ("beyond-an4", "beyond-tiny-imagenet10")
    assert speech["x"] == "gain over the base: WER, %"
    (group,) = speech["groups"]
    assert group["name"] == "an4" and [row["seeds"] for row in group["rows"]] == [1, 3, 1]
    assert [row["mean"] for row in group["rows"]] == pytest.approx([2.0, 7 / 3, 1.0])
    assert (group["rows"][0]["low"], group["rows"][0]["high"]) == (None, None)  # one seed has no interval
    of_three = group["rows"][1]
    reach = 7.5891  # by hand: 4.3027 · 3.055 / √3
    assert (of_three["low"], of_three["high"]) == pytest.approx((7 / 3 - reach, 7 / 3 + reach), rel=1e-4)
    assert images["groups"][0]["rows"][0]["mean"] == pytest.approx(2.0)


def test_beyond_counts_a_seed_once_and_keeps_levels_apart():
    again = run("beyond/an4/split", 1, test_wer=1.0)
    other = run("beyond/an4/split", 1, {"level": 0.1}, test_wer=12.0)
    found = [line for line in beyond([*BEYOND, again, other]).lines if line.method.startswith("split (")][:2]
    assert [(line.method, line.test.count) for line in found] == [
        ("split (0.25)", 3),
        ("split (0.1)", 1),
    ]
    assert found[0].test.mean == pytest.approx(53 / 3)


def test_beyond_pairs_runs_of_another_length_with_their_own_base():
    """The longer base is of one seed, and comes first; the half is nearest to the base of its cost."""
    longer = {"phases": "40-20"}
    old = [run("beyond/an4/base", 1, longer, test_wer=30.0), run("beyond/an4/split", 1, longer, test_wer=29.0)]
    old += [run("beyond/an4/base-2x", 1, test_wer=18.5)]
    question = beyond([*old, *BEYOND])
    lines = {found.method: found for found in question.lines if found.protocol.startswith("an4")}
    long, short = "split (0.25, 60 epochs)", "split (0.25, 45 epochs)"
    assert {"base (adam, 60 epochs)", "base (adam, 45 epochs)", long, short} <= lines.keys()
    assert lines[long].difference.mean == pytest.approx(-1.0)
    assert lines[short].difference.mean == pytest.approx(-7 / 3)
    assert lines["both signs, ½ epochs (0.5)"].difference.mean == pytest.approx(-1.0)
    longer = lines["base, 2× epochs (adam)"]
    assert longer.difference.mean == pytest.approx(-1.5) and longer.passes == 90
    drawn = {row["name"]: row["mean"] for row in question.charts[0]["groups"][0]["rows"]}
    assert drawn == {name: -line.difference.mean for name, line in lines.items() if line.difference}


def test_beyond_without_rows_without_a_base_and_with_a_base_of_no_errors():
    assert not beyond([run("table4/an4/sgcn-190/adam", 1, test_wer=20.0)]).ran
    alone = beyond([found for found in BEYOND if not found.experiment.endswith("/base")])
    assert alone.ran and not alone.paired and not alone.charts
    nothing = beyond(list(of_a_task("an4", "test_wer", {"base": {1: 0.0}, "ssgd": {1: 1.0}})))
    assert nothing.lines[1].difference.mean == 1.0
    assert nothing.charts[0]["groups"][0]["rows"][0]["mean"] == -1.0


def test_beyond_leaves_the_questions_on_cifar_alone():
    named = ("table2/cifar100/resnet20/sgd", "price/cifar100/resnet20/split-0.26")
    others = [run(name, seed, test_accuracy=68.0 + seed) for name in named for seed in (1, 2)]
    assert split(others).lines and price(others).lines
    for question in (baseline, split, level, price, tune):
        assert question([*BEYOND, *others]) == question(others), question.__name__


def test_beyond_is_told_in_its_own_words(tmp_path):
    section = re.compile(r'<section id="beyond">.*?</section>', re.DOTALL)
    assert "Not run." in section.search(page_of(tmp_path, tmp_path))[0]
    write_results(tmp_path)
    told = section.search(page_of(tmp_path, tmp_path))[0]
    assert "minus base" in told and "minus SGD" not in told and "Not run." not in told
    assert "−2.00 ± 0.00</td>" in told and "<td>3 of 3</td>" in told and 'data-chart="beyond-an4"' in told
