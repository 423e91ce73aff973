"""The net, data and solutions over which the tests of surfaces evaluate, and how their results are compared."""

from dataclasses import fields

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from ssgd.analysis import Task


def net(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, 3))


def batches(seed, *sizes):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda n: torch.randn(n, 4, generator=generator)  # noqa: E731
    return [(x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()) for x in map(draw, sizes)]


TRAIN, TEST = batches(0, 16, 16, 5), batches(1, 12, 7)


def loss(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def wrong(model, batch):
    return (model(batch[0]).argmax(1) != batch[1]).sum()


def tasks(model):
    return {"train": Task(model, loss, TRAIN, wrong=wrong), "test": Task(model, loss, TEST, wrong=wrong)}


def solution(seed):
    model = net(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in TRAIN * 5:
        loss(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.state_dict()


def values(surface):
    return {f.name: getattr(surface, f.name) for f in fields(surface) if f.name != "seconds"}


def assert_same(found, expected):
    for name, value in values(expected).items():
        np.testing.assert_array_equal(values(found)[name], value, err_msg=name)


def files(out):
    return out.with_suffix(".npz").read_bytes(), out.with_suffix(".json").read_bytes()


class Point(nn.Module):
    def __init__(self, *weights):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([weights], dtype=torch.float64))


def deviation(found, expected):
    for what in ("losses", "anchor_losses"):
        yield np.abs(getattr(found, what) / getattr(expected, what) - 1).max()


def picture_of(model):
    tensors = [*model.parameters(), *model.buffers()]
    values = [t.detach().clone() for t in (*tensors, *(p.grad for p in model.parameters()))]
    return values, [t.data_ptr() for t in tensors], [m.training for m in model.modules()], torch.get_rng_state()
