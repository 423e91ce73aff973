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
    assert chosen(model, names="rnn.*", where=lambda name, p: "hh" in name) == ["rnn.weight_hh_l0"]


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


@pytest.mark.parametrize(
    "shapes", [((1, 1), (1, 5)), ((3, 1), (3, 1)), ((3, 2), (3, 4)), ((3, 1), (3, 4, 5)), ((3, 1), (2, 4))]
)
def test_only_a_column_of_several_rows_before_a_wider_tensor_looks_like_a_magnitude(shapes):
    parameters = [nn.Parameter(torch.ones(shape)) for shape in ((), *shapes)]
    assert len(SSGD(SGD(parameters, lr=0.1), 0.1).selected) == 2


def test_a_column_of_zeros_is_no_magnitude():
    parameters = [nn.Parameter(torch.zeros(3, 1)), nn.Parameter(torch.ones(3, 4))]
    assert len(SSGD(SGD(parameters, lr=0.1), 0.1).selected) == 2


def test_other_parametrisations_have_no_magnitude():
    class Sum(nn.Module):
        def forward(self, one, other):
            return one + other

        def right_inverse(self, weight):
            return weight / 2, weight / 2

    model = nn.Linear(4, 3)
    nn.utils.parametrize.register_parametrization(model, "weight", Sum())
    assert chosen(model) == ["parametrizations.weight.original0", "parametrizations.weight.original1"]


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


def test_dense_layers_of_gpt2_are_dense():
    transformers = pytest.importorskip("transformers")
    sizes = {"n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 11, "n_positions": 4}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    parametrizations.weight_norm(model.transformer.h[0].mlp.c_fc)
    chosen = {id(p) for p in select(model, "dense")}
    assert id(model.transformer.h[0].mlp.c_fc.parametrizations.weight.original1) in chosen
    model = transformers.GPT2LMHeadModel(model.config)
    chosen = {id(p) for p in select(model, "dense")}
    names = {name.split(".", 3)[-1] for name, p in model.named_parameters() if id(p) in chosen}
    assert {"attn.c_attn.weight", "attn.c_proj.weight", "mlp.c_fc.weight", "mlp.c_proj.weight"} <= names


def test_magnitudes_are_looked_for_again_when_the_model_or_the_groups_change():
    one, two = (parametrizations.weight_norm(nn.Linear(4, 3)) for _ in range(2))
    with torch.no_grad():
        one.parametrizations.weight.original0[0] *= -1  # by its look no magnitude, by its model one
    opt = SSGD(SGD(one.parameters(), lr=0.1), 0.1)
    assert [tuple(p.shape) for p in opt.selected] == [(3, 1), (3, 4)]
    opt.attach(nn.ModuleList([one, two]))
    assert [tuple(p.shape) for p in opt.selected] == [(3, 4)]
    opt = SSGD(SGD(two.parameters(), lr=0.1), 0.1)
    assert [tuple(p.shape) for p in opt.selected] == [(3, 4)]
    opt.add_param_group({"params": list(parametrizations.weight_norm(nn.Linear(5, 2)).parameters())})
    assert [tuple(p.shape) for p in opt.selected] == [(3, 4), (2, 5)]
