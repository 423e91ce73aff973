"""Data sets of your own: pairs of Datasets, as torch, torchvision and Hugging Face have them, and Sources."""

import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from ssgd.cli.main import main
from ssgd.lab.data import ImageSet, load
from ssgd.lab.data.images import DeviceImages
from ssgd.lab.data.registry import check_name
from ssgd.lab.experiments import get
from ssgd.lab.train import Execution, find_runs, train


@pytest.fixture
def own(monkeypatch):
    """Returns a function that loads what another function returns, as ``load`` of a module of the user's."""

    def loaded(function, **options):
        module = ModuleType("my_data")
        module.load = function
        monkeypatch.setitem(sys.modules, "my_data", module)
        options = {"device": "cpu", "dtype": torch.float32, "workers": 0, **options}
        return load("my_data:load", **options)

    return loaded


def vectors(count=10, classes=3):
    return TensorDataset(torch.arange(2.0 * count).view(count, 2), torch.arange(count) % classes)


def all_of(batches):
    inputs, labels = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(labels)


class Pictures:
    """Items of any kind, made by a function of their number."""

    def __init__(self, make, count=6):
        self.make, self.count = make, count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        return self.make(number)


# --- pairs of Datasets ----------------------------------------------------------------------------------------------


def test_every_item_is_trained_and_tested_on(own):
    source = own(lambda: (vectors(), vectors(5)))
    assert (source.name, source.kind, source.classes, source.channels, source.steps(4)) == (
        "my_data:load",
        "images",
        3,
        2,
        2,
    )
    x, y = all_of(source.epoch(0, 1).batch(step, 5) for step in range(2))
    assert sorted(x[:, 0].tolist()) == [2.0 * i for i in range(10)] != x[:, 0].tolist()
    assert y.tolist() == [int(first) // 2 % 3 for first in x[:, 0]]
    x, y = all_of(source.in_order("test", 2))
    assert torch.equal(x, vectors(5).tensors[0]) and torch.equal(y, vectors(5).tensors[1])
    assert len(all_of(source.first(3).in_order("train"))[1]) == 3


def test_limits_and_held_out(own):
    def pair():
        return vectors(), vectors(5)

    source = own(pair, held_out=4, train_limit=3, test_limit=2)
    kept, tested = (set(all_of(source.in_order(part))[0][:, 0].tolist()) for part in ("train", "test"))
    assert (len(kept), len(tested)) == (3, 2) and not kept & tested
    with pytest.raises(ValueError, match="test_limit must be at least 1 sample, not 0"):
        own(pair, test_limit=0)


@pytest.mark.parametrize("kind", ["pillow", "array", "tensor", "grey"])
def test_bytes_are_normalised_by_the_training_images(own, kind):
    def item(number):
        pixels = np.random.default_rng(number).integers(0, 256, (4, 5, 3), np.uint8)
        if kind == "pillow":
            image = pytest.importorskip("PIL.Image", reason="needs pillow")
            return image.fromarray(pixels), number % 2
        if kind == "grey":
            return pixels[:, :, 0], number % 2
        return (pixels if kind == "array" else torch.from_numpy(pixels).permute(2, 0, 1)), number % 2

    source = own(lambda: (Pictures(item), Pictures(item, 3)))
    x, _ = all_of(source.in_order("train"))
    channels = 1 if kind == "grey" else 3
    assert x.shape == (6, channels, 4, 5) and source.channels == channels and x.dtype == torch.float32
    assert x.mean((0, 2, 3)).abs().max() < 1e-6 and (x.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-6


def test_items_as_hugging_face_has_them(own):
    rows = Pictures(lambda number: {"image": np.full((2, 2), number, np.uint8), "label": number % 2})
    rows.features = {"image": SimpleNamespace(), "label": SimpleNamespace(num_classes=7)}
    source = own(lambda: (rows, rows))
    assert source.classes == 7 and all_of(source.in_order("test"))[1].tolist() == [0, 1] * 3


def test_classes_as_torchvision_has_them(own):
    pictures = Pictures(lambda number: (torch.ones(3, 2, 2), 0))
    pictures.classes = ["cat", "dog"]
    assert own(lambda: (pictures, pictures)).classes == 2


@pytest.mark.parametrize("workers", [0, 2])
def test_what_transforms_draw_is_a_function_of_seed_epoch_and_place(own, workers):
    def item(number):
        return torch.tensor([torch.rand(()), np.random.rand(), random.random(), number]), 0

    def batch(seed, number, step=1, rank=0, ranks=1, **options):
        source = own(lambda: (Pictures(item), Pictures(item)), workers=workers, **options)
        return source.epoch(seed, number).batch(step, 2, rank, ranks)[0]

    states = torch.get_rng_state(), random.getstate()
    first = batch(3, 4)
    assert torch.equal(first, batch(3, 4)) and len(first[:, :3].unique()) == 6
    assert torch.equal(first, torch.cat([batch(3, 4, rank=rank, ranks=2) for rank in (0, 1)]))
    assert not torch.equal(first, batch(3, 5)) and not torch.equal(first, batch(4, 4))
    plain = [batch(0, number, 0, augment=False) for number in range(9)]
    drawn = {int(row[3]): tuple(row.tolist()) for rows in plain for row in rows}
    assert {tuple(row.tolist()) for rows in plain for row in rows} == set(drawn.values())  # the same in every epoch
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()


# --- Sources --------------------------------------------------------------------------------------------------------


def test_a_source_is_taken_as_it_is(own):
    def images(device, dtype):
        pixels, labels = torch.zeros(4, 1, 2, 2, dtype=torch.uint8), torch.arange(4)
        return DeviceImages(ImageSet("mine", pixels, labels, pixels, labels, 4), device, dtype)

    source = own(images, dtype=torch.bfloat16)
    assert (source.name, source.classes) == ("mine", 4)
    assert next(source.in_order("test"))[0].dtype == torch.bfloat16
    with pytest.raises(ValueError, match="returns a Source, which held_out and limits do not change"):
        own(images, held_out=1)


# --- what cannot be used --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "sentence"),
    [
        (lambda: vectors(), r"returned a TensorDataset: let it return \(train, test\)"),
        (lambda: (vectors(), 3), r"returned a tuple of 2: let it return \(train, test\)"),
        (lambda: (vectors(), vectors(0)), "returned a test part without items"),
        (lambda folder: (vectors(), vectors()), "has parameters without a default"),
        (lambda: (Pictures(lambda i: (i, i, i)), vectors()), "item 0 of my_data:load is a tuple of 3: let the Dataset"),
        (lambda: (Pictures(lambda i: ("a cat", 0)), vectors()), "the input of item 0 of my_data:load is a str: let it"),
        (
            lambda: (Pictures(lambda i: (torch.ones(2), "cat")), vectors()),
            "the target of item 0 .* is a str: let it",
        ),
        (lambda: (Pictures(lambda i: (torch.ones(2), -1)), vectors()), "the target of item 0 .* is -1: classes count"),
        (
            lambda: (Pictures(lambda i: (np.zeros((2 + i, 2), np.uint8), 0)), vectors()),
            r"has inputs of the shapes \(1, 2, 2\) and \(1, 3, 2\): let it bring all to one",
        ),
    ],
)
def test_a_function_that_returns_something_else(own, function, sentence):
    with pytest.raises(ValueError, match=sentence):
        own(function)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_test_item_of_a_class_that_training_does_not_have(own, workers):
    source = own(lambda: (vectors(classes=3), vectors(classes=4)), workers=workers)
    with pytest.raises(ValueError, match=r"^the target of item 3 of my_data:load is 3: classes count from 0 to 2$"):
        list(source.in_order("test"))


def test_a_name_is_checked_before_anything_is_loaded():
    for name, sentence in (
        ("nowhere:load", "no module called 'nowhere'"),
        ("ssgd:load", "has no function called"),
    ):
        with pytest.raises(ValueError, match=sentence):
            check_name(name)


# --- trainings ------------------------------------------------------------------------------------------------------


def test_the_examples_train(tmp_path, monkeypatch):
    examples = Path(__file__).parent.parent / "examples"
    monkeypatch.syspath_prepend(str(examples))
    assert all(len((examples / name).read_text().splitlines()) < 30 for name in ("own_data.py", "own_model.py"))
    recipe = get("digits").with_changes(
        ["data=own_data:load", "model=own_model:build", "phases=3", "lr=0.1", "batch=50", "seeds=0"]
    )
    (result,) = train(recipe, Execution(out=str(tmp_path), device="cpu", workers=0, progress=False))
    assert result["data"] == "own_data:load" and result["test_accuracy"] > 60  # 25 by chance


def test_a_method_of_ones_own_trains_and_its_source_is_watched(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    text = (Path(__file__).parent.parent / "examples" / "own_method.py").read_text()
    assert len(text.splitlines()) < 30
    (tmp_path / "my_method.py").write_text(text)
    quick = ["phases=2", "lr=0.1", "train_limit=100", "device=cpu", "progress=false"]
    methods = ["base", "my_method:laplace", "my_method:laplace:0", "my_method:laplace:0.2"]
    assert main(["compare", "digits", *quick, "--vary", f"method={','.join(methods)}"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()[1:]]
    assert [row[1] for row in rows] == [
        "base",
        "my_method:laplace(0.29)",
        "my_method:laplace(0)",
        "my_method:laplace(0.2)",
    ]
    losses = [run.metrics()[-1]["loss"] for run in find_runs("runs")]
    assert len(set(losses)) == 3  # at level 0 it is the base
    (row,) = [run.result() for run in find_runs("runs") if "laplace-0.2" in str(run.path)]
    assert (row["method"], row["level"], row["distribution"]) == ("my_method:laplace", 0.2, "fill")
    (tmp_path / "my_method.py").write_text(text + "\n")
    assert main(["compare", "digits", *quick, "--vary", f"method={','.join(methods)}"]) == 1
    assert "the source of my_method:laplace changed since" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        ("nowhere:make", "no module called 'nowhere'"),
        ("json:nothing", "json has no function called 'nothing'"),
        ("os:getcwd", "os:getcwd returned str: let it return a Method of ssgd.methods"),
        ("splitt:0.15", "no method called 'splitt'"),
        ("split:much", "level takes a finite number, not 'much'"),
    ],
)
def test_a_method_that_is_none_gets_a_sentence(method, sentence, capsys):
    assert main(["train", "digits", f"method={method}"]) == 2
    assert sentence in capsys.readouterr().err
