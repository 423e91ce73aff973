"""Parameter counts and shapes of the models."""

import pytest
import torch

from ssgd.models import cifar_resnet


@pytest.mark.parametrize(("depth", "parameters"), [(20, 269_722), (56, 853_018)])
def test_parameter_counts(depth, parameters):
    assert sum(p.numel() for p in cifar_resnet(depth, 10).parameters()) == parameters


@pytest.mark.parametrize("shortcut", ["A", "B"])
def test_shapes(shortcut):
    assert cifar_resnet(20, 100, shortcut)(torch.randn(2, 3, 32, 32)).shape == (2, 100)


def test_shortcut_b_has_more_parameters():
    count = {s: sum(p.numel() for p in cifar_resnet(20, 10, s).parameters()) for s in "AB"}
    assert count["B"] - count["A"] == 16 * 32 + 32 * 64 + 2 * (32 + 64)


def test_bad_choices():
    with pytest.raises(ValueError, match="no ResNet18 for CIFAR: the depths are 20, 32"):
        cifar_resnet(18, 10)
    with pytest.raises(ValueError, match="shortcut must be 'A'"):
        cifar_resnet(20, 10, "C")
