"""Recipes as data: there and back, changed by words, refused with a sentence; and the paper's own numbers."""

import json
from dataclasses import FrozenInstanceError, replace

import pytest

from ssgd import methods, paper_level
from ssgd.cli.main import main
from ssgd.lab import models
from ssgd.lab.data import registry as data
from ssgd.lab.experiments import get, listing, names
from ssgd.lab.experiments.identity import identity
from ssgd.lab.train.engine import train
from ssgd.lab.train.recipe import Execution, Recipe

from .small_trainings import run_of, small


@pytest.mark.parametrize("name", names())
def test_every_recipe_can_be_trained_as_written(name):
    recipe = get(name)
    assert recipe.name == name and recipe.schedule.epochs > 0
    assert recipe.model in models.MODELS and recipe.data in (*data.NAMES, "imagenet", "tiny-imagenet-10")
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe


def test_every_recipe_is_listed():
    lines = listing().splitlines()
    assert len(names()) == len(set(names())) and set(names()) <= set(lines)
    assert lines[0] == "digits" and "table1: ResNet20: SGD and S-SGD phases mixed at the cost of SGD" in lines


def test_names_are_listed_without_building_a_recipe(monkeypatch):
    monkeypatch.setattr(Recipe, "__post_init__", None)
    assert len(names()) > 500 and "table2/cifar100/vgg16/both-0.52" in listing()


def test_every_field_comes_back_from_json():
    recipe = Recipe(
        method="m-arwp", settings={"share": 0.3}, level=0.02, lr=(0.5,), phases="2-3", seeds=(4, 5), per_rank=True
    )
    assert Recipe.from_json(json.loads(json.dumps(recipe.to_json()))) == recipe
    assert Recipe.from_json({"batch": 64}) == Recipe(batch=64)
    with pytest.raises(ValueError, match="a recipe has no field 'colour': it comes from another ssgd"):
        Recipe.from_json({"colour": "red"})


def test_differences_name_the_fields():
    assert Recipe().differences(Recipe()) == {}
    other = Recipe(lr=(0.1,), method="m-arwp", settings={"eta": 2.0})
    assert Recipe().differences(other) == {
        "lr": ([0.1, 0.01, 0.001], [0.1]),
        "method": ("base", "m-arwp"),
        "settings": ({}, {"eta": 2.0}),
    }


def test_a_recipe_is_not_changed_in_place():
    with pytest.raises(FrozenInstanceError):
        Recipe().batch = 64


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["lr=0.1"], {"lr": (0.1,)}),
        (["lr=0.1,0.01,1e-3"], {"lr": (0.1, 0.01, 0.001)}),
        (["lr=(0.2, 0.02, 0.002)"], {"lr": (0.2, 0.02, 0.002)}),
        (["seeds=0,1,2"], {"seeds": (0, 1, 2)}),
        (["seeds=3"], {"seeds": (3,)}),
        (["train_limit=100", "test-limit=50"], {"train_limit": 100, "test_limit": 50}),
        (["train_limit=none"], {"train_limit": None}),
        (["per_rank=true"], {"per_rank": True}),
        (["per_rank=None"], {"per_rank": None}),
        (["augment=no", "nesterov=1"], {"augment": False, "nesterov": True}),
        (["method=split:0.15"], {"method": "split", "level": 0.15}),
        (["method=both", "level=0.3"], {"method": "both", "level": 0.3}),
        (["method=m-arwp", "settings.share=0.3", "settings.eta=2"],
         {"method": "m-arwp", "settings": {"share": 0.3, "eta": 2.0}}),
        (["phases=75-25(split:0.15)-25"], {"phases": "75-25(split:0.15)-25"}),
        (["data=/a=b"], {"data": "/a=b"}),
    ],
)  # fmt: skip
def test_words_become_values_of_the_fields_type(changes, expected):
    assert Recipe().with_changes(changes) == replace(Recipe(), **expected)


def test_words_leave_the_other_settings_and_the_recipe_itself_alone():
    recipe = Recipe(method="m-arwp", settings={"share": 0.3})
    assert recipe.with_changes(["settings.eta=2"]).settings == {"share": 0.3, "eta": 2.0}
    assert recipe.settings == {"share": 0.3}


def test_an_execution_is_changed_by_words_too():
    found = Execution().with_changes(["out=/tmp/x", "compile=none", "graph=false", "keep=3", "checkpoint_seconds=0.5"])
    assert found == Execution(out="/tmp/x", graph=False, keep=3, checkpoint_seconds=0.5)


def test_a_gpu_that_is_not_there_is_not_asked_for(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert Execution().kind == "cpu"
    with pytest.raises(ValueError, match="device=cuda, but torch sees no GPU here: use device=cpu"):
        Execution(device="cuda")
    for device in ("cpu", "auto"):
        with pytest.raises(ValueError, match="graph=true needs a GPU, and this would train on the CPU: leave it out"):
            Execution(device=device, graph=True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("colour=red", "cannot use 'colour=red': write key=value with one of the keys name, model, data"),
        ("batch", "cannot use 'batch': write key=value"),
        ("noise=0.3", "the noise level is part of the method: method=split:0.3"),
        ("momentum=2", "momentum must be a finite number of at least 0 and below 1, not 2"),
        ("decay_after=-5", "decay_after must be a whole number of at least 0, not -5"),
        ("name=", "name='' names no folder"),
        ("phases=99999999999999999999-1-1", "is longer than a million epochs"),
        ("mehtod=split", r"cannot use 'mehtod=split': did you mean method\?"),
        ("seeds=-1", r"seeds must be whole numbers of at least 0 and of at most 9223372036854775807, not \(-1,\)"),
        ("seeds=9223372036854775808", "seeds must be whole numbers of at least 0"),
        ("batch=many", "batch takes a whole number, not 'many'"),
        ("batch=12.5", "batch takes a whole number, not '12.5'"),
        ("batch=0", "batch must be a whole number of at least 1, not 0"),
        ("lr=0.1,fast", "lr takes a finite number, not 'fast'"),
        ("lr=", "lr must have a rate for all phases"),
        ("lr=nan", "lr must be finite numbers of at least 0"),
        ("lr=-0.1", "lr must be finite numbers of at least 0"),
        ("lr=1,2", "one lr for all or one for each of 3 phases, not 2"),
        ("augment=maybe", "augment is true or false, not 'maybe'"),
        ("train_limit=few", "train_limit takes a whole number, not 'few'"),
        ("name=../x", "name='../x' names no folder inside that of the runs: say with out="),
        ("name=/tmp/x", "name='/tmp/x' names no folder"),
        ("seeds=1,1", "seeds must be different numbers"),
        ("seeds=", "seeds must be different numbers, at least one"),
        ("method=bsae", r"no method called 'bsae': did you mean base"),
        ("method=split:much", "level takes a finite number, not 'much'"),
        ("settings.share=0.5", "base has no setting 'share' besides its level: none"),
        ("settings.share=half", r"settings\.share takes a finite number, not 'half'"),
        ("settings=0.5", r"cannot use 'settings=0.5': .* level, settings\.NAME, distribution"),
        ("model.depth=20", "cannot use 'model.depth=20'"),
        ("phases=", "cannot read phases=''"),
        ("distribution=gauss", "distribution must be one of 'sphere'"),
        ("perturb=bias", "perturb must be one of 'all', 'conv', 'dense', 'recurrent', 'embedding', not 'bias'"),
        ("precision=fp16", "precision must be one of"),
        ("momentum=-1", "momentum must be a finite number of at least 0 and below 1, not -1"),
        ("weight_decay=nan", "weight_decay must be a finite number of at least 0, not nan"),
        ("warm_up=inf", "warm_up must be a finite number"),
        ("decay=inf", "decay must be a finite number above 0, not inf"),
        ("lr_for_batch=0", "lr_for_batch must be a whole number of at least 1, not 0"),
        ("evaluate_every=0", "evaluate_every must be a whole number"),
    ],
)
def test_words_that_make_no_sense_get_a_sentence(change, sentence):
    with pytest.raises(ValueError, match=sentence):
        Recipe().with_changes([change])


def test_a_method_takes_no_setting_of_another():
    with pytest.raises(ValueError, match=r"m-arwp has no setting 'gamma' besides its level: share, eta, beta"):
        Recipe(method="m-arwp", settings={"gamma": 1.0})


def test_a_method_that_trains_no_phase_is_refused_where_it_would_be_trained(tmp_path):
    """Its name would stand in the row. What an earlier version has made can be looked at all the same."""
    words = ["method=both", "level=0.5", "lr=0.1"]
    for phases in ("1-1(split:0.15)", "2-0S"):
        recipe = get("digits").with_changes([*words, f"phases={phases}"])
        assert Recipe.from_json(recipe.to_json()) == recipe
        with pytest.raises(ValueError, match=r"method=both trains none of phases=.*: mark some with S"):
            train(recipe, Execution(out=str(tmp_path), device="cpu", progress=False))
    for phases in ("1(split:0.15)-1S", "1-1(both)", "1(both:0.3)-1(both:0.1)"):
        Recipe().with_changes([*words, f"phases={phases}"]).check_trainable()
    with pytest.raises(ValueError, match=r"settings.share=1 leaves no clean gradient to mix with.*use method=rwp"):
        Recipe(method="m-arwp", settings={"share": 1.0}).check_trainable()


def test_a_recipe_shows_its_fields_and_its_cost():
    shown = str(get("table1/cifar100/75-25S-25S"))
    assert "phases = '75-25S-25S'" in shown and "level = 0.2886" in shown and "distribution = 'uniform'" in shown
    assert "# 75 epochs of base at 0.1; 25 epochs of both(0.289) at 0.01; 25 epochs of both(0.289) at 0.001" in shown
    assert "# 125 epochs that cost as much as 175 of plain SGD" in shown
    assert str(Recipe(phases="1", lr=(0.1,))).endswith("# 1 epoch that costs as much as 1 of plain SGD")
    assert "nesterov" not in shown


@pytest.mark.parametrize(
    ("method", "level", "told"), [("split", 9.0, True), ("both", 1.4, False), ("base", None, False)]
)
def test_a_level_far_from_what_is_worth_trying_is_remarked_on(method, level, told):
    shown = str(Recipe(method=method, level=level))
    assert ("\n# split at 9 may well learn nothing: worth trying are 0 to 0.6" in shown) == told
    assert ("learn nothing" in shown) == told


def test_the_rate_grows_with_the_batch_where_it_is_meant_for_another():
    assert [phase.lr for phase in Recipe(lr_for_batch=256, batch=1024).schedule.phases] == [0.4, 0.04, 0.004]


def test_what_is_left_open_is_settled_and_kept():
    assert Recipe(method="both").resolved("cpu") == Recipe(method="both", level=0.29, precision="fp32")
    assert Recipe(method="both", level=0.5, precision="bf16").resolved("cpu").level == 0.5
    assert Recipe(level=0.5).resolved("cpu").level is None  # plain SGD has none


@pytest.mark.parametrize(("method", "level"), [("split", 0.15), ("both", 0.29), ("sam", 0.05)])
def test_a_level_left_open_is_the_same_under_either_distribution(method, level):
    for distribution in ("sphere", "uniform"):
        recipe = small(method=method, distribution=distribution, phases=f"1({method})-1", lr=(0.1, 0.01))
        assert recipe.resolved("cpu").level == level
        run = run_of(recipe)
        assert run.opt.param_groups[0][methods.get(method).settings[0].name] == level
        given = small(
            method=method, level=level, distribution=distribution, phases=f"1({method}:{level})-1", lr=(0.1, 0.01)
        )
        assert identity(recipe) == identity(given)


def test_the_protocol_on_cifar_is_the_papers():
    for name in ("cifar10", "cifar100"):
        recipe = get(name)
        assert (recipe.data, recipe.batch, recipe.optimizer, recipe.momentum) == (name, 128, "sgd", 0.9)
        assert recipe.schedule.epochs == 175 and recipe.augment and recipe.lr_for_batch is None
        assert [recipe.schedule.lr(epoch) for epoch in (0, 74, 75, 124, 125, 174)] == pytest.approx(
            [0.1, 0.1, 0.01, 0.01, 0.001, 0.001]
        )


def test_table_1_has_the_papers_rows():
    rows = {name.removeprefix("table1/cifar100/") for name in names() if name.startswith("table1/cifar100/")}
    assert rows == {"75-50-50", "37S-25S-25S", "75-50-25S", "75-25S-50", "75-25S-25S"}
    for data_set in ("cifar10", "cifar100"):
        found = {row: get(f"table1/{data_set}/{row}") for row in rows}
        assert {recipe.model for recipe in found.values()} == {"resnet20"}
        assert all(recipe.schedule.passes <= 175 for recipe in found.values())
        assert found["75-50-50"].method == "base" and found["75-25S-25S"].method == "both"


def test_table_2_has_the_papers_models_and_levels():
    levels = {
        "resnet20": (0.4, 0.5),
        "resnet56": (0.4, 0.5),
        "wrn28-2": (0.5, 0.7),
        "wrn28-4": (0.5, 0.7),
        "vgg6": (0.7, 0.9),
        "vgg16": (0.7, 0.9),
    }
    for data_set in ("cifar10", "cifar100"):
        assert sum(name.startswith(f"table2/{data_set}/") for name in names()) == 3 * len(levels)
        for model, pair in levels.items():
            plain = get(f"table2/{data_set}/{model}/base")
            assert (plain.model, plain.method, plain.data, len(plain.seeds)) == (model, "base", data_set, 5)
            for level in pair:
                recipe = get(f"table2/{data_set}/{model}/both-{paper_level(level):.2g}")
                assert {"name", "method", "level"} == recipe.differences(plain).keys()
                assert (recipe.method, recipe.level) == ("both", paper_level(level))


def test_table_3_has_the_papers_batch_epochs_and_level():
    for depth in (18, 50):
        recipe = get(f"table3/resnet{depth}/both")
        assert (recipe.model, recipe.batch, recipe.schedule.epochs) == (f"imagenet-resnet{depth}", 1024, 90)
        assert (recipe.level, get(f"table3/resnet{depth}/base").method) == (paper_level(0.25), "base")


def test_figure_3_has_the_papers_levels_on_all_conv_and_dense():
    for part in ("all", "conv", "dense"):
        for tenths in range(1, 11):
            recipe = get(f"fig3/{part}/{paper_level(tenths / 10):.2g}")
            assert (recipe.model, recipe.data, recipe.method) == ("resnet20", "cifar100", "both")
            assert (recipe.level, recipe.perturb, len(recipe.seeds)) == (paper_level(tenths / 10), part, 5)


def test_figure_5_has_the_papers_batches_and_restarts():
    for batch in (1024, 2048, 4096, 16384):
        for method, annealed in (("base", "sgdr"), ("both", "both-sgdr")):
            steps, restarts = get(f"fig5/{method}/{batch}"), get(f"fig5/{annealed}/{batch}")
            assert {steps.data, restarts.data} == {"cifar10"} and {steps.batch, restarts.batch} == {batch}
            assert steps.devices == restarts.devices == 4
            assert steps.schedule.epochs == 175 and restarts.schedule.epochs == 300
            assert steps.schedule.lr(0) == restarts.schedule.lr(0) == 0.1
            assert [phase.period for phase in restarts.schedule.phases] == [10, 20, 40, 80, 160]
            assert methods.get(restarts.method).warm_restarts and not methods.get(steps.method).warm_restarts


def test_unknown_recipes_suggest_near_names():
    with pytest.raises(ValueError, match="no recipe called 'cifr100': did you mean cifar100 or cifar10"):
        get("cifr100")
    with pytest.raises(ValueError, match=rf"no recipe called 'zzz': `ssgd recipes` lists all {len(names())}"):
        get("zzz")


def test_another_method_begins_with_its_own_level():
    recipe = get("table2/cifar10/resnet20/both-0.29")
    assert recipe.with_changes(["method=sam"]).level is None
    assert recipe.with_changes(["method=sam", "level=0.1"]).level == 0.1
    assert recipe.with_changes(["method=both"]).level == paper_level(0.5)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 1),
        ("lr", ["0.1"]),
        ("lr", 0.1),
        ("phases", 8),
        ("model", 3),
        ("data", None),
        ("augment", 1),
        ("batch", 2.5),
    ],
)
def test_a_recipe_read_back_has_fields_of_their_types(field, value):
    with pytest.raises(ValueError, match=rf"{field} must be .*, not "):
        Recipe.from_json({**Recipe().to_json(), field: value})
    assert Recipe.from_json(Recipe(lr=(1,), clip=5).to_json()) == Recipe(lr=(1.0,), clip=5.0)


def test_a_warm_up_longer_than_the_training_is_refused():
    with pytest.raises(ValueError, match="warm_up=3 is longer than the 2 epochs there are"):
        get("digits").with_changes(["phases=1-1", "warm_up=3"]).check_trainable()


def test_a_mark_without_a_method_is_refused_where_it_compares_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["digits", "phases=1-1S", "lr=0.1", "train_limit=50", "test_limit=20"]
    assert main(["train", *words]) == 2
    assert (
        "phases=1-1S marks with S what the method trains, and method=base is the plain base" in capsys.readouterr().err
    )
    assert main(["compare", *words, "--vary", "method=base,both:0.1"]) == 0
    assert "base then both(0.1)" in capsys.readouterr().out
