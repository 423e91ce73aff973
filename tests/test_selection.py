"""Which weights get noise."""

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations
from torch.optim import SGD

from ssgd import SSGD, select


class Everything(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(10, 4)
        self.conv = nn.Conv1d(4, 4, 3)
        self.norm = nn.BatchNorm1d(4)
        self.rnn = nn.LSTM(4, 5)
        self.cell = nn.GRUCell(5, 5)
        self.attention = nn.MultiheadAttention(4, 2)
        self.wn = parametrizations.weight_norm(nn.Conv1d(4, 6, 3))
        self.head = nn.Linear(5, 3)
        self.scale = nn.Parameter(torch.ones(3))
        self.frozen = nn.Linear(2, 2).requires_grad_(False)


def chosen(model, *args, **kwargs):
    names = {id(p): n for n, p in model.named_parameters()}
    return [names[id(p)] for p in select(model, *args, **kwargs)]


def test_by_kind():
    model = Everything()
    assert chosen(model, "conv") == ["conv.weight", "wn.parametrizations.weight.original1"]
    assert chosen(model, "recurrent") == ["rnn.weight_ih_l0", "rnn.weight_hh_l0", "cell.weight_ih", "cell.weight_hh"]
    assert chosen(model, "embedding") == ["emb.weight"]
    assert chosen(model, "dense") == ["attention.in_proj_weight", "attention.out_proj.weight", "head.weight"]
    assert chosen(model, ["embedding", "conv"])[0] == "emb.weight"


def test_by_name_and_predicate():
    model = Everything()
    assert chosen(model, names="rnn.*") == ["rnn.weight_ih_l0", "rnn.weight_hh_l0"]
    assert chosen(model, names=["*hh*", "head.*"]) == ["rnn.weight_hh_l0", "cell.weight_hh", "head.weight"]
    assert chosen(model, where=lambda name, p: p.dim() == 1 and "norm" in name) == ["norm.weight", "norm.bias"]
    assert chosen(model, "recurrent", where=lambda name, p: "hh" in name) == ["rnn.weight_hh_l0", "cell.weight_hh"]


def test_the_default_is_every_trainable_tensor_of_two_dimensions_but_magnitudes():
    model = Everything()
    names = {id(p): n for n, p in model.named_parameters()}
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.1)
    assert [names[id(p)] for p in opt.selected] == chosen(model)
    assert "wn.parametrizations.weight.original0" not in chosen(model)
    assert not any("frozen" in n or "bias" in n or "norm" in n or n == "scale" for n in chosen(model))


def test_a_column_that_is_no_magnitude_is_perturbed():
    model = nn.Sequential(nn.Linear(1, 8), nn.Linear(8, 8))
    assert chosen(model) == ["0.weight", "1.weight"]


@pytest.mark.parametrize("with_model", [False, True])
def test_a_column_before_a_tensor_with_as_many_rows_is_no_magnitude(with_model):
    """Linear(1, 8) and Linear(8, 8) without biases have the shapes of weight-norm's pair."""
    model = nn.Sequential(nn.Linear(1, 8, bias=False), nn.Linear(8, 8, bias=False))
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.1, model=model if with_model else None)
    assert len(opt.selected) == 2
    with torch.no_grad():
        model[0].weight.abs_()  # now only the model can tell
    assert len(SSGD(SGD(model.parameters(), lr=0.1), 0.1, model=model).selected) == 2


def test_only_what_was_chosen_moves():
    model = Everything()
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.1, perturb=select(model, "conv"))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    for point in opt.points():
        with point:
            moved = [n for n, p in model.named_parameters() if not torch.equal(p, before[n])]
            assert moved == chosen(model, "conv")


def test_bad_choices():
    model = Everything()
    with pytest.raises(ValueError, match="no kind of layer called 'fc': use conv, dense"):
        select(model, "fc")
    with pytest.raises(ValueError, match=r"found no trainable weight in Everything.*names='nothing'"):
        select(model, names="nothing")
