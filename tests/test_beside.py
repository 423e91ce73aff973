"""Beside what else trains a net: activation checkpointing, averaged weights, accumulated gradients."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

from ssgd import SSGD
from ssgd.reference import Reference

from .distributed.by_hand import assert_bitwise, assert_gradients, both, noises, split, weighted_sum, weights_of
from .problems import BASES, WAYS, mlp, run_passes, take_step, vectors, weights

LEVEL, SEED = 0.3, 5


# --- activation checkpointing ---------------------------------------------------------------------------------------


class Blocks(nn.Module):
    """Three layers with dropout; the middle ones may be computed again in the backward pass."""

    def __init__(self, recompute: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.recompute = recompute
        self.passes = 0
        self.first = nn.Linear(5, 8, dtype=torch.float64)
        self.middle = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Dropout(0.3), nn.Linear(8, 8), nn.Tanh()).double()
        self.last = nn.Linear(8, 3, dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.recompute == "no":
            return self.last(self._middle(x))
        return self.last(checkpoint(self._middle, x, use_reentrant=self.recompute == "reentrant"))

    def _middle(self, x: Tensor) -> Tensor:
        self.passes += 1
        return self.middle(x)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("recompute", ["reentrant", "not reentrant"])
@pytest.mark.parametrize("rng", ["independent", "same"])
def test_activation_checkpointing_changes_no_gradient(way: str, recompute: str, rng: str) -> None:
    """What is computed again is computed at the same point, with the same dropout masks."""
    plain, saving = Blocks("no"), Blocks(recompute)
    trained = []
    for net in (plain, saving):
        opt = SSGD(BASES["nesterov"](net.parameters()), LEVEL, seed=SEED, rng=rng)
        torch.manual_seed(1)
        gradients = []
        for step in range(3):
            take_step(opt, way, net, *vectors(seed=step))
            gradients.append([p.grad.clone() for p in net.parameters()])
        trained.append((gradients, weights(net)))
    assert (plain.passes, saving.passes) == (6, 12)
    torch.testing.assert_close(trained[1], trained[0], rtol=1e-12, atol=1e-14)


# --- averaged weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_an_average_of_weights_sees_only_clean_ones(way: str) -> None:
    net, slow_net = mlp(), mlp()
    opt = SSGD(SGD(net.parameters(), lr=0.1, momentum=0.9), LEVEL, seed=SEED)
    slow = Reference(
        SGD(slow_net.parameters(), lr=0.1, momentum=0.9), LEVEL, [slow_net[0].weight, slow_net[2].weight], seed=SEED
    )
    average = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    expected: list[Tensor] = []
    for step in range(6):
        x, y = vectors(seed=step)
        take_step(opt, way, net, x, y)
        average.update_parameters(net)
        if way == "split":
            slow.step(lambda: F.cross_entropy(slow_net(x[:4]), y[:4]), lambda: F.cross_entropy(slow_net(x[4:]), y[4:]))  # noqa: B023
        else:
            slow.step(lambda: F.cross_entropy(slow_net(x), y))  # noqa: B023
        clean = weights(slow_net)
        expected = [0.5 * a + 0.5 * w for a, w in zip(expected, clean, strict=True)] if expected else clean
    for found, wanted in zip(weights(average.module), expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)
    x, y = vectors(seed=9)
    for point in opt.points():  # the average is a net of its own, and does not move along
        with point:
            for found, wanted in zip(weights(average.module), expected, strict=True):
                torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


# --- accumulated gradients ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_three_micro_batches_see_both_signs_of_the_same_noise(way: str) -> None:
    """Points and split take each batch through both signs; a closure takes all batches through one sign, then −."""
    net = mlp()
    opt = SSGD(SGD(net.parameters(), lr=0.1, momentum=0.9), LEVEL, seed=SEED)
    for step in range(2):
        batches = [vectors(samples=7, seed=10 * step + i) for i in range(3)]
        w = weights_of(net)
        (n,) = noises(w, LEVEL, SEED, step)
        parts = [split(net, w, n, batch) if way == "split" else both(net, w, [n], batch) for batch in batches]

        seen: list[dict[str, Tensor]] = []  # the weights each forward starts with
        hook = net.register_forward_pre_hook(lambda net, _, seen=seen: seen.append(weights_of(net)))
        if way == "closure":
            opt.step(lambda batches=batches: accumulated(opt, net, batches))
        else:
            for batch in batches:
                run_passes(opt, way, net, *batch, scale=lambda loss: loss / 3)
        hook.remove()

        assert_gradients(net, weighted_sum(parts, [1 / 3] * 3), rtol=1e-12, atol=1e-15)
        signs = [1, 1, 1, -1, -1, -1] if way == "closure" else [1, -1, 1, -1, 1, -1]
        for at, sign in zip(seen, signs, strict=True):
            assert_bitwise(at, seen[signs.index(sign)])
            for name, n_l in n.items():
                torch.testing.assert_close(at[name] - w[name], sign * n_l, rtol=1e-12, atol=1e-15)
        if way != "closure":
            opt.step()
        opt.zero_grad()
        assert opt.param_groups[0]["noise_step"] == step + 1


def accumulated(opt: SSGD, net: nn.Module, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """A closure's whole step: the mean loss over micro-batches, with a backward() for each."""
    opt.zero_grad()
    losses = []
    for x, y in batches:
        losses.append(F.cross_entropy(net(x), y) / len(batches))
        losses[-1].backward()
    return torch.stack(losses).sum()
