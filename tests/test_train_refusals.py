"""What cannot be trained is refused with a sentence."""

from dataclasses import replace

import pytest

from ssgd.files import DiskProblem
from ssgd.lab.train import compare, train

from .small_trainings import folder, run_of, small


def test_a_results_file_that_cannot_be_is_refused_before_the_training(quiet, tmp_path):
    with pytest.raises(ValueError, match=r"is a folder: name a file in it"):
        replace(quiet, results=str(tmp_path))
    (tmp_path / "file").touch()
    with pytest.raises(DiskProblem, match=r"results\.jsonl could not be written"):
        train(small(), replace(quiet, results=str(tmp_path / "file" / "results.jsonl")))
    assert not folder(quiet).exists()


def test_one_process_has_one_precision(quiet):
    with pytest.raises(ValueError, match="one precision, not in bf16 and fp32"):
        compare([small(), small(name="other", precision="bf16")], quiet)


def test_two_recipes_of_one_name_are_refused(quiet):
    with pytest.raises(ValueError, match="two recipes have the same name and would share a folder"):
        compare([small(), small(method="both")], quiet)
    assert not folder(quiet).exists()


def test_another_recipe_in_the_folder_is_refused(quiet):
    train(small(), quiet)
    with pytest.raises(ValueError, match=r"another recipe:\n  lr: here \[0\.1\], asked \[0\.2\]"):
        train(small(lr=(0.2,)), quiet)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"model": "resnet21"}, "no model called 'resnet21'"),
        ({"data": "nowhere"}, "no data set called 'nowhere'"),
        ({"batch": 500}, "a batch of 500 cannot be filled from 200 training samples"),
        ({"method": "both", "level": -1.0}, "level must be a finite number of at least 0"),
    ],
)
def test_what_cannot_be_trained_says_why(quiet, changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        train(small(**changes), quiet)


@pytest.mark.parametrize(
    ("data", "kind", "model", "other"),
    [
        ("digits", "images", "sgcn-small", "speech"),
        ("digits", "images", "lstm-tiny", "language"),
        ("fake-text", "language", "small-cnn", "images"),
        ("fake-speech", "speech", "lstm-tiny", "language"),
    ],
)
def test_a_model_for_another_kind_of_data_is_refused(data, kind, model, other):
    with pytest.raises(ValueError, match=f"{model} is for {other}, and {data} is {kind}: choose another"):
        run_of(small(model=model, data=data))
