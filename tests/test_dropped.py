"""DropConnect and dropout."""

import copy

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ssgd import SSGD
from ssgd.methods import dropconnect, dropout_on_dense, remove_dropconnect

from .problems import convnet, images, mlp, same, vectors, weights
from .rivals import take


def test_dropconnect_drops_weights_in_training_only_and_comes_off():
    model = mlp(torch.float32)
    before, keys, parameters = weights(model), list(model.state_dict()), list(model.parameters())
    x, _ = vectors(dtype=torch.float32)
    clean = model(x)
    dropconnect(model, 0.5)
    dropped = model[0].weight
    assert {round(r.item(), 5) for r in (dropped / before[0]).flatten()} == {0.0, 2.0}
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), clean)
    assert {id(p) for p in model.parameters()} == {id(p) for p in parameters}
    remove_dropconnect(model)
    assert same(model, before) and list(model.state_dict()) == keys
    assert [id(p) for p in model.parameters()] == [id(p) for p in parameters]


def test_dropconnect_on_convolutions_and_what_it_refuses():
    model = convnet()
    model(images()[0])
    dropconnect(model, 0.3, "conv")
    assert (model[0].weight == 0).any() and (model[8].weight != 0).all()
    with pytest.raises(ValueError, match="is on this model already"):
        dropconnect(model, 0.3, "conv")
    with pytest.raises(ValueError, match="the share of weights dropped"):
        dropconnect(model, 1.0)
    remove_dropconnect(model)
    normed = nn.Sequential(nn.Linear(3, 3), nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)))
    with pytest.raises(ValueError, match="is parametrised already, as by weight norm"):
        dropconnect(normed, 0.3)
    assert not nn.utils.parametrize.is_parametrized(normed[0])


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.LSTMCell])
def test_dropconnect_on_recurrent_weights(kind):
    torch.manual_seed(0)
    model = kind(4, 6)
    x = torch.randn(2, 4) if kind is nn.LSTMCell else torch.randn(5, 2, 4)
    out = lambda: model(x)[0]  # noqa: E731
    state = [torch.ones(2, 6), torch.ones(2, 6)]
    if kind is nn.LSTMCell:
        out = lambda: model(x, tuple(state))[0]  # noqa: E731
    clean, keys = out().detach(), list(model.state_dict())
    dropconnect(model, 0.5, "recurrent")
    a, b = out(), out()
    assert not torch.equal(a, b)
    a.sum().backward()
    hidden = [p for n, p in model.named_parameters() if "weight_hh" in n]
    assert hidden and all(p.grad is not None and p.grad.norm() > 0 for p in hidden)
    model.eval()
    for _ in range(2):
        torch.testing.assert_close(out(), clean)
    model.train()
    out()
    twin = copy.deepcopy(model)
    twin_out = twin(x, tuple(state) if kind is nn.LSTMCell else None)[0]
    assert not torch.equal(twin_out, out())
    twin_out.sum().backward()
    twins = [p for n, p in twin.named_parameters() if "weight_hh" in n]
    assert twins and all(p.grad.norm() > 0 for p in twins)
    remove_dropconnect(model)
    torch.testing.assert_close(out(), clean)
    assert list(model.state_dict()) == keys


def test_dropconnect_and_noise_go_together():
    model, (x, y) = dropconnect(mlp(torch.float32), 0.2), vectors(dtype=torch.float32)
    opt = SSGD(SGD(model.parameters(), lr=0.1), 0.3)
    assert len(opt.selected) == 2
    before = weights(model)
    take(opt, model, x, y)
    assert same(model, before)
    opt.step()


def test_dropout_on_the_last_dense_layer():
    model, (x, _) = mlp(torch.float32), vectors(dtype=torch.float32)
    clean = model(x)
    handle = dropout_on_dense(model, 0.5)
    assert not torch.equal(model(x), clean)
    seen = []
    model[2].register_forward_hook(lambda m, i, o: seen.append(i[0]))
    model(x)
    assert (seen[0] == 0).float().mean() == pytest.approx(0.5, abs=0.2)
    model.eval()
    assert torch.equal(model(x), clean)
    model.train()
    handle.remove()
    assert torch.equal(model(x), clean)
    with pytest.raises(ValueError, match=r"has no nn\.Linear"):
        dropout_on_dense(nn.Conv2d(1, 1, 1), 0.5)
