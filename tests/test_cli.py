"""The commands: what they take, what they print, and how they end."""

import csv
import json
import os
import re
import shlex
import subprocess
import sys

import pytest

from ssgd import paper_level
from ssgd.cli.compare import variants
from ssgd.cli.main import CONNECTIONS, main
from ssgd.lab.experiments import get, names
from ssgd.lab.models import MODELS
from ssgd.lab.train import Recipe, RunDir, find_runs
from ssgd.methods import METHODS

from .small_trainings import read

SHORT = ["name=digits", "phases=1", "lr=0.1", "train_limit=100", "test_limit=50", "device=cpu", "progress=false"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


def recipes_in(folder):
    return [Recipe.from_json(run.recipe()) for run in find_runs(folder)]


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for command in ("train", "compare", "recipes", "methods", "models"):
        assert re.search(rf"^    {command} +[A-Z]", shown, re.MULTILINE)
    assert main([]) == 2


@pytest.mark.parametrize("command", ["train", "compare"])
@pytest.mark.parametrize("recipe", [["digits"], []])
def test_help_of_a_recipe_lists_every_field_with_its_value(command, recipe, here, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, *recipe, "--help"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for field in ("--weight-decay", "--phases", "--seeds", "--checkpoint-seconds", "--tensorboard", "--out"):
        assert field in shown
    assert ("(default: 8-4)" in shown) == bool(recipe) and "key=value works as well as --key value" in shown


@pytest.mark.parametrize("before", [True, False])
def test_help_has_the_defaults_for_ones_own_model_and_images(before, here, capsys):
    for place in ("train/cat", "train/dog", "val/cat", "val/dog"):
        (here / "imgs" / place).mkdir(parents=True)
        for number in range(16):
            (here / "imgs" / place / f"{number}.png").touch()
    words = ["--model", "resnet20", "--data", "imgs"]
    with pytest.raises(SystemExit) as ended:
        main(["compare", *(["--help", *words] if before else [*words, "--help"])])
    shown = " ".join(capsys.readouterr().out.split())
    assert ended.value.code == 0
    for default in ("imgs/resnet20", "8", "32", "0,1,2", "0.05"):
        assert f"(default: {default})" in shown


@pytest.mark.parametrize("words", [["digts"], ["--model", "resnet20", "--data", "nowhere"]])
def test_help_on_what_is_not_there_is_a_sentence(words, here, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", *words, "--help"])
    assert ended.value.code == 2 and re.search("did you mean digits|nowhere is not there", capsys.readouterr().err)


def test_options_and_words_mix(here, capsys):
    words = [*SHORT, "method=split:0.3", "--seeds", "3", "4", "--batch", "25", "--no-augment", "--out", "x"]
    assert main(["train", "digits", *words]) == 0
    found = recipes_in("x")
    assert [recipe.seeds for recipe in found] == [(3,), (4,)]
    assert {(recipe.method, recipe.level, recipe.batch, recipe.augment) for recipe in found} == {
        ("split", 0.3, 25, False)
    }
    table = capsys.readouterr().out.splitlines()
    assert " ".join(table[0].split()) == "recipe method passes seeds test min max train seconds a run"
    assert re.match(r"digits  split\(0\.3\)  1 +2 +\d+\.\d\d ± \d+\.\d\d", table[1])


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--method", "sam"], ("sam", None, {})),
        (["--method=sam"], ("sam", None, {})),
        (["--method", "both"], ("both", paper_level(0.5), {})),
        (["--method", "split:0.15"], ("split", 0.15, {})),
        (["level=0.1", "--method", "sam"], ("sam", 0.1, {})),
        (["--method", "m-arwp", "--settings.share", "0.3", "--settings.eta=2"],
         ("m-arwp", None, {"share": 0.3, "eta": 2.0})),
    ],
)  # fmt: skip
def test_a_method_is_the_same_as_an_option_and_as_a_word(words, found):
    recipe, _ = read("fig3/conv/0.29", *words)
    assert (recipe.method, recipe.level, recipe.settings) == found


@pytest.mark.parametrize(
    "words",
    [["phases=1-2", "--lr", "0.3", "0.2"], ["--phases", "1-2", "lr=0.3,0.2"], ["--lr=0.3,0.2", "--phases=1-2"]],
)
def test_rates_and_phases_are_read_together_however_they_are_said(words):
    recipe, execution = read("cifar100", *words, "--out", "x")
    assert (recipe.phases, recipe.lr, execution.out) == ("1-2", (0.3, 0.2), "x")


def test_help_behind_an_option_is_help(capsys):
    with pytest.raises(SystemExit) as ended:
        read("digits", "--lr", "0.1", "-h")
    assert ended.value.code == 0 and "--weight-decay" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--method"], ["--method", "--lr", "0.1"]])
def test_a_method_that_is_not_said_is_asked_for(words, capsys):
    with pytest.raises(SystemExit):
        read("digits", *words)
    assert "argument --method: expected one argument" in capsys.readouterr().err


def test_a_wrong_option_is_answered(here, capsys):
    for words in (["--colour", "red"], ["--batch", "0"], ["--batch", "many"]):
        assert main(["train", "digits", *words]) == 2
        assert words[0].strip("-") in capsys.readouterr().err
    assert not os.listdir()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["train"], "ssgd: ssgd train needs the name of a recipe: `ssgd recipes` lists them"),
        (["train", "digts"], "ssgd: no recipe called 'digts': did you mean digits?"),
        (["train", "digits", "colour=red"], "ssgd: cannot use 'colour=red': `ssgd train --help` lists the fields"),
        (
            ["train", "digits", "noise=0.2"],
            "ssgd: cannot use 'noise=0.2': the noise level is part of the method: method=s",
        ),
        (["train", "digits", "--rho", "0.1"], "ssgd: cannot use 'rho': rho is part of the method: method=sam:0.1"),
        (["train", "digits", "share=0.1"], "share is part of the method: method=m-arwp settings.share=0.1"),
        (["train", "digits", "wokers=2"], "ssgd: cannot use 'wokers=2': did you mean workers"),
        (["train", "digits", "method=ssdg"], "ssgd: no method called 'ssdg': did you mean both"),
        (["train", "digits", "words"], "ssgd: cannot use 'words': write key=value, after the name of a recipe"),
        (["train", "digits", "phases=1-x"], "ssgd: cannot read phases='1-x'"),
        (["train", "digits", "keep=0"], "ssgd: keep must be a whole number of at least 1"),
        (["train", "digits", "level=0.3"], "ssgd: base has no level to set to 0.3: give a method too"),
        (["compare", "digits", "--vary", "level=0.1,0.2"], "ssgd: base has no level to set to 0.1: give a method too"),
        (["compare", "digits", "--vary", "method"], "ssgd: cannot use --vary 'method': write --vary method=base,"),
        (["compare", "digits", "--vary", "method=base,base"], "ssgd: --vary makes digits/base twice"),
        (["compare", "digits", "--vary", "batch=25", "--vary", "batch=50"], "ssgd: --vary batch is given twice"),
        (["recipes", "digts"], "ssgd: no recipe called 'digts': did you mean digits?"),
    ],
)
def test_what_cannot_be_done_gets_a_sentence(arguments, sentence, here, capsys):
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert sentence in shown.err and shown.out == ""
    assert not os.listdir()


def test_rates_are_compared_in_phases_that_the_recipe_has_not(here, capsys):
    assert get("digits").phases == "8-4"  # and a rate for each
    assert main(["compare", "digits", "phases=1", "train_limit=100", "test_limit=50", "--vary", "lr=0.1,0.01"]) == 0
    place = "digits/train-limit-100_test-limit-50_phases-1"
    shown = capsys.readouterr().out.splitlines()[1:]
    assert [line.split()[0] for line in shown] == [f"{place}/lr-0.1", f"{place}/lr-0.01"]


def test_a_run_that_fails_is_named_and_the_others_are_shown(here, capsys):
    assert main(["compare", "digits", *SHORT, "phases=3", "--vary", "lr=0.1,1e6"]) == 1
    shown = capsys.readouterr()
    assert re.search(r"^digits/lr-0\.1 +base +3 +1 +\d", shown.out, re.MULTILINE)
    assert re.search(r"^digits/lr-1e6 +base +3 +0 of 1 +–", shown.out, re.MULTILINE)
    failed = r"^digits/lr-1e6/seed-0: failed: the (?:test )?loss is \w+ after epoch \d: lower lr"
    assert len(re.findall(failed, shown.err, re.MULTILINE)) == 1


def test_compare_trains_every_combination_over_all_seeds(here, capsys):
    words = [*SHORT, "seeds=0,1", "--vary", "method=base,split:0.15", "--vary", "batch=25,50"]
    assert main(["compare", "digits", *words]) == 0
    assert len(recipes_in("runs")) == 8
    found = {(recipe.name, recipe.method, recipe.level, recipe.batch) for recipe in recipes_in("runs")}
    assert found == {
        ("digits/base/batch-25", "base", None, 25),
        ("digits/base/batch-50", "base", None, 50),
        ("digits/split-0.15/batch-25", "split", 0.15, 25),
        ("digits/split-0.15/batch-50", "split", 0.15, 50),
    }
    shown = capsys.readouterr().out
    runs = [RunDir(f"runs/digits/base/batch-25/seed-{seed}").result()["test_accuracy"] for seed in (0, 1)]
    mean, deviation = sum(runs) / 2, abs(runs[0] - runs[1]) / 2**0.5
    row = f"{mean:.2f} ± {deviation:.2f} +{min(runs):.2f} +{max(runs):.2f} +–"
    assert re.search(rf"^digits/base/batch-25 +base +1 +2 +{row}", shown, re.MULTILINE)
    assert len(shown.splitlines()) == 5
    split = [RunDir(f"runs/digits/split-0.15/batch-50/seed-{seed}").result()["test_accuracy"] for seed in (0, 1)]
    gains = [ours - base for ours, base in zip(split, runs, strict=True)]
    told = f"{sum(gains) / 2:+.2f} ± {abs(gains[0] - gains[1]) / 2**0.5:.2f}".replace("-", "−")
    assert "minus the first" in shown and told in shown.splitlines()[-1]


def test_a_comparison_is_kept_as_json_csv_and_a_picture(here, capsys):
    pytest.importorskip("matplotlib")
    files = ["--json", "kept/rows.json", "--csv", "kept/rows.csv", "--plot", "kept/rows.svg"]
    assert main(["compare", "digits", *SHORT, "seeds=0,1,2", "--vary", "method=base,halves", *files]) == 0
    shown = capsys.readouterr().out
    base, halves = json.loads((here / "kept/rows.json").read_text())
    runs = [RunDir(f"runs/digits/halves/seed-{seed}").result()["test_accuracy"] for seed in range(3)]
    assert list(halves["test"].values()) == runs and halves["mean"] == pytest.approx(sum(runs) / 3)
    gains = [ours - theirs for ours, theirs in zip(runs, base["test"].values(), strict=True)]
    reach = 4.3027 * halves["difference_sd"] / 3**0.5
    assert halves["difference"] == pytest.approx(sum(gains) / 3) and base["difference"] is None
    assert [halves["low"], halves["high"]] == pytest.approx(
        [halves["difference"] - reach, halves["difference"] + reach], abs=1e-3
    )
    interval = f"{halves['low']:+.2f} to {halves['high']:+.2f}".replace("-", "−")
    assert "95 % interval" in shown and interval in shown.splitlines()[2]
    table = list(csv.DictReader((here / "kept/rows.csv").open()))
    assert [line["recipe"] for line in table] == ["digits/base", "digits/halves"]
    assert (
        float(table[1]["low"]) == halves["low"]
        and table[0]["low"] == ""
        and table[1]["test"].split() == list(map(str, runs))
    )
    assert (here / "kept/rows.svg").read_text().startswith("<?xml")


def test_a_single_seed_has_no_interval(here, capsys):
    assert main(["compare", "digits", *SHORT, "--vary", "method=base,halves", "--json", "rows.json"]) == 0
    assert re.search(r"[+−]\d+\.\d\d +– ", capsys.readouterr().out.splitlines()[2])
    assert [row["low"] for row in json.loads((here / "rows.json").read_text())] == [None, None]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--json", "."], ". is a folder: name a file in it"),
        (["--plot", "x.gif"], "a picture can be .png, .pdf or .svg, not 'x.gif'"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_before_the_training(words, sentence, here, capsys):
    assert main(["compare", "digits", *SHORT, *words]) != 0
    assert sentence in capsys.readouterr().err and not os.listdir()


def test_compare_alone_is_sgd_and_the_two_kinds_of_noise(here, capsys):
    assert main(["compare", "digits", *SHORT]) == 0
    assert [recipe.method for recipe in recipes_in("runs")] == ["base", "both", "split"]
    assert main(["compare", "digits", *SHORT, "method=sam", "--out", "one"]) == 0
    assert [recipe.method for recipe in recipes_in("one")] == ["sam"]


def test_variants_are_named_by_what_varies():
    found = variants(get("digits"), ["method=base,both:0.3", "momentum=0"])
    assert [(recipe.name, recipe.method, recipe.level) for recipe in found] == [
        ("digits/base/momentum-0", "base", None),
        ("digits/both-0.3/momentum-0", "both", 0.3),
    ]
    assert variants(get("digits"), []) == [get("digits")]


def test_a_finished_run_is_shown_again_and_its_folder_is_a_recipe(here, capsys):
    assert main(["train", "digits", *SHORT, "method=both"]) == 0
    first = capsys.readouterr().out
    assert main(["train", "digits", *SHORT, "method=both"]) == 0
    shown = capsys.readouterr()
    assert shown.out == first and "digits/seed-0: finished before, test accuracy" in shown.err
    assert main(["train", "runs/digits/seed-0", *SHORT[5:], "out=again"]) == 0
    weights = [(here / out / "digits" / "seed-0" / "weights.safetensors").read_bytes() for out in ("runs", "again")]
    assert weights[0] == weights[1]


def test_changed_fields_name_the_folder_so_that_one_out_holds_all_runs(here, capsys):
    words = [*SHORT[2:], "phases=1"]
    for rate, seeds in (("0.1", "0"), ("0.05", "0"), ("0.1", "0,1")):
        assert main(["train", "digits", *words, f"lr={rate}", f"seeds={seeds}"]) == 0
        shown = capsys.readouterr().err
    assert len(re.findall("seed-0: finished before", shown)) == 1
    folders = sorted(str(run.path) for run in find_runs("runs"))
    of_rate = "runs/digits/train-limit-100_test-limit-50_phases-1_lr-{}/seed-{}".format
    assert folders == [of_rate("0.05", 0), of_rate("0.1", 0), of_rate("0.1", 1)]


def test_a_message_of_a_run_that_fails_is_printed_once(here, capsys):
    assert main(["train", "digits", *SHORT, "out=x"]) == 0
    assert main(["train", "digits", *SHORT, "out=x", "batch=25"]) == 1  # under the name of the first
    assert capsys.readouterr().err.count("holds a run of another recipe") == 1


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ([], "digits"),
        (["lr=0.05,0.01", "seeds=3", "out=x"], "digits/lr-0.05,0.01"),
        (["--no-augment", "weight-decay=0"], "digits/augment-false_weight-decay-0.0"),
        (["method=split:0.3"], "digits/split-0.3"),
        (["method=m-arwp", "settings.share=0.3"], "digits/m-arwp_share-0.3"),
        (["data=my/folder/", "model=my.module:build"], "digits/model-my.module-build_data-my-folder"),
        (["lr=0.1,0.01", "name=mine/first"], "mine/first"),
    ],
)
def test_a_changed_recipe_is_named_by_its_changes(words, name):
    assert read("digits", *words)[0].name == name


def test_a_name_that_would_be_too_long_ends_in_a_hash():
    many = ["phases=1", "lr=0.1", "momentum=0.8", "weight_decay=0.001", "batch=64", "decayed=weights"]
    found = [read("digits", *many, f"clip={clip}")[0].name for clip in (1, 2, 1)]
    assert found[0] == found[2] != found[1]
    assert all(re.fullmatch(r"digits/phases-1_lr-0\.1_[\w.-]+-[0-9a-f]{8}", name) and len(name) == 67 for name in found)


def test_a_run_without_a_recipe_is_not_trained_as_another(here, capsys):
    (here / "recipe.json").write_text("[]")
    for command in ("train", "sharpness"):
        assert main([command, str(here)]) == 2
        assert "recipe.json is no recipe: repair it, or delete the run's folder" in capsys.readouterr().err
    assert os.listdir() == ["recipe.json"]


@pytest.mark.parametrize("model", ["sgcn-small", "lstm-tiny"])
def test_a_folder_of_images_needs_a_model_for_images(model, here, monkeypatch, capsys):
    monkeypatch.setenv("HOME", str(here))
    for place in ("train/cat", "train/dog", "val/cat", "val/dog"):
        (here / "imgs" / place).mkdir(parents=True)
        (here / "imgs" / place / "1.png").touch()
    assert main(["compare", f"model={model}", "data=imgs"]) == 2
    assert re.search(rf"ssgd: {model} is for \w+, and imgs is images: choose another", capsys.readouterr().err)
    recipe, _ = read("model=small-cnn", "data=~/imgs")
    assert recipe.name == "imgs/small-cnn"
    (here / "old").mkdir()
    (here / "imgs").rename(here / "old" / "imgs")  # another folder of the same last name
    assert read("model=small-cnn", "data=old/imgs")[0].name == "old/imgs/small-cnn"
    (here / "elsewhere").mkdir()
    monkeypatch.chdir(here / "elsewhere")
    assert read("model=small-cnn", "data=../old/imgs")[0].name == f"{str(here)[1:]}/old/imgs/small-cnn"


@pytest.mark.parametrize(("word", "what"), [("model=resnet21", "model"), ("data=nowhere", "data set")])
def test_a_name_that_is_not_there_is_told_before_the_plan(word, what, here, capsys):
    assert main(["train", "digits", word]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"ssgd: no {what} called {word.partition('=')[2]!r}") and "name = " not in shown
    assert not (here / "runs").exists()


def test_recipes_are_listed_and_shown(capsys):
    assert main(["recipes"]) == 0
    assert set(names()) <= set(capsys.readouterr().out.splitlines())
    assert main(["recipes", "table1/cifar10/75-25S-25S"]) == 0
    assert "cost as much as 175 of plain SGD" in capsys.readouterr().out
    assert main(["recipes", "cifar100", "--json"]) == 0
    assert Recipe.from_json(json.loads(capsys.readouterr().out)) == get("cifar100")
    assert main(["recipes", "--json"]) == 0
    assert [recipe["name"] for recipe in json.loads(capsys.readouterr().out)] == names()


def test_methods_and_models_are_listed(capsys, monkeypatch):
    assert main(["methods"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]] == list(METHODS)
    monkeypatch.setattr("ssgd.lab.models.MODELS", {name: MODELS[name] for name in ("resnet20", "small-cnn")})
    assert main(["models"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 2 and re.match(r"resnet20 +269,722 parameters for 10 classes", shown[0])


@pytest.mark.parametrize(
    ("own", "ranks", "found"),
    [(None, None, CONNECTIONS), ("4", None, "4"), (None, "1", CONNECTIONS), (None, "2", None)],
)
def test_runs_side_by_side_get_connections_unless_told_otherwise(own, ranks, found, monkeypatch, capsys):
    for name, value in (("CUDA_DEVICE_MAX_CONNECTIONS", own), ("WORLD_SIZE", ranks)):
        monkeypatch.delenv(name, raising=False)
        if value:
            monkeypatch.setenv(name, value)
    main(["recipes"])
    assert os.environ.get("CUDA_DEVICE_MAX_CONNECTIONS") == found


def test_under_mps_the_connections_are_left_to_it(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", str(tmp_path))
    main(["recipes"])
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in os.environ


@pytest.mark.parametrize(
    ("ending", "encoding", "status", "said"),
    [
        ("| cat", "ascii", 0, ""),
        (">&-", "utf-8", 0, ""),
        ("> /dev/full", "utf-8", 1, "ssgd: [Errno 28] No space left on device\n"),
    ],
)
def test_where_output_goes_is_no_reason_for_a_trace(ending, encoding, status, said):
    environment = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUNBUFFERED": ""}
    command = f"set -o pipefail; {shlex.quote(sys.executable)} -m ssgd methods sam {ending}"
    done = subprocess.run(["bash", "-c", command], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (status, said)


def test_words_after_a_command_that_takes_none_are_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["models", "lr=0.1"])
    assert ended.value.code == 2 and "unrecognized arguments: lr=0.1" in capsys.readouterr().err


def test_tensorboard_gets_the_metrics_when_asked(here):
    pytest.importorskip("tensorboard", reason="needs tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert main(["train", "digits", *SHORT, "phases=2", "tensorboard=true"]) == 0
    events = EventAccumulator("runs/digits/seed-0/tensorboard").Reload()
    metrics = RunDir("runs/digits/seed-0").metrics()
    for key in ("loss", "accuracy", "lr", "test_loss", "test_accuracy"):
        found = [(event.step, event.value) for event in events.Scalars(key)]
        assert found == [(row["epoch"], pytest.approx(row[key], rel=1e-6)) for row in metrics]


def test_the_bar_shows_loss_accuracy_rate_and_time_left(here, capsys, monkeypatch):
    pytest.importorskip("tqdm", reason="needs tqdm")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    words = [word for word in SHORT if word != "progress=false"]
    assert main(["train", "digits", *words, "phases=30"]) == 0
    shown = capsys.readouterr().err
    assert re.search(r"digits/seed-0 epoch \d+: loss \d\.\d{3}, \d+\.\d %, test accuracy \d+\.\d\d %", shown)
    assert re.search(r"\[\d\d:\d\d<\d\d:\d\d, +\d.*images/s", shown)
    assert re.search(r"100%.* 3\.00k/3\.00k ", shown)  # 30 epochs of 100 images


@pytest.mark.parametrize(
    "missing", [(), ("tqdm", "matplotlib", "tensorboard", "safetensors", "PIL", "scipy", "pandas")]
)
def test_without_a_terminal_or_other_packages_there_is_a_line_an_epoch(missing, here):
    """Nothing but torch and numpy may be needed: every other package is as if it were not installed."""
    code = f"""
import sys
for name in {missing}:
    sys.modules[name] = None
if {missing}:
    sys.stderr.isatty = lambda: True
from ssgd.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
    words = [word for word in SHORT if word != "progress=false"]
    command = [sys.executable, "-c", code, "train", "digits", *words, "phases=2", "--batch", "50"]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    assert re.findall(r"^digits/seed-0: epoch (\d): loss \d", process.stderr, re.MULTILINE) == ["1", "2"]
    assert "\r" not in process.stderr
    assert RunDir("runs/digits/seed-0").result()["epochs"] == 2


def test_tensorboard_that_is_missing_is_named(here, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert main(["train", "digits", *SHORT, "tensorboard=true"]) == 1
    assert "tensorboard=true needs the package: pip install tensorboard" in capsys.readouterr().err
    assert not os.path.exists("runs/digits/seed-0/metrics.jsonl")  # before the first epoch, not after it


def test_a_command_that_is_not_there_suggests_one(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["trian"])
    assert ended.value.code == 2 and "no command called 'trian': did you mean train?" in capsys.readouterr().err


def test_listing_the_methods_loads_no_training():
    code = "import sys; from ssgd.cli.main import main; main(['methods']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.splitlines()[-1].split() if name.startswith("ssgd.")}
    assert not {"ssgd.lab.train", "ssgd.lab.experiments", "ssgd.lab.data", "ssgd.cli.train"} & loaded


def test_a_reader_that_closes_early_is_no_error():
    pipe = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-m", "ssgd", "recipes"], **pipe) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_a_switch_is_an_option_of_its_own():
    recipe, execution = read("digits", "--deterministic", "--no-progress", "--nesterov")
    assert execution.deterministic and not execution.progress and recipe.nesterov
    recipe, execution = read("digits", "--lr", "0.1", "0.2")
    assert not execution.deterministic and execution.progress and not recipe.nesterov
