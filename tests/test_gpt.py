"""The transformer for text: what it sees, what it is made of, and its passes under every way of noise."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from ssgd import SSGD
from ssgd.lab.experiments import get
from ssgd.lab.models import build
from ssgd.lab.models.gpt import CONTEXT
from ssgd.lab.train import Execution, train

WORDS = replace(
    get("words"), model="gpt-tiny", phases="2", lr=(3e-3,), optimizer="adamw", train_limit=3000, test_limit=500
)


@pytest.fixture
def net():
    torch.manual_seed(0)
    return build("gpt-tiny", 11).double()


@pytest.mark.parametrize(("name", "count"), [("gpt-2x128", 419_584), ("gpt-6x384", 10_715_904)])
def test_parameter_counts(name, count):
    layers, width = map(int, name.removeprefix("gpt-").split("x"))
    block = 12 * width**2 + 13 * width  # four matrices with their biases, and two norms
    assert count == layers * block + (50 + CONTEXT + 2) * width  # the embedding serves twice
    with torch.device("meta"):
        assert sum(p.numel() for p in build(name, 50).parameters()) == count


def test_a_word_is_predicted_from_those_before_it_alone(net):
    x = torch.randint(11, (3, 20))
    changed = x.clone()
    changed[:, 12] = (x[:, 12] + 1) % 11
    before, after = net(x), net(changed)
    assert torch.equal(before[:, :12], after[:, :12])
    assert (before[:, 12:] != after[:, 12:]).any(2).all()


def test_a_block_is_attention_and_a_wide_layer_each_added_to_what_came_in(net):
    x, block = torch.randn(2, 9, 64, dtype=torch.float64), net.blocks[0]
    q, k, v = block.attention(block.first(x)).chunk(3, 2)
    chances = (q @ k.mT / math.sqrt(64)).masked_fill(torch.ones(9, 9).triu(1).bool(), -math.inf).softmax(2)
    x1 = x + block.out(chances @ v)
    torch.testing.assert_close(block(x), x1 + block.down(F.gelu(block.up(block.second(x1)))))


def test_a_window_that_is_too_long_is_refused(net):
    with pytest.raises(ValueError, match="sees 128 words at once, not 129"):
        net(torch.zeros(1, 129, dtype=torch.long))


def test_one_pass_has_the_gradient_of_split(net):
    x = torch.randint(11, (4, 20))

    def loss(x):
        return F.cross_entropy(net(x).flatten(0, 1), x.flatten())

    def stepped(split):
        opt = SSGD(torch.optim.SGD(net.parameters(), 0.0), 0.2, model=net, seed=3)
        if split:
            for point, half in opt.split(x):
                with point:
                    loss(half).backward()
        else:
            with opt.one_pass():
                loss(x).backward()
        found = [p.grad.clone() for p in net.parameters()]
        opt.step()
        opt.zero_grad()
        return found

    torch.testing.assert_close(stepped(split=True), stepped(split=False))


@pytest.mark.parametrize("method", ["base", "both", "split", "one-pass", "one-sided", "one-sided-halves", "sam"])
def test_it_learns_under_every_method_and_tells_bits(tmp_path, method):
    (result,) = train(replace(WORDS, method=method, tolerance=True), Execution(out=str(tmp_path), progress=False))
    assert result["test_loss"] < math.log(29)  # thirty words, one of them the end of a line
    assert result["test_bits"] == pytest.approx(math.log2(result["test_perplexity"]))
    assert result["tolerance"]["columns"] == ["as it is"]
    assert result["tolerance"]["none"]["0"]["loss"] == [pytest.approx(result["test_loss"], rel=1e-3)]
