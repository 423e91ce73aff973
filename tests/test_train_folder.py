"""ImageNet's way through the engine: a folder of images, ResNet18, top-1 and top-5."""

import os
from dataclasses import replace

import pytest
import torch

from ssgd.lab.data import load
from ssgd.lab.experiments import get
from ssgd.lab.train import Execution, train

from .test_data_folder import picture


@pytest.mark.parametrize("method", ["base", "both", "split"])
def test_ten_classes_are_trained_and_told(tmp_path, method):
    for part, images in (("train", 2), ("val", 1)):
        for i in range(10 * images):
            picture(tmp_path / "tiny-imagenet-10" / part / f"n0{i % 10}" / f"{i}.png", i, (12, 12))
    recipe = replace(get("tiny-imagenet10"), method=method, phases="1", lr=(0.01,), batch=10, image_size=32, warm_up=0)
    execution = Execution(out=str(tmp_path / "runs"), folder=str(tmp_path), device="cpu", workers=0, progress=False)
    (result,) = train(recipe, execution)
    assert result["data"] == "tiny-imagenet-10" and result["skipped"] == {}
    for part in ("train", "test"):
        assert 0 <= result[f"{part}_accuracy"] <= result[f"{part}_top5_accuracy"] <= 100


@pytest.mark.skipif(
    not os.path.isdir(os.path.join(os.environ.get("SSGD_DATA", "nowhere"), "tiny-imagenet-10")),
    reason="needs the ten classes: set SSGD_DATA to the folder that has tiny-imagenet-10/",
)
def test_the_real_ten_classes():
    recipe = get("tiny-imagenet10")
    options = {"device": "cpu", "dtype": torch.float32, "workers": 0, "image_size": recipe.image_size}
    source = load(recipe.data, **options, bad="skip")
    assert (source.classes, source.steps(recipe.batch), list(source.skipped)) == (10, 39, [])
    assert sum(len(y) for _, y in source.in_order("test")) == 500
    x, _ = source.epoch(0, 0).batch(0, 4)
    assert x.shape == (4, 3, 64, 64)
