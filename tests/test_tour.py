"""From nothing to a comparison on one's own data: what a newcomer types, and what is said where it does not fit."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

from ssgd import demo
from ssgd.cli.main import main
from ssgd.lab.train import Recipe, find_runs

from .small_trainings import read

Image = pytest.importorskip("PIL.Image", reason="folders of images need pillow")

MODULE = """
from torch import nn

def build(classes):
    return nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, classes))

def for_32(classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, classes))

def for_seven(classes):
    return build(7)

def both(classes):
    class Both(nn.Module):
        def forward(self, x):
            return x, x
    return Both()
"""
OWN = ["--model", "my.module:build", "--data", "folder/"]
SHORT = ["phases=1", "image_size=16", "device=cpu", "progress=false", "workers=0"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a package `my` and images of two classes and many sizes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "my").mkdir()
    (tmp_path / "my" / "module.py").write_text(MODULE)
    numbers = np.random.default_rng(0)
    for place in ("train/cat", "train/dog", "val/cat", "val/dog"):
        (tmp_path / "folder" / place).mkdir(parents=True)
        for i in range(10):
            pixels = numbers.integers(0, 256, (*numbers.integers(9, 30, 2), 3)).astype("uint8")
            Image.fromarray(pixels).save(tmp_path / "folder" / place / f"{i}.png")
    yield tmp_path
    for name in ("my", "my.module"):
        sys.modules.pop(name, None)


def test_a_comparison_as_it_is_typed(here):
    """By the command itself, whose first place for modules is not the current folder."""
    command = [sys.executable, "-c", "import sys; del sys.path[0]; from ssgd.cli.main import main; sys.exit(main())"]
    found = subprocess.run([*command, "compare", *OWN, *SHORT, "seeds=0,1"], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    rows = [line.split()[:4] for line in found.stdout.splitlines()[1:]]
    methods = [("base", "base", "1"), ("both", "both(0.29)", "2"), ("split", "split(0.15)", "1")]
    place = "folder/my.module.build/image-size-16_phases-1"
    assert rows == [[f"{place}/{name}", label, passes, "2"] for name, label, passes in methods]
    assert len(list(find_runs("runs"))) == 6


def test_defaults_fit_the_folder_and_the_model(here):
    own, _ = read("model=my.module:build", "data=folder")
    assert (own.batch, own.image_size, own.seeds, own.schedule.epochs) == (4, 224, (0, 1, 2), 30)
    known, _ = read("model=resnet20", "data=folder")
    assert known.image_size == 32 and known.name == "folder/resnet20"
    changed, execution = read("--model=my.module:build", "--data=folder", "--batch", "6")
    assert (changed.batch, execution.out) == (6, "runs")


def test_what_varies_can_be_chosen_and_train_takes_the_same_words(here):
    assert main(["compare", *OWN, *SHORT, "seeds=0", "--vary", "method=base,halves"]) == 0
    assert main(["train", *OWN, *SHORT, "seeds=0", "method=sam"]) == 0
    found = {Recipe.from_json(run.recipe()).method for run in find_runs("runs")}
    assert found == {"base", "halves", "sam"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "needs the name of a recipe: .* For your own model and images give --model"),
        (OWN[:2], "needs both or neither: --model package.module:function and --data FOLDER"),
        (["model=my.nothing:build", "data=folder"], "no module called 'my.nothing': install it, or put"),
        (["model=my.module:nothing", "data=folder"], r"define nothing\(classes\) there"),
        (["model=resnet21", "data=folder"], "no model called 'resnet21'"),
        (["model=my.module:for_32", "data=folder"], r"cannot take images of 3×224×224 \(.+\): image_size=N gives it"),
        (
            ["model=my.module:for_seven", "data=folder"],
            r"makes \(2, 7\) of two images: let it return a tensor of \(2, 2",
        ),
        (["model=my.module:both", "data=folder"], "makes tuple of two images"),
        (["model=my.module:build", "data=nowhere"], "nowhere is not there: --data takes a folder with train/<class>"),
        (["model=my.module:build", "data=folder/train"], "folder/train/train is not there: an image folder has train/"),
        (["model=my.module:build", "data=cifar10"], "cifar10 is no folder: `ssgd recipes` lists recipes for it"),
        (["model=my.module:build", "data=folder", "batch=32"], "a batch of 32 cannot be filled from 20"),
    ],
)
def test_what_does_not_fit_gets_a_sentence(words, sentence, here, capsys):
    assert main(["compare", *words, *(SHORT[2:] if words else [])]) != 0
    assert re.search(sentence, capsys.readouterr().err)


def test_folders_that_are_not_ready_are_told_apart(here, capsys):
    def said(changes):
        assert main(["compare", "model=my.module:build", *changes]) != 0
        return capsys.readouterr().err

    (here / "text").mkdir()
    (here / "text" / "my.train.txt").write_text("a b")
    assert "write ssgd compare words data=text --vary method=base,both,split" in said(["data=text"])
    (here / "folder" / "train" / "dog").rename(here / "folder" / "dogs")
    assert "only one of them has dog" in said(["data=folder"])
    (here / "folder" / "val" / "dog").rename(here / "folder" / "more dogs")
    assert "has one class only, cat: make a folder for each class" in said(["data=folder"])
    (here / "folder" / "val").rename(here / "folder" / "elsewhere")
    assert "has neither val/ nor test/" in said(["data=folder"])
    assert not os.path.exists("runs")


def test_help_and_demo_end_with_what_comes_next(capsys, monkeypatch, tmp_path):
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = capsys.readouterr().out
    for command in ("ssgd doctor", "ssgd train digits", "ssgd compare --model my.module:build --data folder/"):
        assert f"  {command}  " in shown.partition("from nothing to your own data:")[2]
    assert "ssgd compare --model my.module:build --data folder/`" in demo.what_next()
    monkeypatch.setenv("PATH", "")
    monkeypatch.chdir(tmp_path)
    assert f"`{sys.executable} -m ssgd doctor`" in demo.what_next()
    monkeypatch.chdir(sys.prefix)
    assert "`bin/python" in demo.what_next()
