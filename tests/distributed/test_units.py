"""What FSDP gathers at once when a recipe asks for it: blocks of the net, with the whole net's passes."""

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.optim import SGD

from ssgd.lab.models.convnets import convolutions_and_poolings
from ssgd.lab.models.lstm import LanguageModel
from ssgd.lab.models.resnet import wide_resnet
from ssgd.lab.models.sgcn import sgcn
from ssgd.lab.train.distributed import load_whole_state, whole_state, wrap

from .by_hand import assert_bitwise, weights_of, whole
from .spawn import Ranks


class Tied(nn.Module):
    """The weights of its embedding are those of its head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 8)
        self.body = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.head = nn.Linear(8, 7)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(self.embedding(x)))
        return out


class Summed(nn.Sequential):
    """Has a forward of its own, which calls none of its layers."""

    def forward(self, x: Tensor) -> Tensor:
        first, second = self
        return x @ (first.weight + second.weight).T


def recurrent() -> nn.Module:
    net = LanguageModel(vocabulary=7, width=16, layers=6, dropout=0.0, initial_range=0.1)
    net.reset(rows=2)
    return net


def tiny_vgg() -> nn.Module:
    return convolutions_and_poolings(stages=((8, 8, 8), (8, 8, 8), (8, 8, 8)), classes=10, channels=3)


def with_one_layer_twice() -> nn.Module:
    layer = nn.Linear(16, 16)
    return nn.Sequential(nn.Sequential(layer, nn.Tanh()), nn.Sequential(layer, nn.Tanh()), nn.Linear(16, 3))


def with_a_forward_of_its_own() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), Summed(nn.Linear(16, 8, bias=False), nn.Linear(16, 8, bias=False)))


IMAGES = (torch.linspace(-1, 1, 2 * 3 * 16 * 16).sin().view(2, 3, 16, 16),)
WORDS = (torch.arange(10).view(2, 5) % 7,)
VECTORS = (torch.linspace(-1, 1, 64).view(4, 16),)
SPEECH = (torch.linspace(-9, 9, 2 * 40 * 16).sin().view(2, 40, 16), torch.tensor([16, 12]))
DEEP: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "blocks in a Sequential": (lambda: wide_resnet(28, 1, classes=10), IMAGES),
    "layers in a Sequential": (tiny_vgg, IMAGES),
    "layers in a ModuleList": (lambda: sgcn(16, classes=5, layers=12, fronts=1), SPEECH),
    "LSTMs in a ModuleList": (recurrent, WORDS),
}
ODD: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, ...]]] = {
    "tied weights": (Tied, WORDS),
    "one layer twice": (with_one_layer_twice, VECTORS),
    "a Sequential with a forward of its own": (with_a_forward_of_its_own, VECTORS),
}
NETS = DEEP | ODD


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return NETS[name][0]()


def sharded(name: str) -> nn.Module:
    return wrap(build(name), "fsdp", False, torch.device("cpu"))


@pytest.mark.parametrize("name", DEEP)
def test_no_unit_has_more_than_a_quarter_of_a_deep_nets_weights(ranks: Ranks, name: str) -> None:
    assert max(ranks(2, largest_share, name)) < 0.25


def largest_share(rank: int, name: str) -> float:
    net = sharded(name)
    unit_of = {p: module for module in net.modules() if isinstance(module, FSDPModule) for p in module.parameters()}
    sizes: Counter[nn.Module] = Counter()
    for p, unit in unit_of.items():
        sizes[unit] += p.numel()
    return max(sizes.values()) / sizes.total()


@pytest.mark.parametrize("name", NETS)
def test_passes_and_gradients_are_the_whole_nets(ranks: Ranks, name: str) -> None:
    ranks(2, beside_the_whole_net, name)


def beside_the_whole_net(rank: int, name: str) -> None:
    """The same batch on both ranks: the mean over ranks is what one process gets."""
    nets = build(name), sharded(name)
    losses = [one_pass(name, net) for net in nets]
    torch.testing.assert_close(losses[1], losses[0])
    expected = dict(nets[0].named_parameters())
    for key, p in nets[1].named_parameters():
        assert p.grad is not None and expected[key].grad is not None
        torch.testing.assert_close(whole(p.grad), expected[key].grad, rtol=1e-4, atol=1e-6)


def one_pass(name: str, net: nn.Module) -> Tensor:
    found = net(*NETS[name][1])
    loss: Tensor = (found[0] if isinstance(found, tuple) else found).square().mean()
    loss.backward()
    return loss.detach()


def test_checkpoints_fit_whatever_the_units_were(ranks: Ranks) -> None:
    ranks(2, from_other_units, "blocks in a Sequential")


def from_other_units(rank: int, name: str) -> None:
    """From units that are the net's children, as they once were: the next step has the same bits."""
    mesh = init_device_mesh("cpu", (2,))
    coarse, fine = build(name), sharded(name)
    for child in coarse.children():
        fully_shard(child, mesh=mesh)
    fully_shard(coarse, mesh=mesh)
    opts = [SGD(net.parameters(), lr=0.1, momentum=0.9) for net in (coarse, fine)]
    one_pass(name, coarse)
    opts[0].step()
    load_whole_state(fine, opts[1], whole_state(coarse, opts[0]))
    for net, opt in zip((coarse, fine), opts, strict=True):
        opt.zero_grad()
        one_pass(name, net)
        opt.step()
    assert_bitwise(weights_of(fine), weights_of(coarse))
