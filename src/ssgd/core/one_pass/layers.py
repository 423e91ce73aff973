"""The layers that carry the price: both halves in one forward, and one weight gradient over the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor

LATE = "a backward() came after its block: call it inside `with opt.one_pass():`"


class Unserved(RuntimeError):
    """Something that one_pass() cannot do rightly; ``names`` are the weights concerned, none where all are."""

    def __init__(self, why: str, names: Iterable[str] = ()) -> None:
        self.names = tuple(names)
        super().__init__(_sentence(why, self.names))


def refuse(why: str, names: Iterable[str] = ()) -> NoReturn:
    """Raise Unserved; where a function is being compiled, after a break of its graph with the same message."""
    if torch.compiler.is_dynamo_compiling():
        from torch._dynamo import graph_break

        graph_break(msg=_sentence(why, names))
    raise Unserved(why, names)


def _sentence(why: str, names: Iterable[str]) -> str:
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


def check_backward(block: Any, once: bool = True) -> None:
    """Refuse a backward() after its block, where what it computes again would see other weights.

    Nor, if it runs ``once``, is it differentiated. ``block`` is None where a compiler traces this: then a hook on the
    model's output asks instead.
    """
    if block is None:
        return
    if once and torch.is_grad_enabled():
        refuse("a gradient of a gradient (create_graph=True) is not served: use points() or split()")
    if not block.is_open:
        refuse(LATE)


class Linear(torch.autograd.Function):
    """x @ weight.T + bias, or x @ weight + bias where the weight is turned: (in, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Any, two: Tensor, biases: Any, at: Any, turned: bool) -> Tensor:
        half, ctx.block = at
        rows = x.reshape(-1, x.shape[-1])
        cut = rows.shape[0] // x.shape[0] * half
        ctx.save_for_backward(rows, two)
        ctx.how = cut, turned, x.shape
        y = product(rows, two if turned else two.mT, bias if biases is None else biases[:, None], cut)
        return y.view((*x.shape[:-1], -1))

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        check_backward(ctx.block)
        (rows, two), (cut, turned, shape), wanted = ctx.saved_tensors, ctx.how, ctx.needs_input_grad
        g = g.reshape(rows.shape[0], -1)
        dx = product(g, two.mT if turned else two, None, cut).view(shape) if wanted[0] else None
        dw = (torch.mm(rows.t(), g) if turned else torch.mm(g.t(), rows)) if wanted[1] else None
        return dx, dw, g.sum(0) if wanted[2] else None, None, None, None, None


class Convolution(torch.autograd.Function):
    """Any convolution of torch's; ``how`` is what aten's takes after the bias."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Any, two: Tensor, biases: Any, at: Any, how: Any) -> Tensor:
        half, ctx.block = at
        ctx.save_for_backward(x, two)
        sizes = [half, x.shape[0] - half]
        ctx.how = sizes, how
        added = (bias, bias) if biases is None else biases
        parts = zip(x.split_with_sizes(sizes), two.unbind(), added, strict=True)
        return torch.cat([torch.convolution(part, v, b, *how) for part, v, b in parts])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        check_backward(ctx.block)
        (x, two), (sizes, how), wanted = ctx.saved_tensors, ctx.how, ctx.needs_input_grad

        def back(g: Tensor, x: Tensor, v: Tensor, which: int) -> Any:
            mask = [which == 0, which == 1, False]
            return torch.ops.aten.convolution_backward.default(g, x, v, None, *how, mask)[which]

        dx = None
        if wanted[0]:
            parts = zip(g.split_with_sizes(sizes), x.split_with_sizes(sizes), two.unbind(), strict=True)
            dx = torch.cat([back(*part, 0) for part in parts])
        dw = back(g, x, two[0], 1) if wanted[1] else None
        return dx, dw, g.flatten(2).sum((0, 2)) if wanted[2] else None, None, None, None, None


class Embedding(torch.autograd.Function):
    """A look-up by samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, two: Tensor, at: Any, padding: int) -> Tensor:
        half, ctx.block = at
        ctx.save_for_backward(x)
        ctx.how = two.shape[1], padding, False
        y = two.new_empty(*x.shape, two.shape[2])
        for part, v in ((slice(half), two[0]), (slice(half, None), two[1])):
            torch.index_select(v, 0, x[part].reshape(-1), out=y[part].view(-1, y.shape[-1]))
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        check_backward(ctx.block)
        return None, torch.ops.aten.embedding_dense_backward(g, *ctx.saved_tensors, *ctx.how), None, None, None


class Half(torch.autograd.Function):
    """w + n or w − n as a tensor whose gradient is w's."""

    @staticmethod
    def forward(ctx: Any, w: Tensor, value: Tensor, block: Any) -> Tensor:
        ctx.block = block
        # compiled, an output that is a view of the buffer would lose its gradient
        return value.clone() if torch.compiler.is_compiling() else value.view_as(value)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        check_backward(ctx.block, once=False)
        return g, None, None


# Each of the following takes the number of samples at w + n with the token of the block (``at``), then what torch's
# function takes; the weight, and the bias where it is noisy, are pairs. None: not served so, but as a pair.


def linear(at: Any, input: Tensor, weight: Any, bias: Any = None) -> Any:
    x, two, plain, biases = cast(input, weight, bias)
    if plain is not None and plain.dim() != 1:  # addmm's may be a matrix
        return None
    return Linear.apply(x, weight.w, plain, two, biases, at, weight.turned)  # type: ignore[no-untyped-call]


def matmul(at: Any, input: Tensor, other: Any) -> Any:
    return linear(at, input, other.transposed()) if other.two.dim() == 3 else None


def addmm(at: Any, input: Any, mat1: Tensor, mat2: Any, **scales: Any) -> Any:
    return None if scales else linear(at, mat1, mat2.transposed(), input)


def convolution(at: Any, x: Tensor, weight: Any, bias: Any = None, *args: Any, back: bool = False, **more: Any) -> Any:
    """A convolution, or a transposed one (``back``)."""
    names = ("stride", "padding", *(("output_padding", "groups", "dilation") if back else ("dilation", "groups")))
    given: dict[str, Any] = {"stride": 1, "padding": 0, "output_padding": 0, "dilation": 1, "groups": 1}
    given.update(zip(names, args, strict=False), **more)
    n = weight.two.dim() - 3

    def many(value: Any) -> list[Any]:
        return [value] * n if isinstance(value, int) else list(value) * (n // len(value))

    if given["padding"] == "same":
        reach = [d * (k - 1) for d, k in zip(many(given["dilation"]), weight.two.shape[3:], strict=True)]
        if any(r % 2 for r in reach):
            return None
        given["padding"] = [r // 2 for r in reach]
    padding = many(0 if given["padding"] == "valid" else given["padding"])
    how = many(given["stride"]), padding, many(given["dilation"]), back, many(given["output_padding"]), given["groups"]
    x, two, plain, biases = cast(x, weight, bias)
    return Convolution.apply(x, weight.w, plain, two, biases, at, how)  # type: ignore[no-untyped-call]


def embedding(
    at: Any,
    input: Tensor,
    weight: Any,
    padding_idx: int | None = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> Any:
    """Also called, with ``at`` None, for a look-up without samples: to refuse what writes to the table."""
    if max_norm is not None or sparse:
        why = "an embedding with max_norm or sparse=True is not served: use split(), or another embedding"
        refuse(why, weight.origin)
    if at is None or scale_grad_by_freq:
        return None
    padding = -1 if padding_idx is None else padding_idx % weight.two.shape[1]
    return Embedding.apply(input, weight.w, weight.two, at, padding)  # type: ignore[no-untyped-call]


def batch_norm(
    at: Any,
    input: Tensor,
    running_mean: Any,
    running_var: Any,
    weight: Any,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:
    """By halves or over the batch, as the block says; running statistics move as ``bn_stats`` says.

    Not by a function of our own: in Python it takes longer than the two operators that it saves.
    """
    owner, layer, sizes = weight.owner, weight.layer, [at[0], len(input) - at[0]]
    noisy = weight.w is not None or not (bias is None or isinstance(bias, Tensor))
    if not training:
        return None if noisy else F.batch_norm(input, running_mean, running_var, weight.two[0], bias, eps=eps)
    policy = owner.bn_stats if running_mean is not None else "none"
    real, nothing = (running_mean, running_var, momentum), (None, None, momentum)
    moved: list[Any] = [nothing, nothing] if policy == "none" else [real, nothing]  # by each half, and how far
    if owner.batch_norm == "batch":
        owner.count(layer, -(policy == "none"))
        mean, var, _ = moved[0]
        if not noisy:
            return F.batch_norm(input, mean, var, weight.two[0], bias, True, momentum, eps)
        y = F.batch_norm(input, mean, var, None, None, True, momentum, eps)
        zeros = torch.zeros_like(weight.two[0])
        return _scaled(torch.split(y, sizes), [(zeros, zeros + 1, 0.0)] * 2, weight, bias, False, 0.0)
    if policy == "both":
        moved[1] = *real[:2], momentum if layer.momentum is not None else momentum / (1 + momentum)
    elif policy == "once":
        moved = [(running_mean.clone(), running_var.clone(), momentum) for _ in range(2)]
    y = _scaled(torch.split(input, sizes), moved, weight, bias, True, eps)
    if policy == "once":
        with torch.no_grad():
            for i, running in enumerate((running_mean, running_var)):
                running.copy_(moved[0][i].lerp(moved[1][i], 0.5))
    owner.count(layer, {"both": 1, "none": -1}.get(policy, 0))
    return y


def _scaled(halves: Any, statistics: Any, weight: Any, bias: Any, training: bool, eps: float) -> Tensor:
    """Each half by its statistics, and by the values of weight and bias at its sign."""
    found = []
    for i, (x, (mean, var, factor)) in enumerate(zip(halves, statistics, strict=True)):
        b = bias if bias is None or isinstance(bias, Tensor) else bias.value(i)
        found.append(F.batch_norm(x, mean, var, weight.value(i), b, training, factor, eps))
    return torch.cat(found)


def batch_norm_seen(
    input: Tensor, mean: Any, var: Any, weight: Any = None, bias: Any = None, *_: Any, **__: Any
) -> Any:
    """In a dry run, where the statistics of a few samples would mix them."""
    zeros = input.new_zeros(input.shape[1])
    return F.batch_norm(input, zeros, zeros + 1, weight, bias)


def cast(x: Tensor, weight: Any, bias: Any) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """As autocast has them: the input, the weight's values, the bias that gets a gradient, its values if noisy."""
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


FAST: dict[Any, tuple[Callable[..., Any], int]] = {  # and which of its arguments has the samples
    F.linear: (linear, 0),
    F.embedding: (embedding, 0),
    torch.addmm: (addmm, 1),
    **dict.fromkeys((torch.conv1d, torch.conv2d, torch.conv3d), (convolution, 0)),
    **dict.fromkeys(
        (torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d), (partial(convolution, back=True), 0)
    ),
    F.batch_norm: (batch_norm, 0),
    **dict.fromkeys((torch.matmul, Tensor.matmul, torch.mm, Tensor.mm), (matmul, 0)),
}
