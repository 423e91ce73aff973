"""Products with the Hessian of the library's nets and of attention, against double backward."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ssgd import select
from ssgd.analysis import Hessian, Task
from ssgd.lab import models

from .hessian_problems import apart, cross_entropy, images_of, some


@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize(("name", "side"), [("resnet20", 8), ("resnet20-B", 8), ("wrn20-2", 8), ("small-cnn", 8)])
def test_the_librarys_nets_forward_over_reverse(name, side, mode):
    """Every kind of layer, in ragged batches, against double backward; for the convolutions alone too."""
    torch.manual_seed(0)
    net = models.build(name, 4, 3).double()
    task = Task(net, cross_entropy, images_of(side))
    for chosen in (None, select(net, "conv")):
        matrix = Hessian(task, chosen, mode=mode)
        assert matrix.product == "forward"
        v = some(matrix.size, 1)
        assert apart(matrix.matmat(v), Hessian(task, chosen, "double", mode=mode).matmat(v)) < 1e-10


def test_the_language_models_forward_over_reverse():
    torch.manual_seed(0)
    net = models.build("lstm-tiny", 11, 1).double()
    words = torch.randint(11, (5, 7), generator=torch.Generator().manual_seed(1))

    def loss(model, batch):
        model.reset(len(batch))
        return F.cross_entropy(model(batch).flatten(0, 1), batch.flatten())

    task = Task(net, loss, [words[:3], words[3:]])
    matrix = Hessian(task)
    v = some(matrix.size, 1)
    assert matrix.product == "forward"
    assert apart(matrix.matmat(v), Hessian(task, product="double").matmat(v)) < 1e-10


@pytest.mark.parametrize("together", [1, 2])
def test_attention(together):
    """torch's fused kernels for it have no second derivative."""
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(4, 2, 5, batch_first=True)
    net = nn.Sequential(nn.Embedding(3, 4), layer, nn.Linear(4, 3)).double()
    words = torch.randint(3, (5, 6))
    task = Task(net, lambda m, b: F.cross_entropy(m(b).flatten(0, 1), b.flatten()), [words[:3], words[3:]])
    matrix, double = Hessian(task, together=together), Hessian(task, product="double")
    assert matrix.product == "forward"
    v = some(matrix.size, 2)
    assert apart(matrix.matmat(v), double.matmat(v)) < 1e-10
