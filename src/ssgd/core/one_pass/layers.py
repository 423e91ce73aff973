"""The layers that carry the price: both halves in one forward, and one weight gradient over the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


class Unserved(RuntimeError):
    """Something that one_pass() cannot do rightly; ``names`` are the weights concerned, none where it is all of them."""

    def __init__(self, names: Iterable[str], why: str) -> None:
        self.names = tuple(names)
        super().__init__(sentence(self.names, why))


def sentence(names: Iterable[str], why: str) -> str:
    return ": ".join(["one_pass()", ", ".join(names), why] if names else ["one_pass()", why])


def product(rows: Tensor, two: Tensor, bias: Tensor | None, cut: int) -> Tensor:
    """``rows[:cut] @ two[0]`` and ``rows[cut:] @ two[1]`` in one tensor: one bmm where the halves are equal.

    The bias has the shape (2, 1, out) where it is noisy, (out,) where it is not.
    """
    total, width = rows.shape
    if 2 * cut == total:
        pair = rows.view(2, cut, width)
        y = torch.bmm(pair, two) if bias is None else torch.baddbmm(bias, pair, two)
        return y.view(total, -1)
    y = rows.new_empty(total, two.shape[2])
    for sign, part in enumerate((slice(cut), slice(cut, None))):
        if bias is None:
            torch.mm(rows[part], two[sign], out=y[part])
        else:
            torch.addmm(bias if bias.dim() == 1 else bias[sign], rows[part], two[sign], out=y[part])
    return y


def remember(ctx: Any, weight: Any) -> None:
    """The block that a layer was computed in; where the compiler looks, it is not kept."""
    ctx.block = None if torch.compiler.is_compiling() else weight._pair.owner.block


def check_backward(ctx: Any) -> None:
    """A backward() is inside its block, where what it computes again sees the same weights, and not differentiated."""
    if torch.compiler.is_compiling():
        return
    if torch.is_grad_enabled():  # once_differentiable would cost a wrapper at every layer
        raise Unserved((), "a gradient of a gradient (create_graph=True) is not served: use points() or split()")
    if ctx.block is not None and not ctx.block.is_open:
        raise Unserved((), "a backward() came after its block: call it inside `with opt.one_pass():`")


class Linear(torch.autograd.Function):
    """x @ weight.T + bias, or x @ weight + bias where the weight is turned: (in, out)."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        two: Tensor,
        biases: Tensor | None,
        half: int,
        turned: bool,
    ) -> Tensor:
        shape = x.shape
        rows = x.reshape(-1, shape[-1])
        cut = rows.shape[0] // shape[0] * half
        ctx.save_for_backward(rows, two)
        ctx.how = cut, turned, shape
        remember(ctx, w)
        added = bias if biases is None else biases[:, None]
        return product(rows, two if turned else two.mT, added, cut).view(shape[:-1] + (-1,))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        check_backward(ctx)
        (rows, two), (cut, turned, shape), wanted = ctx.saved_tensors, ctx.how, ctx.needs_input_grad
        g = g.reshape(rows.shape[0], -1)
        dx = product(g, two.mT if turned else two, None, cut).view(shape) if wanted[0] else None
        dw = (torch.mm(rows.t(), g) if turned else torch.mm(g.t(), rows)) if wanted[1] else None
        return dx, dw, g.sum(0) if wanted[2] else None, None, None, None, None


class Convolution(torch.autograd.Function):
    """Any convolution of torch's; ``how`` is what aten's takes after the bias."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        w: Tensor,
        bias: Tensor | None,
        two: Tensor,
        biases: Tensor | None,
        half: int,
        how: tuple[Any, ...],
    ) -> Tensor:
        ctx.save_for_backward(x, two)
        ctx.how = half, how
        remember(ctx, w)
        added = (bias, bias) if biases is None else biases
        parts = ((x[:half], two[0], added[0]), (x[half:], two[1], added[1]))
        return torch.cat([torch.convolution(part, v, b, *how) for part, v, b in parts])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        check_backward(ctx)
        (x, two), (half, how), wanted = ctx.saved_tensors, ctx.how, ctx.needs_input_grad

        def back(g: Tensor, x: Tensor, v: Tensor, which: int) -> Any:
            mask = [which == 0, which == 1, False]
            return torch.ops.aten.convolution_backward(g, x, v, None, *how, mask)[which]

        dx = None
        if wanted[0]:
            dx = torch.cat([back(g[:half], x[:half], two[0], 0), back(g[half:], x[half:], two[1], 0)])
        dw = back(g, x, two[0], 1) if wanted[1] else None
        return dx, dw, g.flatten(2).sum((0, 2)) if wanted[2] else None, None, None, None, None


class Embedding(torch.autograd.Function):
    """A look-up by samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, two: Tensor, half: int, padding: int) -> Tensor:
        ctx.save_for_backward(x)
        ctx.how = two.shape[1], padding, False
        remember(ctx, w)
        y = two.new_empty(*x.shape, two.shape[2])
        for part, v in ((slice(half), two[0]), (slice(half, None), two[1])):
            torch.index_select(v, 0, x[part].reshape(-1), out=y[part].view(-1, y.shape[-1]))
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        check_backward(ctx)
        return None, torch.ops.aten.embedding_dense_backward(g, *ctx.saved_tensors, *ctx.how), None, None, None


class Half(torch.autograd.Function):
    """w + n or w − n as a tensor whose gradient is w's."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, value: Tensor) -> Tensor:
        remember(ctx, w)
        # compiled, an output that is a view of the buffer would lose its gradient
        return value.clone() if torch.compiler.is_compiling() else value.view_as(value)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        if not torch.compiler.is_compiling() and ctx.block is not None and not ctx.block.is_open:
            check_backward(ctx)
        return g, None


# Each of the following takes the number of samples at w + n, then what torch's function takes; the weight, and the bias
# where it is noisy, are pairs. None: not served so, but as a pair.


def linear(half: int, input: Tensor, weight: Any, bias: Any = None) -> Tensor | None:
    x, two, plain, biases = cast(input, weight, bias)
    if plain is not None and plain.dim() != 1:  # addmm's may be a matrix
        return None
    y: Tensor = Linear.apply(x, weight.w, plain, two, biases, half, weight.turned)
    return y


def matmul(half: int, input: Tensor, other: Any) -> Tensor | None:
    return linear(half, input, other.transposed()) if other.two.dim() == 3 else None


def addmm(half: int, input: Any, mat1: Tensor, mat2: Any, **scales: Any) -> Tensor | None:
    return None if scales else linear(half, mat1, mat2.transposed(), input)


def convolution(
    half: int,
    input: Tensor,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    transposed: bool = False,
    output_padding: Any = 0,
) -> Tensor | None:
    n = weight.two.dim() - 3

    def many(value: Any) -> list[Any]:
        return [value] * n if isinstance(value, int) else list(value) * (n // len(value))

    if padding == "same":
        reach = [d * (k - 1) for d, k in zip(many(dilation), weight.two.shape[3:], strict=True)]
        if any(r % 2 for r in reach):
            return None
        padding = [r // 2 for r in reach]
    padding = many(0 if padding == "valid" else padding)
    how = many(stride), padding, many(dilation), transposed, many(output_padding), groups
    x, two, plain, biases = cast(input, weight, bias)
    y: Tensor = Convolution.apply(x, weight.w, plain, two, biases, half, how)
    return y


def transposed_convolution(
    half: int,
    input: Tensor,
    weight: Any,
    bias: Any = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor | None:
    return convolution(half, input, weight, bias, stride, padding, dilation, groups, True, output_padding)


def embedding(
    half: int,
    input: Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Tensor | None:
    if scale_grad_by_freq or max_norm is not None or sparse:
        return None
    padding = -1 if padding_idx is None else padding_idx % weight.two.shape[1]
    y: Tensor = Embedding.apply(input, weight.w, weight.two, half, padding)
    return y


def cast(x: Tensor, weight: Any, bias: Any) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """The input, both values of the weight, the bias that gets a gradient and its values if it is noisy: as autocast."""
    plain, biases = (bias, None) if bias is None or isinstance(bias, Tensor) else (bias.w, bias.two)
    kind = x.device.type
    if not torch.is_autocast_enabled(kind):
        return x, weight.two, plain, biases
    dtype = torch.get_autocast_dtype(kind)
    if biases is not None:
        biases = bias.cast(dtype)
    elif plain is not None:
        plain = plain.to(dtype)
    return x.to(dtype), weight.cast(dtype), plain, biases


FAST: dict[Any, tuple[Callable[..., Tensor | None], int]] = {  # and which of its tensors has the samples
    F.linear: (linear, 0),
    F.embedding: (embedding, 0),
    torch.addmm: (addmm, 1),
    **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), (convolution, 0)),
    **dict.fromkeys(
        (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d), (transposed_convolution, 0)
    ),
    **dict.fromkeys((torch.matmul, Tensor.matmul, torch.mm, Tensor.mm), (matmul, 0)),
}
