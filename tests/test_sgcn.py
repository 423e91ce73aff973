"""SGCN: counts, lengths, what padding does, and that it learns."""

import pytest
import torch

from ssgd.lab.data import load
from ssgd.lab.data.speech import ctc_objective
from ssgd.lab.models import MODELS, build
from ssgd.lab.models.sgcn import Gated, sgcn


def count(net):
    return sum(p.numel() for p in net.parameters())


@pytest.mark.parametrize(("units", "expected", "papers"), [(190, 1_091_249, "1.09"), (300, 2_237_669, "2.24")])
def test_counts_are_the_papers(units, expected, papers):
    net = build(f"sgcn-{units}", 29, 40)
    assert count(net) == expected and f"{expected / 1e6:.2f}" == papers
    per_layer = 2 * (units**2 + units) + 23 * units + 2 * units  # value and gate, the kernel, the norm
    front = 32 * (41 * 11 + 1) + 32 * (32 * 21 * 11 + 1)
    assert count(net) == front + (320 + 1) * units + 10 * per_layer + 2 * units + 29 * (units + 1)
    assert MODELS[f"sgcn-{units}"].kind == "speech"


@pytest.mark.parametrize("features", [13, 39, 40])
def test_shapes_and_lengths(features):
    net = build("sgcn-small", 29, features)
    for frames in (1, 10, 11):
        log_probs, lengths = net(torch.randn(2, features, frames), torch.tensor([frames, 1]))
        assert log_probs.shape == ((frames + 1) // 2, 2, 29) and lengths.tolist() == [(frames + 1) // 2, 1]
        assert torch.allclose(log_probs.exp().sum(2), torch.ones(len(log_probs), 2))


@pytest.mark.parametrize("length", [20, 21])
def test_neighbours_in_a_batch_change_nothing(length):
    torch.manual_seed(0)
    net = build("sgcn-small", 29, 12)
    alone, longer = torch.randn(1, 12, length), torch.randn(1, 12, 50)
    padded = torch.cat([torch.nn.functional.pad(alone, (0, 50 - length)), longer])
    expected, _ = net(alone, torch.tensor([length]))
    together, lengths = net(padded, torch.tensor([length, 50]))
    assert torch.allclose(together[: lengths[0], 0], expected[:, 0], atol=1e-5)


def test_a_gated_layer():
    torch.manual_seed(0)
    layer, x = Gated(4, width=3), torch.randn(2, 5, 4)
    everywhere = torch.ones(2, 5, 1, dtype=torch.bool)
    normed = (x - x.mean(2, keepdim=True)) / (x.var(2, correction=0, keepdim=True) + 1e-5).sqrt()
    normed = torch.nn.functional.pad(normed, (0, 0, 1, 1))
    h = sum(normed[:, k : k + 5] * layer.time.weight[:, 0, k] for k in range(3))
    expected = x + layer.value(h) * torch.sigmoid(layer.gate(h))
    assert torch.allclose(layer(x, everywhere), expected, atol=1e-6)
    with torch.no_grad():
        layer.gate.bias.fill_(-100)
    assert torch.allclose(layer(x, everywhere), x)


def test_too_few_layers():
    with pytest.raises(ValueError, match="an SGCN of 2 layers has none that is gated"):
        sgcn(8, 29, layers=2)


def test_it_begins_to_learn_made_up_speech():
    torch.manual_seed(0)
    source = load("fake-speech", device="cpu", dtype=torch.float32)
    net = build("sgcn-small", source.classes, source.channels)
    opt = torch.optim.Adam(net.parameters(), lr=5e-3)
    losses = []
    for number in range(2):
        epoch = source.epoch(0, number)
        for step in range(source.steps(8)):
            opt.zero_grad()
            loss = ctc_objective(net, *epoch.batch(step, 8))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 5.0)
            opt.step()
            losses.append(loss.item())
    assert sum(losses[-4:]) < 0.5 * sum(losses[:4]), losses
