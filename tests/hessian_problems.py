"""Nets and losses whose Hessians the tests know, and exact Hessians to compare with."""

import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, hessian

from ssgd.analysis import Task

from .problems import mlp, vectors


def cross_entropy(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def convnet():
    """Smooth, with batch-norm whose statistics are not those of the data, and dropout."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2), nn.BatchNorm2d(3), nn.Tanh(), nn.Dropout(0.5), nn.Flatten(), nn.Linear(12, 3)
    ).double()
    net[1].running_mean.normal_()
    net[1].running_var.uniform_(0.5, 2)
    return net


def images():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(13, 1, 5, 5, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 3, (13,), generator=generator)


def ragged(data, sizes=(5, 5, 3)):
    return list(zip(*(t.split(sizes) for t in data), strict=True))


def task_of(kind):
    model, data = (mlp(), vectors(13)) if kind == "mlp" else (convnet(), images())
    return Task(model, cross_entropy, ragged(data)), data


def exact(task, data, tensors=None):
    """The Hessian of the loss over ``data`` at once, by forward over reverse differentiation."""
    names = {id(p): name for name, p in task.model.named_parameters()}
    tensors = list(task.model.parameters()) if tensors is None else tensors

    def loss(flat):
        cut = [part.view_as(p) for part, p in zip(flat.split([p.numel() for p in tensors]), tensors, strict=True)]
        values = {names[id(p)]: value for p, value in zip(tensors, cut, strict=True)}
        return task.loss(lambda *inputs: functional_call(task.model, values, inputs, tie_weights=False), data)

    return hessian(loss)(torch.cat([p.detach().reshape(-1) for p in tensors]))


def curvlinops_hessian(task):
    """The same matrix by another library."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        curvlinops = pytest.importorskip("curvlinops", reason="the oracle curvlinops-for-pytorch is not installed")
        parameters = list(task.model.parameters())
        return curvlinops.HessianLinearOperator(
            task.model, nn.CrossEntropyLoss(), parameters, task.batches, check_deterministic=False
        )


def some(size, count=3, dtype=torch.float64):
    return torch.randn(count, size, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(dtype)


def apart(a, b):
    """The difference relative to the second, for the worst row."""
    return ((a.double() - b).norm(dim=-1) / b.norm(dim=-1)).max().item()


def images_of(side):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(5, 3, side, side, generator=generator, dtype=torch.float64)
    return [(x[:3], torch.tensor([0, 2, 1])), (x[3:], torch.tensor([3, 0]))]
