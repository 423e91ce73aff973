"""Convolutions of few channels that are faster than cuDNN's on CIFAR's images: 3×3, in 16 bits, on CUDA."""
# mypy: allow-untyped-decorators

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

SERVED = ((3, 16, 1), (16, 16, 1), (32, 32, 1), (64, 64, 1), (16, 32, 2), (32, 64, 2))  # inputs, outputs, stride
DTYPES = (torch.bfloat16, torch.float16)
LARGEST = 2**28  # elements of an input: places are counted in 32 bits
LARGEST_OF_64 = 2**21  # with so many channels cuDNN is faster from here on


def use_fast_convolutions(net: nn.Module) -> int:
    """Let the 3×3 convolutions of ResNet20 and its like use the kernels of this package; returns how many do.

    They serve bf16 and fp16 on CUDA, by autocast or by dtype; other calls go to torch as before. Names, parameters and
    state_dict stay. Results differ from cuDNN's in rounding alone. There are no second derivatives.
    """
    if find_spec("triton") is None:
        return 0
    found = [module for module in net.modules() if type(module) is nn.Conv2d and _serves(module)]
    for module in found:
        module.__class__ = FastConv2d
    return len(found)


class FastConv2d(nn.Conv2d):
    """A Conv2d that goes to the kernels where it can."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        dtype = _dtype(input, weight)
        out: Tensor
        if dtype is None:
            out = super()._conv_forward(input, weight, bias)
        else:
            out = conv3x3(input.to(dtype), weight, self.stride[0])
        return out


def _serves(conv: nn.Conv2d) -> bool:
    return (
        (conv.in_channels, conv.out_channels, conv.stride[0]) in SERVED
        and conv.stride[0] == conv.stride[1]
        and conv.kernel_size == (3, 3)
        and conv.padding == (1, 1)
        and conv.padding_mode == "zeros"
        and conv.dilation == (1, 1)
        and conv.groups == 1
        and conv.bias is None
    )


def _dtype(x: Tensor, weight: Tensor) -> torch.dtype | None:
    """The one torch would compute in, where the kernels do too."""
    largest = LARGEST if weight.shape[1] < 64 else LARGEST_OF_64
    if not x.is_cuda or x.dim() != 4 or not 0 < x.numel() < largest or torch.float64 in (x.dtype, weight.dtype):
        return None
    if torch.is_autocast_enabled("cuda"):
        dtype = torch.get_autocast_dtype("cuda")
    else:
        dtype = x.dtype if x.dtype == weight.dtype else torch.float32
    return dtype if dtype in DTYPES else None


@torch.library.custom_op("ssgd::conv3x3", mutates_args=())
def conv3x3(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The convolution of ``x``, of 16 bits, with padding 1; the weight may have 32 and is rounded."""
    from . import convolutions as kernels

    out = _out(x, weight, stride)
    kernels.forward(_pixels(x), _dense(weight), out, stride)
    return out


@torch.library.custom_op("ssgd::conv3x3_grad_input", mutates_args=())
def conv3x3_grad_input(gradient: Tensor, weight: Tensor, height: int, width: int, stride: int) -> Tensor:
    """The gradient of an input of that height and width."""
    from . import convolutions as kernels

    out = _images(gradient, weight.shape[1], height, width)
    if weight.shape[1] < 16:  # too few for a matrix product, and training asks for no gradient of the images
        whole = conv2d_input(out.shape, weight.to(gradient.dtype), gradient, stride, padding=1)  # type: ignore[no-untyped-call]
        return out.copy_(whole)
    kernels.grad_input(_pixels(gradient), _dense(weight), out, stride)
    return out


@torch.library.custom_op("ssgd::conv3x3_grad_weight", mutates_args=())
def conv3x3_grad_weight(gradient: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    """The gradient of ``weight``, of its dtype and layout."""
    from . import convolutions as kernels

    out = torch.empty_like(_dense(weight))
    kernels.grad_weight(_pixels(gradient), _pixels(x), out, stride)
    return out


@conv3x3.register_fake
def _(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return _out(x, weight, stride)


@conv3x3_grad_input.register_fake
def _(gradient: Tensor, weight: Tensor, height: int, width: int, stride: int) -> Tensor:
    return _images(gradient, weight.shape[1], height, width)


@conv3x3_grad_weight.register_fake
def _(gradient: Tensor, x: Tensor, weight: Tensor, stride: int) -> Tensor:
    return torch.empty_like(_dense(weight))


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
    x, weight, ctx.stride = inputs
    ctx.save_for_backward(x, weight)


def _gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
    x, weight = ctx.saved_tensors
    of_x, of_weight = None, None
    if ctx.needs_input_grad[0]:
        of_x = conv3x3_grad_input(gradient, weight, x.shape[2], x.shape[3], ctx.stride)
    if ctx.needs_input_grad[1]:
        of_weight = conv3x3_grad_weight(gradient, x, weight, ctx.stride)
    return of_x, of_weight, None


conv3x3.register_autograd(_gradients, setup_context=_keep)


def _out(x: Tensor, weight: Tensor, stride: int) -> Tensor:
    height, width = ((size - 1) // stride + 1 for size in x.shape[2:])
    return _images(x, weight.shape[0], height, width)


def _images(like: Tensor, channels: int, height: int, width: int) -> Tensor:
    size = (like.shape[0], channels, height, width)
    return torch.empty(size, dtype=like.dtype, device=like.device, memory_format=torch.channels_last)


def _pixels(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _dense(weight: Tensor) -> Tensor:
    """In one of the two orders that the kernels read."""
    return weight if weight.is_contiguous(memory_format=torch.channels_last) else weight.contiguous()
