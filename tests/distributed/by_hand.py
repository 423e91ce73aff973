"""What a step must give, computed beside the library: noise from its numbers, gradients of functions of the weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from ssgd.core.noise import mix

Weights = dict[str, Tensor]
Batch = tuple[Tensor, Tensor]


def weights_of(net: nn.Module) -> Weights:
    """A copy of the trainable weights, whole."""
    return {name: whole(p).detach().clone() for name, p in net.named_parameters() if p.requires_grad}


def noises(weights: Weights, level: float, seed: int, step: int, key: int = 0, pairs: int = 1) -> list[Weights]:
    """n of each pair: Gaussian in the tensors of two or more dimensions, of the norm level · ‖w‖ in each."""
    return [
        {
            name: drawn(w, level, mix(seed, step, key, pair, position))
            for position, (name, w) in enumerate(weights.items())
            if w.dim() >= 2
        }
        for pair in range(pairs)
    ]


def drawn(w: Tensor, level: float, seed: int) -> Tensor:
    """A Gaussian tensor like w, of the norm level · ‖w‖."""
    z = torch.empty(w.numel(), dtype=w.dtype).normal_(generator=torch.Generator().manual_seed(seed))
    return (level * w.norm() / z.norm() * z).view_as(w)


def moved(weights: Weights, noise: Weights, sign: int) -> Weights:
    """w + sign · n."""
    return {name: w + sign * noise[name] if name in noise else w for name, w in weights.items()}


def gradient(net: nn.Module, weights: Weights, batch: Batch) -> Weights:
    """∇L at these weights; zero where the loss does not depend on them."""
    leaves = {name: w.detach().clone().requires_grad_() for name, w in weights.items()}
    x, y = batch
    loss = F.cross_entropy(functional_call(net, leaves, (x,)), y)
    found = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
    return {name: torch.zeros_like(w) if g is None else g for (name, w), g in zip(weights.items(), found, strict=True)}


def loss_at(net: nn.Module, weights: Weights, batch: Batch) -> float:
    x, y = batch
    with torch.no_grad():
        return float(F.cross_entropy(functional_call(net, weights, (x,)), y))


def weighted_sum(parts: Sequence[Weights], shares: Sequence[float]) -> Weights:
    return {
        name: sum((share * part[name] for share, part in zip(shares, parts, strict=True)), torch.zeros(()))
        for name in parts[0]
    }


def both(net: nn.Module, weights: Weights, pairs: Sequence[Weights], batch: Batch) -> Weights:
    """The mean of the gradients at w + n and w − n, over all pairs."""
    parts = [gradient(net, moved(weights, noise, sign), batch) for noise in pairs for sign in (1, -1)]
    return weighted_sum(parts, [1 / len(parts)] * len(parts))


def split(net: nn.Module, weights: Weights, noise: Weights, batch: Batch) -> Weights:
    """+n with the first ⌈B/2⌉ samples, −n with the others, each weighed by its share."""
    x, y = batch
    first = (len(x) + 1) // 2
    parts = [
        gradient(net, moved(weights, noise, 1), (x[:first], y[:first])),
        gradient(net, moved(weights, noise, -1), (x[first:], y[first:])),
    ]
    return weighted_sum(parts, [first / len(x), 1 - first / len(x)])


# --- over ranks -----------------------------------------------------------------------------------------------------


def mean_over_ranks(parts: Weights) -> Weights:
    """The mean of what the ranks have."""
    return {name: torch.stack(of_every_rank(part)).mean(0) for name, part in parts.items()}


def of_every_rank(tensor: Tensor) -> list[Tensor]:
    """What each rank has here, in order."""
    found = [torch.empty_like(tensor) for _ in range(dist.get_world_size())]
    dist.all_gather(found, tensor.detach().contiguous())
    return found


def objects_of_every_rank(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor, gathered."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


# --- assertions -----------------------------------------------------------------------------------------------------


def assert_gradients(net: nn.Module, expected: Mapping[str, Tensor], **tolerance: float) -> None:
    """p.grad is the expected gradient, for every parameter."""
    tolerance = tolerance or {"rtol": 1e-9, "atol": 1e-12}
    for name, p in net.named_parameters():
        found = torch.zeros(p.shape, dtype=p.dtype) if p.grad is None else whole(p.grad)
        torch.testing.assert_close(
            found, expected[name], msg=lambda text, name=name: f"{name}.grad: {text}", **tolerance
        )
    assert any(p.grad is not None for p in net.parameters()), "there is no gradient at all"


def assert_shards_draw_for_themselves(noise: Sequence[Tensor], weights: Sequence[Tensor], level: float) -> None:
    """No shard repeats another's noise, and none is scaled by itself: the level is that of the whole tensor only."""
    for i, (n, w) in enumerate(zip(noise, weights, strict=True)):
        assert abs(float(n.norm() / w.norm()) - level) > 1e-4, "the noise has the level in a shard already"
        for earlier in noise[:i]:
            for row, other in zip(n, earlier, strict=False):
                cosine = F.cosine_similarity(row, other, dim=0)
                assert abs(float(cosine)) < 0.999, "two shards have the same noise"


def assert_same_on_every_rank(tensors: Mapping[str, Tensor]) -> None:
    """Bitwise."""
    for name, tensor in tensors.items():
        others = of_every_rank(tensor)
        assert all(torch.equal(others[0], other) for other in others), f"{name} differs between ranks"


def assert_bitwise(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert torch.equal(whole(tensor), whole(expected[name])), f"{name} is not bitwise the same"


def momenta(net: nn.Module, optimizer: torch.optim.Optimizer) -> Weights:
    """SGD's momentum of each parameter."""
    return {name: whole(optimizer.state[p]["momentum_buffer"]) for name, p in net.named_parameters()}
