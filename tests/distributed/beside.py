"""A net cut over processes beside a whole one, which is given the same perturbed weights."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ssgd import SSGD

from .by_hand import Batch, Weights, gradient, loss_at, mean_over_ranks, weighted_sum, whole


def gathered(net: nn.Module, opt: Optimizer) -> Weights:
    """All weights as they lie in the shards now, whether or not the module holds gathered ones."""
    names = [name for name, _ in net.named_parameters()]
    parameters = [p for group in opt.param_groups for p in group["params"]]
    return {name: whole(p).detach().clone() for name, p in zip(names, parameters, strict=True)}


class Observer:
    """Passes through a sharded net, each compared with an unsharded replica that is given the gathered weights."""

    def __init__(self, net: nn.Module, opt: Optimizer, replica: nn.Module) -> None:
        self.net, self.opt, self.replica = net, opt, replica
        self.replica_opt = SGD(replica.parameters(), lr=0.1, momentum=0.9)
        self.parts: list[Weights] = []
        self.sizes: list[int] = []

    def run(self, x: Tensor, y: Tensor) -> Tensor:
        """One forward and backward; the loss must be that of the weights the shards hold."""
        at = gathered(self.net, self.opt)
        loss = F.cross_entropy(self.net(x), y)
        loss.backward()
        torch.testing.assert_close(float(loss), loss_at(self.replica, at, (x, y)), rtol=1e-9, atol=1e-12)
        self.parts.append(gradient(self.replica, at, (x, y)))
        self.sizes.append(len(x))
        return loss.detach()

    def finish(self) -> Weights:
        """The replica's step with the mean gradient, which is returned."""
        expected = mean_over_ranks(weighted_sum(self.parts, [size / sum(self.sizes) for size in self.sizes]))
        for name, p in self.replica.named_parameters():
            p.grad = expected[name]
        self.replica_opt.step()
        self.parts, self.sizes = [], []
        return expected


def observed_step(way: str, opt: SSGD, observer: Observer, batch: Batch) -> None:
    if way == "closure":

        def closure() -> Tensor:
            opt.zero_grad()
            return observer.run(*batch)

        opt.step(closure)
        return
    opt.zero_grad()
    if way == "points":
        for point in opt.points():
            with point:
                observer.run(*batch)
    else:
        for point, half in opt.split(*batch):
            with point:
                observer.run(*half)
    opt.step()
