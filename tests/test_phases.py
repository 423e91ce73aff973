"""Phases as they are written: who trains how long, at which rate, at what cost."""

import math

import pytest
import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, CosineAnnealingWarmRestarts

from ssgd.lab.train.phases import Phase, parse
from ssgd.methods import METHODS

RATES = (0.1, 0.01, 0.001)


def read(text, lr=RATES, method="both", level=0.5, **options):
    return parse(text, lr, method, level, **options)


@pytest.mark.parametrize(
    ("text", "phases"),
    [
        ("75-50-50", [(75, 0.1, "both", 0.5), (50, 0.01, "both", 0.5), (50, 0.001, "both", 0.5)]),
        ("75-25S-25S", [(75, 0.1, "base", None), (25, 0.01, "both", 0.5), (25, 0.001, "both", 0.5)]),
        (" 75 - 25S-25 S ", [(75, 0.1, "base", None), (25, 0.01, "both", 0.5), (25, 0.001, "both", 0.5)]),
        ("75-25(split:0.15)-25", [(75, 0.1, "base", None), (25, 0.01, "split", 0.15), (25, 0.001, "base", None)]),
        ("75-25(m-arwp)-25S", [(75, 0.1, "base", None), (25, 0.01, "m-arwp", None), (25, 0.001, "both", 0.5)]),
        ("1(rwp:1e-2)-0-2(rwp:.02)", [(1, 0.1, "rwp", 0.01), (2, 0.001, "rwp", 0.02)]),
    ],
)
def test_phases_are_read_as_the_paper_writes_them(text, phases):
    assert read(text).phases == tuple(Phase(*phase) for phase in phases)


def test_one_rate_serves_all_phases():
    assert [phase.lr for phase in read("3-2S", (0.3,)).phases] == [0.3, 0.3]


@pytest.mark.parametrize("text", ["10*2", "10*2S", " 10 * 2 S"])
def test_restarts_are_cosines_that_grow_until_they_are_cut(text):
    found = read(text, (0.1,), epochs=300).phases
    assert [phase.epochs for phase in found] == [10, 20, 40, 80, 150]
    assert [phase.period for phase in found] == [10, 20, 40, 80, 160]
    assert {phase.label for phase in found} == {"both(0.5)"}
    assert [phase.epochs for phase in read("4*1", (0.1,), epochs=10).phases] == [4, 4, 2]


def test_twice_the_epochs_of_sgd_2x_in_the_phases_it_trains():
    assert [phase.epochs for phase in read("75-50-50", method="base-2x", level=None).phases] == [150, 100, 100]
    assert [phase.epochs for phase in read("75-25S-25", method="base-2x", level=None).phases] == [75, 50, 25]
    assert sum(phase.epochs for phase in read("10*2", method="base-2x", lr=(0.1,), level=None, epochs=30).phases) == 60


@pytest.mark.parametrize(
    ("text", "options", "sentence"),
    [
        ("75-x-50", {}, r"cannot read phases='75-x-50': write them as 75-50-50"),
        ("", {}, "cannot read phases=''"),
        ("75--50", {}, "cannot read phases"),
        ("-75", {}, "cannot read phases"),
        ("75s-50", {}, "cannot read phases"),
        ("75-50(split:0.15", {}, "cannot read phases"),
        ("75-50(split:1e)-1", {}, r"cannot read phases='75-50\(split:1e\)-1'"),
        ("75-50(splt)-1", {}, "no method called 'splt': did you mean split"),
        ("75-50", {}, "needs one lr for all or one for each of 2 phases, not 3"),
        ("0-0-0", {}, "phases=0-0-0 has no epoch to train"),
        ("10*2", {}, r"phases=10\*2 has no end of its own: give epochs=300"),
        ("0*2", {"epochs": 3, "lr": (0.1,)}, r"positive numbers, not 0\*2 over 3"),
        ("10*0", {"epochs": 3, "lr": (0.1,)}, r"positive numbers, not 10\*0 over 3"),
        ("10*2", {"epochs": 0, "lr": (0.1,)}, r"positive numbers, not 10\*2 over 0"),
        ("10*2", {"epochs": 3, "anneal": "cosine"}, r"phases=10\*2 anneals by cosines of its own: leave out anneal"),
        ("10*2", {"epochs": 3}, r"begins every cosine at one rate: give lr=0.1, not 3 rates"),
        ("75-50-50", {"epochs": 3}, r"epochs=3 goes with restarts such as phases=10\*2"),
        ("75-50-50", {"method": "sgdr"}, r"sgdr trains under warm restarts: give phases=10\*2"),
        (
            "75-50(both-sgdr:0.3)-50",
            {},
            r"both-sgdr trains under warm restarts: give method=both-sgdr and phases=10\*2",
        ),
    ],
)
def test_what_cannot_be_read_gets_a_sentence(text, options, sentence):
    with pytest.raises(ValueError, match=sentence):
        read(text, **options)


def test_warm_restarts_have_torchs_rate_at_every_moment():
    base = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    torchs = CosineAnnealingWarmRestarts(base, T_0=10, T_mult=2)
    schedule = read("10*2", (0.1,), "sgdr", None, epochs=300)
    for moment in range(300 * 7):
        torchs.step(moment / 7)
        assert schedule.lr(moment / 7) == pytest.approx(torchs.get_last_lr()[0], rel=1e-9, abs=1e-15)


def test_twice_the_epochs_of_a_rate_that_decays_are_refused():
    with pytest.raises(ValueError, match="would take the rate to nothing: give method=base with phases, decay"):
        read("55", method="base-2x", lr=(1.0,), level=None, decay=1.15, decay_after=14)


@pytest.mark.parametrize("name", [name for name, method in METHODS.items() if method.passes > 1])
def test_a_phase_at_level_zero_costs_what_it_runs(name):
    model, x = torch.nn.Linear(3, 2), torch.randn(4, 3)
    level = METHODS[name].settings[0].name
    opt = METHODS[name].build(torch.optim.SGD(model.parameters(), lr=0.1), model, **{level: 0.0})
    passes = 0
    for point, part in METHODS[name].batches(opt, x):
        with point:
            model(part).sum().backward()
        passes += 1
    assert Phase(10, 0.1, name, 0.0).passes == 10 * passes
    assert Phase(10, 0.1, name).passes == 10 * METHODS[name].passes


def test_a_method_of_twice_the_epochs_has_them_in_a_phase_of_its_own_too():
    assert [phase.epochs for phase in read("75(base-2x)-50-50").phases] == [150, 50, 50]
    assert [phase.epochs for phase in read("75-50-50", method="base-2x").phases] == [150, 100, 100]


def test_rates_change_exactly_at_the_boundaries():
    schedule = read("75-50-50")
    moments = {0: 0.1, 74.999: 0.1, 75: 0.01, 124.999: 0.01, 125: 0.001, 174.999: 0.001}
    assert {moment: schedule.lr(moment) for moment in moments} == moments
    assert [schedule.index(epoch) for epoch in (0, 74, 75, 124, 125, 174)] == [0, 0, 1, 1, 2, 2]
    with pytest.raises(ValueError, match="no such epoch"):
        schedule.index(175)


def test_one_cosine_over_all_phases_is_torchs():
    base = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    torchs = CosineAnnealingLR(base, T_max=20)
    schedule = read("10-10S", (0.1, 0.5), anneal="cosine")
    for epoch in range(20):
        assert schedule.lr(epoch) == pytest.approx(torchs.get_last_lr()[0], rel=1e-9)
        base.step()
        torchs.step()
    assert schedule.lr(19.999) < 1e-8
    assert [phase.method for phase in schedule.phases] == ["base", "both"]


def test_the_warm_up_rises_in_proportion_and_then_lets_go():
    schedule = read("4-4", (0.8, 0.4), warm_up=2.0)
    assert [schedule.lr(moment) for moment in (0, 0.5, 1, 2, 3.9, 4)] == pytest.approx([0, 0.2, 0.4, 0.8, 0.8, 0.4])
    assert read("8", (0.8,), warm_up=2.0, anneal="cosine").lr(1) == pytest.approx(
        0.8 * (1 + math.cos(math.pi / 8)) / 2 / 2
    )


def test_the_mixes_of_table_1_cost_no_more_than_sgds_175_epochs():
    costs = {text: read(text).passes for text in ("37S-25S-25S", "75-50-25S", "75-25S-50", "75-25S-25S")}
    assert costs == {"37S-25S-25S": 174, "75-50-25S": 175, "75-25S-50": 175, "75-25S-25S": 175}
    assert read("75-50-50", method="base", level=None).passes == 175
    assert read("75-50-50").passes == 350 and read("75-50-50").epochs == 175


@pytest.mark.parametrize("method", [name for name, method in METHODS.items() if not method.warm_restarts])
def test_a_phase_costs_the_passes_of_its_method(method):
    assert read(f"3-2({method})", (0.1,)).passes == 3 + 2 * METHODS[method].epochs * METHODS[method].passes


def test_a_schedule_reads_as_a_sentence():
    assert str(read("75-25S", (0.1, 0.01))) == "75 epochs of base at 0.1; 25 epochs of both(0.5) at 0.01"
    assert str(read("4*2", (0.1,), epochs=6)) == (
        "4 epochs of both(0.5) at 0.1 falling by a cosine of 4 epochs; "
        "2 epochs of both(0.5) at 0.1 falling by a cosine of 8 epochs"
    )
    assert str(read("2S", (0.1,), anneal="cosine")) == "2 epochs of both(0.5); the rate falls from 0.1 by one cosine"
