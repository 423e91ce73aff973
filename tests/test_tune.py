"""`ssgd tune`: successive halving on held-out data, which leaves the test set alone."""

import json
import re
import shlex
import sys
from dataclasses import replace

import pytest
import torch

from ssgd.cli.fields import recipe_of
from ssgd.cli.main import main
from ssgd.lab.data import digit_images
from ssgd.lab.experiments.tuning import halving, shortened
from ssgd.lab.train import Recipe, find_runs

from .small_trainings import read
from .speech_files import sound, write_wav

QUICK = ["device=cpu", "progress=false"]
SMALL = [*QUICK, "phases=3", "lr=0.1", "train_limit=100"]
MODULE = """
import torch
from torch import nn
from torch.utils.data import Dataset

def build(classes):
    return nn.Sequential(nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(48, classes))

class Trained(Dataset):
    classes = ["a", "b"]
    def __len__(self):
        return 40
    def __getitem__(self, number):
        return torch.full((3, 8, 8), number / 40), number % 2

class Tested(Trained):
    def __getitem__(self, number):
        raise AssertionError("the test set is read")

def load():
    return Trained(), Tested()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def own(here, monkeypatch):
    (here / "own.py").write_text(MODULE)
    monkeypatch.syspath_prepend(here)
    yield here
    sys.modules.pop("own", None)


def tuned(capsys, *words):
    """What `ssgd tune` prints, after an exit status of 0."""
    assert main(["tune", *map(str, words)]) == 0
    return capsys.readouterr().out


def candidates(*names):
    return [Recipe(name=name, phases="27", lr=(0.1,)) for name in names]


def ending_with(figures, metric="accuracy", rounds=None):
    """Trains nothing: a candidate's figure is that of its name, and None is a failure."""

    def train(recipes):
        if rounds is not None:
            rounds.append([recipe.name for recipe in recipes])
        found = {}
        for recipe in recipes:
            value = figures[recipe.name.partition("/")[0]]
            for seed in recipe.seeds:
                of = {"failure": "no number"} if value is None else {"result": {f"test_{metric}": value + seed}}
                found[f"{recipe.name}/seed-{seed}"] = of
        return found

    return train


# --- halving --------------------------------------------------------------------------------------------------------


def test_a_third_goes_on_to_three_times_the_epochs_until_one_is_left():
    rounds, figures = [], {name: number for number, name in enumerate("abcdefghij")}
    found = list(halving(candidates(*figures), ending_with(figures, rounds=rounds)))
    assert [one.epochs for one in found] == [3, 9, 27]
    assert rounds[1:] == [["g/9-epochs", "h/9-epochs", "i/9-epochs", "j/9-epochs"], ["i/27-epochs", "j/27-epochs"]]
    assert list(found[-1].figures.items()) == [("j", 9), ("i", 8)]


@pytest.mark.parametrize(("count", "epochs"), [(1, [27]), (3, [27]), (4, [9, 27]), (9, [9, 27])])
def test_the_last_round_is_the_whole_course(count, epochs):
    names = "abcdefghi"[:count]
    assert [one.epochs for one in halving(candidates(*names), ending_with(dict.fromkeys(names, 1)))] == epochs


@pytest.mark.parametrize(("metric", "best"), [("accuracy", "c"), ("perplexity", "a"), ("wer", "a")])
def test_errors_are_best_where_they_are_smallest(metric, best):
    (found,) = halving(candidates(*"abc"), ending_with({"a": 1, "b": 2, "c": 3}, metric))
    assert (next(iter(found.figures)), found.metric) == (best, metric)


def test_means_are_over_the_seeds_and_a_candidate_that_fails_is_out():
    several = [replace(recipe, seeds=(0, 4)) for recipe in candidates(*"abcd")]
    first, last = halving(several, ending_with({"a": 1, "b": None, "c": 3, "d": 2}))
    assert first.figures == {"c": 5, "d": 4, "a": 3} and last.figures == {"c": 5, "d": 4}
    with pytest.raises(ValueError, match="no candidate could be trained: no number"):
        list(halving(several, ending_with(dict.fromkeys("abcd"))))


@pytest.mark.parametrize(
    ("fields", "phases", "epochs"),
    [
        ({"phases": "75-50-50"}, "25-17-17", 59),
        ({"phases": "75 - 25S - 25S", "method": "both"}, "25-8S-8S", 41),
        ({"phases": "30-6(sam-10:0.05)-1"}, "10-2(sam-10:0.05)-1", 13),
        ({"phases": "0-9"}, "0-3", 3),
        ({"phases": "10*2", "epochs": 300, "lr": (0.1,)}, "3*2", 100),
    ],
)
def test_a_shorter_course_has_the_same_phases(fields, phases, epochs):
    rates = {} if "lr" in fields else {"lr": (0.1,) * (phases.count("-") + 1 - ("sam" in phases))}
    short = shortened(Recipe(**{**rates, **fields}), 1 / 3)
    assert (short.phases, short.schedule.epochs, short.name) == (phases, epochs, f"custom/{epochs}-epochs")


def test_a_shorter_course_ends_at_the_same_rate():
    whole = Recipe(phases="54", lr=(1.0,), decay=1.15, decay_after=12, warm_up=3.0)
    short = shortened(whole, 1 / 3)
    assert short.schedule.lr(17) == pytest.approx(whole.schedule.lr(53))
    assert short.warm_up == 1.0 and short.schedule.lr(3) == whole.schedule.lr(9) == 1.0


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_printed_command_trains_with_the_best(here, capsys):
    words = ["digits", *SMALL, "--vary", "lr=0.1,1e-9", "--vary", "weight-decay=1e-4,5e-4"]
    shown = tuned(capsys, *words).splitlines()
    assert shown[0] == (
        "4 candidates on digits, judged on 10 images held out of its training part; the test set is not used"
    )
    assert re.split("  +", shown[1]) == ["candidate", "accuracy after 1 epoch", "accuracy after 3 epochs"]
    assert len(shown) == 8 and shown[2].startswith("lr-0.1/weight-decay-")
    assert shown[-1].startswith("the best: ssgd train ")
    recipe, execution = read(*shlex.split(shown[-1].partition("ssgd train ")[2]))
    run = f"runs/tune/digits/train-limit-100_phases-3/{shown[2].split()[0]}/3-epochs/seed-0"
    of_the_best = recipe_of(run)
    assert recipe.held_out == 0 and of_the_best.held_out == 10 and execution.device == "cpu"
    assert recipe.differences(of_the_best).keys() == {"name", "held_out", "precision"}


def test_called_again_it_reads_what_is_finished(here, capsys):
    words = ["digits", *SMALL, "--vary", "lr=0.1,0.01,0.2,0.05"]
    first = tuned(capsys, *words)
    before = {run.path: (run.path / "result.json").stat().st_mtime_ns for run in find_runs("runs")}
    assert len(before) == 4 + 2
    assert tuned(capsys, *words) == first
    assert {run.path: (run.path / "result.json").stat().st_mtime_ns for run in find_runs("runs")} == before


def test_of_itself_it_chooses_among_levels(here, capsys):
    shown = tuned(capsys, "digits", *SMALL, "held_out=50", "seeds=1,2")
    assert "6 candidates on digits, judged on 50 images held out" in shown and "split-0 " in shown
    found = {
        (recipe_of(str(run.path)).level, run.path.name) for run in find_runs("runs") if "1-epochs" in str(run.path)
    }
    assert found == {(level, f"seed-{seed}") for level in (0, 0.05, 0.1, 0.15, 0.2, 0.3) for seed in (1, 2)}
    assert "method=sam:" in tuned(capsys, "digits", *SMALL, "method=sam", "phases=1").splitlines()[-1]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["digits", "held_out=0"], "held_out=0 would judge on the test set: give another number"),
        (["digits", "--on", "ray", "minutes=1"], "minutes are for runs of one process, not of a Ray cluster"),
        ([], "ssgd tune needs the name of a recipe"),
    ],
)
def test_what_it_cannot_do_gets_a_sentence(words, sentence, here, capsys):
    assert main(["tune", *words]) == 2
    assert sentence in capsys.readouterr().err


def test_several_processes_are_refused(here, capsys, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["tune", "digits"]) == 2
    assert "ssgd tune works in one process: start it without torchrun" in capsys.readouterr().err


# --- the test set ---------------------------------------------------------------------------------------------------


def test_the_test_images_change_nothing(here, capsys, monkeypatch):
    words = ["digits", *SMALL, "--vary", "lr=0.1,0.01,0.2,0.05"]
    as_it_is = tuned(capsys, *words)
    images = digit_images()
    empty = {part: torch.zeros_like(getattr(images, part)) for part in ("test_images", "test_labels")}
    monkeypatch.setattr("ssgd.lab.data.registry.digit_images", lambda: replace(images, **empty))
    assert tuned(capsys, *words, "out=others").replace(" out=others", "") == as_it_is


def test_a_folder_of_images_needs_no_test_part(own, capsys):
    image = pytest.importorskip("PIL.Image", reason="folders of images need pillow")
    for number in range(40):
        (own / "photos" / "train" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        colour = (number, 200 * (number % 2), 0)
        image.new("RGB", (9, 9), colour).save(own / "photos" / "train" / "ab"[number % 2] / f"{number}.png")
    words = ["--model", "own:build", "--data", "photos/", *QUICK, "phases=1", "image_size=8", "workers=0"]
    shown = tuned(capsys, *words, "--vary", "lr=0.1,0.01")
    assert "judged on 4 images held out of its training part" in shown
    assert "ssgd train model=own:build data=photos/ device=cpu" in shown.splitlines()[-1]
    assert main(["compare", *words]) != 0
    assert "has neither val/ nor test/" in capsys.readouterr().err


def test_a_test_dataset_of_ones_own_is_never_asked(own, capsys):
    words = [*QUICK, "model=own:build", "data=own:load", "phases=1", "lr=0.1", "workers=0", "batch=8"]
    assert "judged on 4 images held out" in tuned(capsys, "digits", *words, "--vary", "lr=0.1,0.01")


def test_a_text_needs_no_test_part(here, capsys):
    (here / "text").mkdir()
    for part in ("train", "valid"):
        (here / "text" / f"my.{part}.txt").write_text("a b c d\n" * 60)
    words = ["words", *QUICK, "data=text", "phases=1", "batch=2", "--vary", "lr=1.0,0.1"]
    shown = tuned(capsys, *words)
    assert "judged on its validation part; the test set is not used" in shown
    assert "perplexity after 1 epoch" in shown and shown.splitlines()[-1].endswith("lr=0.1")


def test_test_utterances_are_not_listened_to(here, capsys):
    for number in range(20):
        write_wav(here / "data" / f"{number}.wav", sound(0.6, seed=number))
    rows = [{"audio": f"{i}.wav", "text": "yes", "speaker": str(i)} for i in range(20)]
    (here / "data" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (here / "data" / "test.jsonl").write_text(json.dumps({"audio": "not-there.wav", "text": "yes"}))
    words = ["utterances", *QUICK, "data=data", "phases=1", "batch=2", "--vary", "lr=0.01,0.001"]
    assert "utterances held out of its training part" in tuned(capsys, *words)
    assert main(["train", *words[:-2], "lr=0.01"]) != 0
    assert "not-there.wav" in capsys.readouterr().err
