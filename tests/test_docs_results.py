"""README and docs: what they tell of trainings is what the rows under results/ have."""

import argparse
import json
import re
import shlex
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest

from ssgd.analysis import Spectrum, load
from ssgd.cli.reproduce import add_arguments
from ssgd.lab import reproduce
from ssgd.lab.recipes import get
from ssgd.lab.recipes.beyond import LABELS, labels
from ssgd.lab.recipes.price import CONTENDERS
from ssgd.lab.report.cells import NOT_REPRODUCED, REPRODUCED, outcome
from ssgd.lab.report.charts import section
from ssgd.lab.report.measured import read_measured
from ssgd.lab.report.paper import parts, targets
from ssgd.lab.report.runs import ANEW, read_runs
from ssgd.lab.report.statistics import paired, t_quantile

ROOT = Path(__file__).parent.parent


def beyond(task, label):
    """Those of the recipe as it is today."""
    rows = [json.loads(line) for line in (ROOT / "results" / "beyond.jsonl").read_text().splitlines()]
    phases = get(f"beyond/{task}/{label}").phases
    return [row for row in rows if row["experiment"] == f"beyond/{task}/{label}" and row["phases"] == phases]


def spoken(rows, metric):
    values = [row[metric] for row in rows]
    return f"{mean(values):.2f}" + (f" ± {stdev(values):.2f}" if len(values) > 1 else "")


def difference(rows, base, metric):
    return paired(*({row["seed"]: row[metric] for row in group} for group in (rows, base)))


def gain(rows, base, metric):
    found = difference(rows, base, metric)
    return f"{found.mean:+.2f} ± {found.sd:.2f}".replace("-", "−")


def interval(rows, base, metric):
    """Of 95 %."""
    found = difference(rows, base, metric)
    return f"{found.low:+.2f} to {found.high:+.2f}".replace("-", "−")


@pytest.mark.parametrize(
    ("page", "task", "told"),
    [
        ("speech.md", "an4", ("AN4", "test_wer", "test_cer")),
        ("speech.md", "connected-digits", ("connected digits", "test_wer", "test_cer")),
        ("data.md", "tiny-imagenet10", ("tiny-imagenet10", "test_accuracy", "test_top5_accuracy")),
    ],
)
def test_tables_of_beyond_are_those_of_their_rows(page, task, told):
    name, *metrics = told
    text = (ROOT / "docs" / page).read_text()
    table = text[text.index(f"| {name} | passes |") :].partition("\n\n")[0]
    base = beyond(task, "base")
    found = [label for label in LABELS if beyond(task, label)]
    for label, line in zip(found, table.splitlines()[2:], strict=True):
        rows = beyond(task, label)
        figures = " | ".join(spoken(rows, metric) for metric in metrics)
        gained = "" if label == "base" else f"{gain(rows, base, metrics[0])} "
        cost = f"{rows[0]['epochs']} epochs | {rows[0]['passes']:g} | {len(rows)}"
        assert line.endswith(f", {cost} | {figures} | {gained}|"), line


def test_differences_of_an4_are_told():
    text = (ROOT / "docs" / "speech.md").read_text()
    base, longer = beyond("an4", "base"), beyond("an4", "base-2x")
    for label in ("ssgd", "split", "one-sided", "base-2x"):
        assert interval(beyond("an4", label), base, "test_wer") in text
    for label, other in (("split", beyond("an4", "one-sided")), ("ssgd", longer)):
        assert f"by {gain(beyond('an4', label), other, 'test_wer').removeprefix('−')}" in text
    assert interval(beyond("an4", "ssgd"), longer, "test_wer") in text
    readme = (ROOT / "README.md").read_text()
    for label in ("ssgd", "split"):
        high, low = interval(beyond("an4", label), base, "test_wer").replace("−", "").split(" to ")
        assert f"interval {low} to {high})" in readme


def test_what_tuning_gave_is_told():
    text = (ROOT / "docs" / "price.md").read_text()
    for method, name in (("split", "`split`"), ("sam", "SAM"), ("asam", "ASAM")):
        tried = [row for row in rows_of("tune") if row["method"] == method]
        told = ", ".join(f"{row['level']:g}: {row['test_accuracy']:.2f}" for row in tried)
        assert f"{name} {told}" in text
        best = max(tried, key=lambda row: row["test_accuracy"])["level"]
        assert CONTENDERS[f"{method}-{best:g}"] == (method, best)


def test_the_table_of_words_is_that_of_its_rows():
    text = (ROOT / "docs" / "language.md").read_text()
    large = {"base": "SGD", "ssgd": "SGD(29)+S-SGD(26)", "split": "SGD(29)+split(26)", "ssgd-half": "SGD(29)+S-SGD(13)"}
    for label, name in large.items():
        rows = beyond("ptb-large", label)
        figures = " | ".join(spoken(rows, metric) for metric in ("test_perplexity", "valid_perplexity"))
        assert f"| {name} | {rows[0]['passes']:g} | {len(rows)} | {figures} |" in text
    gained = {label: beyond("ptb-large", "base")[0][METRIC] - beyond("ptb-large", label)[0][METRIC] for label in large}
    assert f"S-SGD gains {gained['ssgd']:.2f} in this one seed" in text
    assert f"of those epochs gain {gained['ssgd-half']:.2f} and `split` {gained['split']:.2f}" in text
    table = text[text.index("| small LSTM | passes |") :].partition("\n\n")[0]
    base = beyond("ptb-small", "base")
    for label, line in zip(labels("ptb-small"), table.splitlines()[2:], strict=True):
        rows = beyond("ptb-small", label)
        figures = " | ".join(spoken(rows, metric) for metric in ("test_perplexity", "valid_perplexity"))
        told = "| |" if label == "base" else f"{gain(rows, base, METRIC)} | {interval(rows, base, METRIC)} |"
        cost = f"{rows[0]['epochs']} epochs | {rows[0]['passes']:g} | {len(rows)}"
        assert line.endswith(f", {cost} | {figures} | {told}"), line


METRIC = "test_perplexity"


def test_the_readmes_table_beyond_cifar_is_that_of_its_rows():
    text = (ROOT / "README.md").read_text()
    whole = ("base", "ssgd", "split", "ssgd-half")
    for task, name, metric, told in (
        ("ptb-large", "Penn Treebank, large", "test_perplexity", whole),
        ("ptb-small", "Penn Treebank, small", "test_perplexity", whole),
        ("an4", "AN4", "test_wer", whole),
        ("tiny-imagenet10", "ten classes", "test_accuracy", whole),
    ):
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {name}")]
        figures = " | ".join(spoken(beyond(task, label), metric) for label in told)
        assert f" | {figures} |" in line


def rows_of(name):
    return [json.loads(line) for line in (ROOT / "results" / f"{name}.jsonl").read_text().splitlines()]


def contender(label, data="cifar100"):
    """Of price, ResNet20 at the paper's decay; seeds that no tuning has seen."""
    elsewhere = {"sgd": f"{data}/5e-4", LAST: f"table1/{data}/75-50-25S"}.get(label)
    rows = [row for name in ("price", "baseline", "table1") for row in rows_of(name) if row["seed"] > 0]
    rows = [row for row in rows if row["experiment"] in (f"price/{data}/resnet20/{label}", elsewhere)]
    seeds = [1, 2, 3] if data == "cifar10" or label == "sgd-2x" else [1, 2, 3, 4, 5]
    assert sorted(row["seed"] for row in rows) == seeds
    return sorted(rows, key=lambda row: row["seed"])


def at_little_decay(method):
    return [row for row in rows_of("split-cifar100") if row["method"] == method]


HALVES, LATE, MIX = "SGD on the batch in halves, no noise", "75-50S-50S-split-0.26", "75-25S-25S-0.5"
BOTH_LATE = "both signs in the last 50 of 125 epochs"
LAST, BOTH_LAST = "75-50-25S-0.5", "both signs in the last 25 of 150 epochs"
SAM_LAST = "75-50-25S-sam-0.05"
AT_THE_PAPERS = {
    "SGD": "sgd",
    "both signs, level 0.5": "ssgd-0.5",
    BOTH_LATE: MIX,
    BOTH_LAST: LAST,
    HALVES: "halves",
    "split, level 0.26": "split-0.26",
    "split in the last 100 epochs": LATE,
    "SAM, ρ 0.05": "sam-0.05",
    "SAM in the last 25 of 150 epochs": SAM_LAST,
    "ASAM, ρ 0.5": "asam-0.5",
    "SGD in twice the epochs": "sgd-2x",
}
AT_LITTLE = {"SGD": "sgd", HALVES: "halves", "split, level 0.15": "split"}


@pytest.mark.parametrize(
    ("rows", "told"), [(at_little_decay, AT_LITTLE), (contender, AT_THE_PAPERS)], ids=("1e-4", "5e-4")
)
def test_the_tables_of_split_are_those_of_their_rows(rows, told):
    lines = (ROOT / "docs" / "price.md").read_text().splitlines()
    for name, label in told.items():
        chosen = rows(label)
        figures = [", ".join(f"{row[ACCURACY]:.2f}" for row in sorted(chosen, key=lambda row: row["seed"]))]
        figures += [spoken(chosen, key) for key in (ACCURACY, "train_accuracy")]
        if label != "sgd":
            figures += [told(chosen, rows("sgd"), ACCURACY) for told in (gain, interval)]
        assert any(line.startswith(f"| {name} |") and all(f"| {one} |" in line for one in figures) for line in lines)


def test_the_readmes_table_of_cifar100_is_that_of_its_rows():
    text = (ROOT / "README.md").read_text()
    table = text[text.index("| method | cost |") :].partition("\n\n")[0].splitlines()[2:]
    sgd = contender("sgd")
    for line in table:
        name, cost, *figures = line.strip("| ").split(" | ")
        rows = contender(AT_THE_PAPERS[name.rstrip(" |")])
        assert float(cost) == rows[0]["passes"] / sgd[0]["passes"]
        gained = [] if rows == sgd else [gain(rows, sgd, ACCURACY), interval(rows, sgd, ACCURACY)]
        assert figures == [spoken(rows, ACCURACY), *gained]
    assert len(table) == 9
    split, halves, both = (difference(contender(n), sgd, ACCURACY) for n in ("split-0.26", "halves", "ssgd-0.5"))
    paper = targets()["table2_cifar"]["ResNet20"]
    theirs = paper["S-SGD (0.5)"][1] - paper["SGD"][1]
    assert split.gained == split.count == 5 and theirs > split.high and f"the paper's {theirs:+.2f}, for both" in text
    assert halves.mean > split.mean / 2 and "More than half of its gain comes without noise" in text
    little = difference(at_little_decay("split"), at_little_decay("sgd"), ACCURACY).mean
    beyond = difference(at_little_decay("split"), at_little_decay("halves"), ACCURACY).mean
    assert f"at weight decay 1e-4 `split` gains {little:.2f}, most of it by noise" in text and beyond > little / 2
    two = [difference(contender(label), contender("ssgd-0.5"), ACCURACY) for label in ("sam-0.05", "asam-0.5")]
    assert all(one.low > 0 for one in two) and both.mean < split.mean


def test_the_table_of_cifar10_is_that_of_its_rows():
    text = (ROOT / "docs" / "price.md").read_text()
    table = text[text.index("| CIFAR-10 | passes |") :].partition("\n\n")[0].splitlines()[2:]
    sgd = contender("sgd", "cifar10")
    told = {"SGD": "sgd", "both signs, level 0.5": "ssgd-0.5", HALVES: "halves", "split, level 0.26": "split-0.26"}
    for (name, label), line in zip(told.items(), table, strict=True):
        rows = contender(label, "cifar10")
        seeds = ", ".join(f"{row[ACCURACY]:.2f}" for row in rows)
        gained = " |  |" if label == "sgd" else f"{gain(rows, sgd, ACCURACY)} | {interval(rows, sgd, ACCURACY)} |"
        assert line.startswith(f"| {name} | ") and f" | {seeds} | {spoken(rows, ACCURACY)} | {gained}" in line
        assert line.endswith(f" {spoken(rows, 'train_accuracy')} |")
    theirs = targets()["table2_cifar"]["ResNet20"]["S-SGD (0.5)"][0]
    assert f"the paper's accuracy ({theirs:.2f})" in text
    for page in ("docs/results.md", "docs/method.md"):
        both = contender("ssgd-0.5", "cifar10")
        paper = targets()["table2_cifar"]["ResNet20"]
        theirs = paper["S-SGD (0.5)"][0] - paper["SGD"][0]
        mine = f"both signs gain in every seed, {gain(both, sgd, ACCURACY)[1:5]} on average (the paper {theirs:.2f})"
        assert (spoken(both, ACCURACY) if "results" in page else mine) in (ROOT / page).read_text()
        assert difference(both, sgd, ACCURACY).gained == 3


def test_sam_and_twice_the_epochs_are_compared_with_ours():
    price, card = ((ROOT / page).read_text() for page in ("docs/price.md", "docs/method.md"))
    sam, split, both, longer = (contender(label) for label in ("sam-0.05", "split-0.26", "ssgd-0.5", "sgd-2x"))
    assert compared(sam, both) in price and compared(sam, split) in price
    asam, sam_last, sgd = (contender(label) for label in ("asam-0.5", SAM_LAST, "sgd"))
    assert all(compared(asam, others) in price for others in (both, split, sam))
    ahead = [difference(rows, both, ACCURACY) for rows in (sam, asam)]
    told = [f"by {one.mean:.2f} ({one.low:+.2f} to {one.high:+.2f})" for one in ahead]
    assert "SAM was better on CIFAR-100 {}, and ASAM {}, in five seeds".format(*told) in card
    assert all(one.gained == one.count == 5 for one in ahead)
    assert all("more than both signs at 0.5 in all five seeds" in text for text in (price, card))
    assert all(f"({compared(sam_last, contender(LAST))})" in text for text in (price, card))
    whole, part = (difference(rows, sgd, ACCURACY) for rows in (sam, sam_last))
    assert part.gained == part.count == 5 and "by four fifths of what SAM gains in all its epochs" in price
    assert abs(part.mean / whole.mean - 4 / 5) < 0.02
    gains = [difference(rows[:3], sgd, ACCURACY).mean for rows in (longer, both)]
    assert "gained {:.2f} where both signs gained {:.2f} in the same three seeds".format(*gains) in card


def test_other_nets_are_told_beside_the_papers():
    price, card, text = ((ROOT / page).read_text() for page in ("docs/price.md", "docs/method.md", "docs/results.md"))
    rows = {row["experiment"]: row[ACCURACY] for row in rows_of("price") + rows_of("figA6")}
    sgd, both, split = (rows[f"price/cifar100/resnet56/{label}"] for label in ("sgd", "ssgd-0.5", "split-0.26"))
    theirs = [targets()["table2_cifar"]["ResNet56"][name][1] for name in ("SGD", "S-SGD (0.5)")]
    line = f"| ResNet56, seed 1 | {sgd:.2f} | {theirs[0]:.2f} | {both:.2f} | {theirs[1]:.2f} | {split:.2f} |"
    wide = f"| WideResNet20-2, seed 0 | {rows['figA6/sgd']:.2f} |  | {rows['figA6/ssgd']:.2f} |  |  |"
    assert line in text and wide in text
    above, gained, cheap, paper = sgd - theirs[0], both - sgd, split - sgd, theirs[1] - theirs[0]
    told = f"SGD is {above:.2f} above the paper's, so their gain is {gained:.2f} where the paper's is {paper:.2f}, and"
    assert f"{told} `split` has {cheap:+.2f} at SGD's cost" in text
    wider = rows["figA6/ssgd"] - rows["figA6/sgd"]
    more = f"both signs gain {gained:.2f} with ResNet56, more than in any seed of ResNet20"
    assert more in card and f"and {wider:.2f} with WideResNet20-2; `split` has {cheap:+.2f} at SGD's cost" in card
    plain = {row["seed"]: row[ACCURACY] for row in contender("sgd")}
    noisy, halved = ([r[ACCURACY] - plain[r["seed"]] for r in contender(n)] for n in ("ssgd-0.5", "split-0.26"))
    assert gained > max(noisy) and min(halved) < cheap < max(halved)
    assert f"within what ResNet20's seeds show, {min(halved):+.2f} to {max(halved):+.2f}" in card
    accuracies = f"SGD {sgd:.2f} (the paper {theirs[0]:.2f}), `split` at 0.26 {split:.2f}, both signs at 0.5 {both:.2f}"
    assert f"{accuracies} (the paper {theirs[1]:.2f}), that is {cheap:+.2f} at SGD's price and {gained:+.2f}" in price


def test_the_hessians_of_figure_a6_are_told():
    text = (ROOT / "docs" / "results.md").read_text()
    tops = []
    for label, name in (("sgd", "SGD"), ("ssgd", "both signs, 0.5")):
        found = load(Spectrum, ROOT / "results" / "figA6" / f"{label}.npz")
        top = np.sort(found.values)[:, :-9:-1]
        np.testing.assert_allclose(top[0], top[1], rtol=1e-3)  # both probes have them
        told = ", ".join(f"{value:.1f}" for value in top[0])
        trace, error = (float(one[0]) * found.parameters for one in found.moments(1))
        line = f"| {name} | {told} | {found.smallest:.2f} | {trace:.0f} ± {error:.0f} |".replace("-", "−")
        assert line in text
        tops.append(top[0])
    less = 100 * (1 - tops[1] / tops[0])
    assert less[0] < 0 and f"smaller by {min(less[1:]):.0f} to {max(less[1:]):.0f} %" in text


def set_in(net, decay, label):
    """ResNet20 on CIFAR-100 with that shortcut and decay, by seed."""
    names = (f"setting/{net}/{decay}/{label}", f"cifar100/{decay}" if net == "A" and label == "sgd" else "")
    rows = [row for row in rows_of("setting") + rows_of("baseline") if row["experiment"] in names]
    rows = contender(label) if (net, decay) == ("A", "5e-4") else rows
    return {row["seed"]: row for row in rows if row["seed"] in (1, 2, 3)}


def test_what_the_gain_hangs_on_is_told():
    text = (ROOT / "docs" / "results.md").read_text()
    for net, decay in (("A", "5e-4"), ("A", "2e-4"), ("B", "5e-4"), ("B", "2e-4")):
        sgd = set_in(net, decay, "sgd")
        cells = [", ".join(f"{row[ACCURACY]:.2f}" for row in sgd.values())]
        for label in ("ssgd-0.5", "split-0.26"):
            found = set_in(net, decay, label)
            cells.append(", ".join(f"{row[ACCURACY]:.2f}" for row in found.values()))
            cells.append(", ".join(f"{row[ACCURACY] - sgd[seed][ACCURACY]:+.2f}" for seed, row in found.items()))
        cells.append(", ".join(f"{row['train_accuracy']:.2f}" for row in sgd.values()))
        assert f"| {net}, {decay} | {' | '.join(cells)} |" in text
    split, sgd = (
        [mean(set_in("A", decay, label)[seed][ACCURACY] for seed in (1, 2)) for decay in ("2e-4", "5e-4")]
        for label in ("split-0.26", "sgd")
    )
    told = f"as good at 2e-4 ({split[0]:.2f} on average) as at 5e-4 ({split[1]:.2f})"
    assert f"{told}, where SGD is {sgd[1] - sgd[0]:.1f} better" in text
    paper, train = targets()["table2_cifar"]["ResNet20"], targets()["fig7_surface"]["train"]["SGD_f"]
    sgd, both = paper["SGD"][1], paper["S-SGD (0.5)"][1]
    assert f"| the paper | {sgd:.2f} | {both:.2f} | {both - sgd:+.2f} |  |  | {train:.2f} |" in text


def test_shortcut_b_is_told():
    text, price = ((ROOT / page).read_text() for page in ("docs/results.md", "docs/price.md"))
    sgd, both, split = (list(set_in("B", "5e-4", label).values()) for label in ("sgd", "ssgd-0.5", "split-0.26"))
    means = [spoken(rows, ACCURACY) for rows in (sgd, both, split)]
    gains = [f"{gain(rows, sgd, ACCURACY)} ({interval(rows, sgd, ACCURACY)})" for rows in (both, split)]
    assert "SGD has {}, both signs {} and `split` {}, each better".format(*means) in price
    assert f"by {' and '.join(gains)}." in price
    assert f"`split` has {means[2]} there, {gains[1]}, better in all three seeds" in text
    assert f"the paper's accuracy too, {means[0]}. Both signs have {means[1]} there, " in text
    assert gains[0].replace(" (", " over SGD (95 % ") in text
    ours = difference(both, sgd, ACCURACY)
    assert ours.gained == difference(split, sgd, ACCURACY).gained == ours.count == 3
    with_a = difference(*(list(set_in("A", "5e-4", label).values()) for label in ("ssgd-0.5", "sgd")), ACCURACY)
    paper = targets()["table2_cifar"]["ResNet20"]
    theirs = paper["S-SGD (0.5)"][1] - paper["SGD"][1]
    assert round(ours.mean / with_a.mean) == round(theirs / ours.mean) == 2  # twice as much as with A, half the paper's
    peak = next(point for point in targets()["fig3_noise_level"]["curves"]["S-SGD"] if point["level"] == 0.5)
    below = peak["mean"] - mean(row[ANEW] for row in both)
    told = f"they have {spoken(both, ANEW)}, {gain(both, sgd, ANEW)} over SGD ({interval(both, sgd, ANEW)})"
    assert f"{told}, {below:.2f} below figure 3's {peak['mean']:.2f} ± {peak['half_width']:.2f}." in text


def test_the_table_of_large_batches_is_that_of_its_rows():
    text = (ROOT / "docs" / "results.md").read_text()
    paper = targets()["fig5_large_batch"]["accuracy_by_batch"]
    rows = {row["experiment"]: row for row in rows_of("fig5")}
    for batch in (4096, 16384):
        mine = [rows[f"fig5/{method}/{batch}"] for method in ("sgd", "ssgd")]
        theirs = [paper[name][str(batch)] for name in ("SGD", "S-SGD")]
        cells = [f"{row[ACCURACY]:.2f} | {their:.2f}" for row, their in zip(mine, theirs, strict=True)]
        cells += [f"{row['train_accuracy']:.2f}" for row in mine]
        assert f"| {batch:,} | {' | '.join(cells)} |" in text
    sgd, both, scaled = (rows[f"fig5/{name}/16384"] for name in ("sgd-rate-4", "ssgd-rate-4", "sgd-scaled"))
    tests, fits = ([f"{row[key]:.2f}" for row in (sgd, both)] for key in (ACCURACY, "train_accuracy"))
    assert f"| 16,384, rate 0.4 | {tests[0]} |  | {tests[1]} |  | {fits[0]} | {fits[1]} |" in text
    assert f"SGD loses another {rows['fig5/sgd/16384'][ACCURACY] - sgd[ACCURACY]:.2f} (" in text
    assert f"| 16,384, rate {0.1 * 16384 / 128:g} after a warm-up | {scaled[ACCURACY]:.2f} |  |  |" in text
    assert len(rows) == 7 and f"SGD's {paper['SGD']['16384']} at 16,384" in text
    card = (ROOT / "docs" / "method.md").read_text()
    (large, noisy), (less, with_noise) = ([rows[f"fig5/{m}/{b}"] for m in ("sgd", "ssgd")] for b in (16384, 4096))
    fits = f"fits {large['train_accuracy']:.2f} % of the training images with SGD and {noisy['train_accuracy']:.2f} %"
    costs = [f"{sgd[ACCURACY] - both[ACCURACY]:.2f}" for sgd, both in ((large, noisy), (less, with_noise))]
    assert fits in card and "costs {} on the test images, at 4,096 still {}".format(*costs) in card
    assert f"at an unscaled rate, both signs lost {costs[0]}." in (ROOT / "README.md").read_text()


def test_table_1_is_told_beside_the_papers():
    text = (ROOT / "docs" / "results.md").read_text()
    paper = targets()["table1_equal_compute"]["rows"]
    rows = {row["phases"]: row[ACCURACY] for row in rows_of("table1") if row["seed"] == 1}
    late, *others = ("75-50-25S", "75-25S-50", "37S-25S-25S")
    mine, both, sgd = (contender(label) for label in (LAST, "ssgd-0.5", "sgd"))
    assert f"has {spoken(mine, ACCURACY)} over five seeds, twice the gain" in text
    assert difference(mine, sgd, ACCURACY).gained == 5
    assert round(difference(mine, sgd, ACCURACY).mean / difference(both, sgd, ACCURACY).mean) == 2
    again = f"{spoken(mine, ANEW)} with batch-norm's statistics gathered again"
    assert f"{again}; the paper {paper[late]['CIFAR-100']:.2f}" in text
    told = " and ".join(f"`{phases}` {rows[phases]:.2f}" for phases in others)
    assert f"{told} (seed 1), the paper {' and '.join(str(paper[phases]['CIFAR-100']) for phases in others)}" in text
    price = (ROOT / "docs" / "price.md").read_text()
    assert f"it gains {gain(mine[1:], sgd, ACCURACY)} ({interval(mine[1:], sgd, ACCURACY)})" in price
    assert compared(mine, contender("split-0.26")) in price
    assert max(rows, key=lambda phases: rows[phases]) == late and rows[late] > contender(MIX)[0][ACCURACY]


NOT_RUN = (  # the text says so
    "setting --only 'A-2/*'",
    "setting --only 'A-w/'",
    "setting --only 'B/2e-4/s[gs]*/seed-[23]'",
    "fig5 --only 'epochs-4/16384'",
    "fig5 --only '*-scaled/1024' '*-scaled/4096'",
)


def planned(command):
    """Its runs; a pattern that none has in its name is refused."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    options = parser.parse_args(shlex.split(command))
    (experiment,) = map(reproduce.get, options.names)
    return reproduce.plan(experiment, "paper", reproduce.Results(ROOT / "results"), only=options.only).runs


def commands():
    """Those of README and docs that name a part of an experiment's runs, as what was measured."""
    text = "".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    found = dict.fromkeys(re.findall(r"`ssgd reproduce (\w+ --only [^`]+)`", text))
    return [command for command in found if command not in NOT_RUN]


@pytest.mark.parametrize("command", NOT_RUN)
def test_a_command_that_is_told_as_not_run_has_not_been(command):
    assert f"ssgd reproduce {command}" in (ROOT / "docs" / "results.md").read_text()
    assert all(run.row is None for run in planned(command))


@pytest.mark.parametrize("command", commands())
def test_a_command_that_is_told_with_its_figures_has_been_run_to_its_end(command):
    assert not [run.name for run in planned(command) if run.row is None]


@pytest.mark.parametrize("name", ["table1", "table2", "table5", "fig2", "fig3", "fig4", "fig5", "fig7"])
def test_what_is_told_as_reproduced_is_so_on_the_page(name):
    runs, *_ = read_runs(ROOT / "results")
    (part,) = (part for part in parts() if part.name == name)
    judged = [one for cell in part.cells if (one := outcome(cell, name, runs)).ours]
    cells = []
    for verdict in (REPRODUCED, NOT_REPRODUCED):
        chosen = [one for one in judged if one.verdict == verdict]
        cells.append("; ".join(f"{one.cell.row}, {one.cell.column} ({len(one.ours)})" for one in chosen))
    assert f"| {part.title.partition(':')[0]} | {cells[0]} | {cells[1]} |" in (ROOT / "docs" / "results.md").read_text()


def test_split_is_compared_with_both_signs_and_with_its_control():
    price, card = ((ROOT / page).read_text() for page in ("docs/price.md", "docs/method.md"))
    split, halves = contender("split-0.26"), contender("halves")
    assert compared(split, contender("ssgd-0.5")) in price
    for text in (price, card):
        assert compared(split, halves) in text
    little = [at_little_decay(method) for method in ("split", "halves")]
    assert f"by {gain(*little, 'test_accuracy').removeprefix('+')}" in price


def test_what_of_splits_gain_comes_without_noise_is_told():
    pages = ("README.md", "docs/price.md", "docs/method.md", "docs/results.md")
    readme, price, card, trail = ((ROOT / page).read_text() for page in pages)
    sgd, plain = contender("sgd"), at_little_decay("sgd")
    whole, part = (difference(contender(label), sgd, ACCURACY).mean for label in ("split-0.26", "halves"))
    assert f"**{part:.2f} of its {whole:.2f} come without noise.**" in price
    assert f"{part:.2f} of the {whole:.2f} come without noise" in card
    assert (
        f"`split` gains {whole:.2f} on CIFAR-100, better in all five seeds, of which {part:.2f} come without" in price
    )
    little, of_halves = (difference(at_little_decay(method), plain, ACCURACY).mean for method in ("split", "halves"))
    assert f"{part:.2f} of its {whole:.2f} at weight decay 5e-4, {of_halves:.2f} of {little:.2f} at 1e-4" in readme
    assert f"at SGD's passes: by {little:.2f} at 1e-4 and by {whole:.2f} at 5e-4" in card
    beyond = difference(at_little_decay("split"), at_little_decay("halves"), ACCURACY).mean
    rest = difference(contender("split-0.26"), contender("halves"), ACCURACY).mean
    assert f"`split` beyond the halves {beyond:+.2f} at 1e-4, {rest:+.2f} at 5e-4" in trail
    assert f"brings {beyond:.2f} beyond the halves, at 5e-4 {rest:.2f};" in card


def test_the_papers_numbers_are_its_own():
    price = (ROOT / "docs" / "price.md").read_text()
    table, mix = targets()["table2_cifar"]["ResNet20"], targets()["table1_equal_compute"]["rows"]["75-25S-25S"]
    sgd, both = table["SGD"][1], table["S-SGD (0.5)"][1]
    assert f"The paper's {both - sgd:+.2f}, at twice the cost," in price and f"the paper's {both:.2f} (table 2" in price
    assert f"not {mix['CIFAR-100']:.2f}: these two cells" in price


ACCURACY = "test_accuracy"


def compared(rows, others):
    return f"by {gain(rows, others, 'test_accuracy')}, {interval(rows, others, 'test_accuracy')}"


LEVELS = (0.1, 0.3, 0.5, 0.7, 1.0)


def at_level(distribution, level):
    """Both signs on CIFAR-100, ResNet20, seeds 1 to 3."""
    rows = [row for row in rows_of("level") + contender("ssgd-0.5") if row["method"] == "ssgd" and row["seed"] <= 3]
    rows = [row for row in rows if (row["distribution"], row["level"]) == (distribution, level)]
    assert sorted(row["seed"] for row in rows) == [1, 2, 3]
    return rows


def test_the_table_of_the_level_is_that_of_its_rows():
    text = (ROOT / "docs" / "noise-level.md").read_text()
    sgd = [row for row in contender("sgd") if row["seed"] <= 3]
    theirs = {point["level"]: point["mean"] for point in targets()["fig3_noise_level"]["curves"]["S-SGD"]}
    assert "| the paper, five seeds | " + " | ".join(f"{theirs[a]:.2f}" for a in LEVELS) in text
    for distribution in ("uniform", "sphere"):
        (line,) = [line for line in text.splitlines() if line.startswith(f"| `{distribution}`, a ratio")]
        assert line.endswith(" | ".join(spoken(at_level(distribution, a), ACCURACY) for a in LEVELS) + " |")
    gains = " | ".join(gain(at_level("uniform", a), sgd, ACCURACY) for a in LEVELS)
    assert f"| − SGD's, seed by seed | {gains} |" in text and f"SGD has {spoken(sgd, ACCURACY)})" in text
    below = [-difference(at_level("sphere", a), sgd, ACCURACY).mean for a in (0.5, 1.0)]
    told = "lie {:.1f} points below SGD at 0.5, where the paper's is near its peak, and {:.1f} below it at 1.0"
    assert told.format(*below) in text
    points = [
        (a * (3**-0.5 if distribution == "uniform" else 1), at_level(distribution, a))
        for distribution in ("uniform", "sphere")
        for a in LEVELS
    ]
    points.sort(key=lambda point: point[0])
    assert (
        "one curve as far as seeds can tell, " + ", ".join(spoken(rows, ACCURACY).split()[0] for _, rows in points)
        in text
    )


def test_what_statistics_gathered_again_do_to_the_curve_is_told():
    text = (ROOT / "docs" / "noise-level.md").read_text()
    theirs = {point["level"]: point["mean"] for point in targets()["fig3_noise_level"]["curves"]["S-SGD"]}
    again = {a: [row[ANEW] for row in at_level("uniform", a) if row.get(ANEW)] for a in LEVELS}
    rows = json.loads((ROOT / "results" / "recomputed-bn.json").read_text())["rows"]
    again[0.5] = [row["recomputed"] for row in rows if row["method"] == "ssgd"]
    assert [len(again[a]) for a in LEVELS] == [2, 2, 5, 2, 2]
    means = " | ".join(f"{mean(again[a]):.2f}" for a in LEVELS)
    assert f"| with batch-norm's statistics gathered again | {means} |" in text
    *first, last = (f"{mean(again[a]):.2f} ± {stdev(again[a]):.2f}" for a in LEVELS)
    assert f"{', '.join(first)} and {last} (seeds 2 and 3, at 0.5 five seeds)" in text
    off = {a: theirs[a] - mean(again[a]) for a in LEVELS}
    elsewhere = max(abs(off[a]) for a in LEVELS if a != 0.5)
    assert f"at 0.5 still {off[0.5]:.1f} below it and elsewhere within {elsewhere:.2f}:" in text
    under = [theirs[a] - mean(row[ACCURACY] for row in at_level("uniform", a)) for a in LEVELS]
    assert f"lie up to {max(under):.1f} below it" in text and under[2:] == sorted(under[2:])
    runs, *_ = read_runs(ROOT / "results")
    (figure,) = (part for part in parts() if part.name == "fig3")
    found = {
        one.cell.x: one.verdict
        for cell in figure.cells
        if cell.row == "S-SGD" and (one := outcome(cell, "fig3", runs)).ours
    }
    assert [a for a in LEVELS if found[a] == REPRODUCED] == [0.1, 0.3] and len(found) == 5


def test_the_better_level_is_told_with_where_it_was_found():
    best, sgd = at_level("uniform", 0.3), contender("sgd")
    found = difference(best, sgd, ACCURACY)
    told, between = gain(best, sgd, ACCURACY), interval(best, sgd, ACCURACY)
    assert found.gained == 3 and f"by {told} ({between})" in (ROOT / "docs" / "noise-level.md").read_text()
    assert (
        f"at 0.3 they gain {told} in seeds 1 to 3 ({between}), the best of five"
        in (ROOT / "docs" / "price.md").read_text()
    )
    assert f"at 0.3 they gain {told} in three seeds" in (ROOT / "docs" / "method.md").read_text()
    middle, sam, asam = at_level("uniform", 0.5), contender("sam-0.05"), contender("asam-0.5")
    assert difference(best, middle, ACCURACY).gained == 3
    assert f"({compared(best, middle)})" in (ROOT / "docs" / "noise-level.md").read_text()
    assert f"(SAM {compared(sam, best)}; ASAM {compared(asam, best)})" in (ROOT / "docs" / "price.md").read_text()
    assert f"both signs have {spoken(best, ACCURACY)} over three seeds" in (ROOT / "docs" / "results.md").read_text()


def test_what_statistics_gathered_again_bring_is_told():
    rows = json.loads((ROOT / "results" / "recomputed-bn.json").read_text())["rows"]
    text = (ROOT / "docs" / "howto.md").read_text()
    measured = [row for label in ("sgd", "ssgd-0.5", "split-0.26") for row in contender(label)]
    known = {(row["method"], row["seed"]): row["test_accuracy"] for row in measured}
    for method, name in (("sgd", "SGD"), ("ssgd", "both signs, level 0.5"), ("split", "`split`, level 0.26")):
        mine = [row for row in rows if row["method"] == method]
        assert all(row["test_accuracy"] == known[method, row["seed"]] for row in mine)
        own, again = (
            [{"seed": row["seed"], "of": row[key]} for row in mine] for key in ("test_accuracy", "recomputed")
        )
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
        assert line.endswith(f" | {spoken(own, 'of')} | {spoken(again, 'of')} | {gain(again, own, 'of')} |")
        told = {"ssgd": ("docs/price.md", "docs/results.md", "docs/noise-level.md"), "split": ("docs/price.md",)}
        assert all(spoken(again, "of") in (ROOT / page).read_text() for page in told.get(method, ()))
    for label, name in (
        ("halves", HALVES),
        (LATE, "`split` in the last 100 epochs"),
        (MIX, BOTH_LATE),
        (LAST, BOTH_LAST),
        ("sam-0.05", "SAM, ρ 0.05"),
        (SAM_LAST, "SAM in the last 25 of 150 epochs"),
        ("asam-0.5", "ASAM, ρ 0.5"),
    ):
        mine = contender(label)
        (line,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
        own, again = ([{"seed": row["seed"], "of": row[key]} for row in mine] for key in ("test_accuracy", ANEW))
        assert line.endswith(f" | {spoken(own, 'of')} | {spoken(again, 'of')} | {gain(again, own, 'of')} |")
    assert spoken(contender("halves"), ANEW) in (ROOT / "docs" / "price.md").read_text()
    assert all(row["recomputed"] > row["test_accuracy"] for row in rows if row["method"] == "ssgd")  # all five seeds
    assert all(row[ANEW] > row["test_accuracy"] for row in contender("halves"))
    after = 100 - np.load(ROOT / "results" / "fig7" / "plane.npz")["anchor_errors"][1][0]
    before = rows_of("fig7")[0]["test_accuracy"]
    assert f"from {before:.2f} to {after:.2f} %" in text


def test_the_table_of_sharpness_is_that_of_its_rows():
    text = (ROOT / "docs" / "analysis.md").read_text()
    rows = json.loads((ROOT / "results" / "sharpness.json").read_text())["rows"]
    decimals = {"test_accuracy": 2, "loss": 3, "excess": 2, "sam": 3, "keskar": 0}
    told = {"sgd": "SGD", "halves": HALVES, "late split": "split, 0.26, from epoch 76 on"}
    told |= {
        "last ssgd": "both signs, 0.5, in the last 25 of 150 epochs",
        "split": "split, 0.26",
        "ssgd": "both signs, 0.5",
        "sam": "SAM, ρ 0.05, seeds 1 to 3",
    }
    for method, name in told.items():
        mine = [row for row in rows if row["method"] == method]
        figures = [
            f"{mean(values):.{places}f} ± {stdev(values):.{places}f}"
            for key, places in decimals.items()
            if (values := [row[key] for row in mine])
        ]
        assert f"| {name} | {' | '.join(figures)} |" in text
    by_seed = {(row["method"], row["seed"]): row for row in rows}
    for seed in (3, 4, 5):  # flatter in every seed
        for key in ("excess", "keskar"):
            sgd, split, both = (by_seed[method, seed][key] for method in ("sgd", "split", "ssgd"))
            assert sgd > split > both and split > by_seed["last ssgd", seed][key]


def test_the_line_of_figure_2_is_told():
    """It is read off figure 7's plane until it is computed."""
    (plane,) = read_measured(ROOT / "results").planes("fig7")
    line = section(plane)
    errors = {
        task: dict(zip(line.arrays["x"].round(2), line.arrays["errors"][i], strict=True))
        for i, task in enumerate(line.tasks)
    }
    train, test = ({x: f"{error:.1f}" for x, error in errors[task].items()} for task in ("train", "test"))
    text = (ROOT / "docs" / "analysis.md").read_text()
    assert f"from {train[0]} to {train[1]} %, and the test error falls, from {test[0]} to {test[1]} %" in text
    assert f"the test error has risen to {test[-0.2]} %, as far beyond S-SGD's to {test[1.2]} %" in text
    between = [errors["train"][x] for x in sorted(errors["train"]) if 0 <= x <= 1]
    assert (
        between == sorted(between)
        and max(errors["test"][x] for x in errors["test"] if 0 <= x <= 1) == errors["test"][0]
    )


def test_the_line_between_solutions_trained_apart_is_told():
    line = np.load(ROOT / "results" / "apart" / "line.npz")
    at = {x: f"{error:.2f}" for x, error in zip(line["x"].round(3), line["errors"][1], strict=True)}
    told = f"from {at[0.0]} to {at[-0.25]} %, as far beyond S-SGD's from {at[1.0]} to {at[1.25]} %"
    text = (ROOT / "docs" / "analysis.md").read_text()
    assert told in text and f"({at[0.5]} %)" in text


def test_where_we_differ_is_told_in_figures_of_the_rows():
    text = (ROOT / "docs" / "results.md").read_text()
    solutions = {row["experiment"].split("/")[1]: row for row in rows_of("fig7")}
    paper = targets()["fig7_surface"]
    for label, name in (("sgd-m", "SGD_m"), ("sgd-f", "SGD_f")):
        assert f"{solutions[label]['train_accuracy']:.2f}" in text and f"{paper['train'][name]:.2f} %" in text
    both, sgd = (solutions[label]["test_accuracy"] for label in ("ssgd", "sgd-f"))
    theirs = paper["test"]["S-SGD"] - paper["test"]["SGD_f"]
    assert f"has {both:.2f} where SGD from the same 125 epochs has {sgd:.2f}" in text
    assert f"a gain of {both - sgd:.2f}, the paper's is {theirs:.2f}" in text
    again = 100 - np.load(ROOT / "results" / "fig7" / "plane.npz")["anchor_errors"][0][0]
    assert f"({again:.2f} with statistics gathered again)" in text
    for label in (MIX, "halves"):
        assert spoken(contender(label), "test_accuracy") in text
    little = [row for row in rows_of("baseline") if row["experiment"] == "cifar100/1e-4"]
    assert f"({spoken(little, 'train_accuracy')})" in text and spoken(little, "test_accuracy").split()[0] in text
    assert spoken(contender("ssgd-0.5"), "test_accuracy") in text


def test_the_course_of_the_training_is_told_beside_figure_4():
    text = (ROOT / "docs" / "results.md").read_text()
    theirs, ours = targets()["fig4_convergence"]["curves"], {row["method"]: row["curve"] for row in rows_of("fig4")}
    assert {row["seed"] for row in rows_of("fig4")} == {0} and set(ours) == {"sgd", "ssgd"}
    papers, mine = {}, {}
    for name, method in (("SGD", "sgd"), ("S-SGD", "ssgd")):
        early, late = (np.array(theirs[part][name]) for part in ("epochs_0_90", "epochs_100_175"))
        papers[name] = f"{early[:, 40:75].mean():.1f}", f"{late[:, 1:26].mean():.1f}"  # epochs 41 to 75, 101 to 125
        mine[name] = f"{mean(ours[method][40:75]):.1f}", f"{mean(ours[method][100:125]):.1f}"
        if name == "SGD":
            runs = targets()["tableA1_cifar10_runs"]["ResNet20"]["SGD"]["runs"]
            told = f"end at {late[:, -1].mean():.2f} on average, as table A1's do at {mean(runs):.2f}"
            assert f"{told}; their best epochs have {late.max(1).mean():.2f}" in text
    first, second = papers["SGD"]
    told = f"has {first} % on average over epochs 41 to 75 and {second} over 101 to 125"
    assert f"{told}, its S-SGD {' and '.join(papers['S-SGD'])}" in text
    assert f"ours has {' and '.join(mine['SGD'])}, and both signs {' and '.join(mine['S-SGD'])} (seed 0)" in text
    after = {
        decay: [
            f"{row['curve'][124]:.2f}" for row in rows_of("setting") if row["experiment"] == f"setting/B/{decay}/sgd"
        ]
        for decay in ("2e-4", "5e-4")
    }
    assert f"shortcut B at 2e-4 {after['2e-4'][0]} (one seed; at 5e-4 {', '.join(after['5e-4'])})" in text
    (low,) = (row for row in rows_of("setting") if row["experiment"] == "setting/B/2e-4/sgd")
    train, test = targets()["fig7_surface"]["train"]["SGD_f"], targets()["table2_cifar"]["ResNet20"]["SGD"][1]
    told = f"our SGD has {low[ACCURACY]:.2f} % and fits {low['train_accuracy']:.2f} % of the training images"
    assert f"{told}, the paper's {test:.2f} and {train:.2f} (one seed, below)" in text
    (both,) = (row for row in rows_of("setting") if row["experiment"] == "setting/B/2e-4/ssgd-0.5")
    theirs_both = targets()["table2_cifar"]["ResNet20"]["S-SGD (0.5)"][1]
    assert f"{low[ANEW]:.2f} for SGD and {both[ANEW]:.2f} for both signs, the paper's {theirs_both:.2f}" in text
    looked = [[value for value in row["curve"] if value is not None] for row in contender("ssgd-0.5")]
    assert {len(values) for values in looked} == {35} and len(looked) == 5
    assert f"of 35 looked at, has {mean(map(max, looked)):.2f} on average" in text


def test_the_first_epochs_are_told_beside_the_papers():
    text, readme, howto = ((ROOT / page).read_text() for page in ("docs/results.md", "README.md", "docs/howto.md"))
    rows = {row["experiment"]: row for row in rows_of("course")}
    theirs = targets()["fig4_convergence"]["curves"]["epochs_0_90"]["SGD"]
    named = {
        "the paper's SGD, five runs": theirs,
        "weight decay 5e-4": [rows["cifar10/resnet20"]["curve"]],
        "5e-4, with TensorFlow's default memory": [rows["cifar10/resnet20-tf"]["curve"]],
        "5e-4, statistics gathered again": [rows["course/anew"]["curve"]],
        "2e-4": [rows["course/2e-4"]["curve"]],
    }
    for name, curves in named.items():
        first, second = (mean(mean(curve[i : i + 10]) for curve in curves) for i in (5, 15))
        spread = mean(stdev(curve[15:25]) for curve in curves)
        assert f"| {name} | {first:.1f} | {second:.1f} | {spread:.1f} |" in text
    assert all(row["recipe"]["lr"] == [0.1] and row["seed"] == 0 for row in rows.values())
    assert rows["course/anew"]["recipe"]["recompute_bn"] and rows["course/2e-4"]["weight_decay"] == 2e-4
    ends = [rows[f"cifar10/{net}"] for net in ("resnet20", "resnet20-tf")]
    before, after = ([row[key] for row in ends] for key in (ACCURACY, ANEW))
    assert f"from {before[0]} and {before[1]} to {after[0]} and {after[1]}: at a high rate" in text
    assert f"after 50 epochs at 0.1 from {before[0]} to {after[0]} %" in howto
    page = (ROOT / "docs" / "report.html").read_text()
    count, again, own = re.search(
        r"(\d+) tell their accuracy.*?by that (\d+) of them.*?by their own (\d+)", page
    ).groups()
    assert f"Judged so, {again} of {count} gains of the paper are reproduced, otherwise {own}." in readme


def test_which_gains_stay_when_ten_are_looked_at():
    """By Holm's steps."""
    sgd, found = contender("sgd"), {}
    for label in CONTENDERS:
        if label != "sgd":
            d = difference(contender(label), sgd, ACCURACY)
            t = abs(d.mean) / (d.sd / d.count**0.5)
            low, high = 0.0, 1.0
            for _ in range(14):
                share = (low + high) / 2
                low, high = (low, share) if t > t_quantile(1 - share / 2, d.count - 1) else (share, high)
            found[label] = high
    order = sorted(found, key=lambda label: found[label])
    failed = [found[label] * (len(order) - place) > 0.05 for place, label in enumerate(order)]
    stay, miss = order[: failed.index(True)], order[failed.index(True) :]
    last = [label for label in CONTENDERS if label.startswith("75-50-25S")]
    assert len(order) == 10 and len(last) == 2
    assert set(stay) == {"sam-0.05", "asam-0.5", "split-0.26", "75-50S-50S-split-0.26", *last}
    assert {"ssgd-0.5", "halves"} == {label for label in miss if found[label] * (len(order) - len(stay)) < 0.065}
    assert "Corrected for ten (Holm), SAM, ASAM, both ways to have `split`" in (ROOT / "docs" / "price.md").read_text()


def test_the_table_of_the_small_lstm_is_that_of_its_rows():
    text = (ROOT / "docs" / "language.md").read_text()
    for row in rows_of("small-lstm"):
        recipe, figures = row["recipe"], (row["valid_perplexity"], row["test_perplexity"])
        told = f"| {recipe['dropout']} | {recipe['decay_after']} | " + " | ".join(f"{one:.2f}" for one in figures)
        assert f"{told} |" in text


def test_the_time_of_an_epoch_is_told():
    text = (ROOT / "docs" / "language.md").read_text()
    rows = json.loads((ROOT / "results" / "large-lstm-epochs.json").read_text())["rows"]
    sgd, split, both = (f"{row['fastest_s']:.1f} s" for row in rows)
    assert f"took {sgd} with SGD, {split} with `split` and {both} with both signs" in text


def test_the_small_lstm_of_table_5_is_told_beside_the_papers():
    text = (ROOT / "docs" / "language.md").read_text()
    paper = targets()["table5_ptb_test_perplexity"]["small"]
    rows = {row["level"]: row for row in rows_of("table5") if row["experiment"].startswith("table5/small/")}
    for level, row in rows.items():
        figures = (row["valid_perplexity"], row[METRIC], paper[f"S-SGD ({level:g})"])
        assert f"| level {level:g} | {row['passes']:g} | " + " | ".join(f"{one:.2f}" for one in figures) + " |" in text
        assert abs(figures[1] - figures[2]) < 0.6
    sgd = {(r["recipe"]["dropout"], r["recipe"]["decay_after"]): r[METRIC] for r in rows_of("small-lstm")}
    best = min(row[METRIC] for row in rows.values())
    told = f"{sgd[0.4, 10] - best:.2f} below SGD, and {min(sgd.values()) - best:.2f} below SGD with dropout 0.5"
    assert told in text
