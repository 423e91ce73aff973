"""S-SGD's two passes as one: the images of both signs lie in one batch, and every layer has the weights of either.

A kernel then does the work of two. Small ones, which wait for their own beginning and end, take little longer for it.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from ..core.halves import batch_size
from ..optimizer import SSGD
from . import convolutions
from .convolutions import FastConv2d, conv3x3
from .pair import PairStep, Weights, laid_out_as


def use_stacked_layers(net: nn.Module) -> bool:
    """Let the layers of ``net`` take weights that are stacked; False, and nothing is changed, if one cannot.

    Only for nets whose other modules treat every image by itself. With weights as they were, all is as it was.
    """
    with_state = [m for m in net.modules() if [*m.parameters(recurse=False), *m.buffers(recurse=False)]]
    norms = [m for m in with_state if isinstance(m, nn.BatchNorm2d)]
    if (
        not all(type(module) in STACKED for module in with_state)
        or not all(norm.affine and norm.track_running_stats and norm.momentum for norm in norms)
        or any(isinstance(module, _DropoutNd) for module in net.modules())  # it would draw in another order
    ):
        return False
    for module in with_state:
        module.__class__ = STACKED[type(module)]
    return True


class StackedConv2d(nn.Conv2d):
    """One torch convolution after the other."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dim() == 4:
            return super().forward(x)
        biases = [None] * len(self.weight) if self.bias is None else self.bias
        parts = zip(x.chunk(len(self.weight)), self.weight, biases, strict=True)
        return torch.cat([self._conv_forward(*part) for part in parts])


class StackedFastConv2d(FastConv2d, StackedConv2d):
    """A single kernel for all, where there is one."""

    def forward(self, x: Tensor) -> Tensor:
        dtype = convolutions.served_dtype(x, self.weight)
        if self.weight.dim() == 4 or dtype is None:
            return super().forward(x)
        out: Tensor = conv3x3(x.to(dtype), self.weight, self.stride[0])
        return out


class StackedBatchNorm2d(nn.BatchNorm2d):
    """Statistics of each weight's own images, as torch's in fp32 or more."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dim() == 1:
            return super().forward(x)
        images = x.view(len(self.weight), -1, *x.shape[1:])
        exact = images.to(torch.promote_types(images.dtype, torch.float32))
        var, mean = torch.var_mean(exact, (1, 3, 4), correction=0)
        whitened = (exact - _over_images(mean)) * _over_images(torch.rsqrt(var + self.eps))
        self._remember(mean.detach(), var.detach(), images[0].numel() // images.shape[2])
        out: Tensor = whitened * _over_images(self.weight) + _over_images(self.bias)
        return out.to(x.dtype).flatten(0, 1)

    @torch.no_grad()
    def _remember(self, mean: Tensor, var: Tensor, pixels: int) -> None:
        momentum = cast(float, self.momentum)
        assert self.running_mean is not None and self.running_var is not None
        self.running_mean.copy_(momentum * mean + (1 - momentum) * self.running_mean)
        self.running_var.copy_(momentum * (var * (pixels / (pixels - 1))) + (1 - momentum) * self.running_var)


class StackedLinear(nn.Linear):
    """A matrix product for each."""

    def forward(self, x: Tensor) -> Tensor:
        if self.weight.dim() == 2:
            return super().forward(x)
        out = torch.bmm(x.view(len(self.weight), -1, x.shape[1]), self.weight.mT)
        if self.bias is not None:
            out = out + self.bias[:, None]
        return out.flatten(0, 1)


STACKED: dict[type[nn.Module], type[nn.Module]] = {
    nn.Conv2d: StackedConv2d,
    FastConv2d: StackedFastConv2d,
    nn.BatchNorm2d: StackedBatchNorm2d,
    nn.Linear: StackedLinear,
}


def _over_images(values: Tensor) -> Tensor:
    return values[:, None, :, None, None]


class StackedStep(PairStep):
    """A Step whose two passes are one. Weights and statistics are those of the passes in turn, up to rounding.

    A batch that cannot be halved evenly goes the way of PairStep.
    """

    def __init__(self, *arguments: Any, compiled: bool = False) -> None:
        super().__init__(*arguments, compiled=compiled)
        self.trained = {name: p for name, p in self.model.named_parameters() if p.requires_grad}
        self.weights = {name: stack_of(p) for name, p in self.model.named_parameters()}
        self.of_both = {name: stack_of(t) for name, t in self.statistics.items()}
        self.moved = [{name: t[i] for name, t in self.of_both.items()} for i in (0, 1)]

    def __call__(self, *batch: Tensor) -> None:
        if self.method.halves and batch_size(batch) % 2:
            return super().__call__(*batch)
        images = batch if self.method.halves else tuple(torch.cat([tensor, tensor]) for tensor in batch)
        leaves = self._stack()
        with self.counters.held(), self.autocast():
            loss, counted = self.objective_at(self.objective, self.model, {**leaves, **self.of_both}, *images)
        wanted = [leaves[name] for name in self.trained]
        gradients = torch.autograd.grad(loss, wanted)
        with torch.no_grad():
            means = torch._foreach_add([g[0] for g in gradients], [g[1] for g in gradients])  # of a mean over both
            for p, mean in zip(self.trained.values(), means, strict=True):
                p.grad = laid_out_as(p, mean)
            self._apply_statistics()
            self.sums += counted
        self.counters.add(2)
        self._update()

    @torch.no_grad()
    def _stack(self) -> Weights:
        """Both points' weights as leaves, and the running statistics, once for either sign."""
        assert isinstance(self.opt, SSGD)
        for i, moved in enumerate(self.opt.both_points()):
            now = [moved.get(p, p) for p in self.model.parameters()]
            torch._foreach_copy_([t[i] for t in self.weights.values()], now)
            if self.statistics:
                torch._foreach_copy_(list(self.moved[i].values()), list(self.statistics.values()))
        return {
            name: self.weights[name].detach().requires_grad_(p.requires_grad)
            for name, p in self.model.named_parameters()
        }


def stack_of(tensor: Tensor) -> Tensor:
    """Room for two of these, one after the other, each laid out as this is."""
    return tensor.new_empty_strided((2, *tensor.shape), (tensor.numel(), *tensor.stride()))
