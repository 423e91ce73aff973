"""CTC on CUDA by Triton: sums in a fixed order, and nothing that the host has to know: a CUDA graph can hold it.

The states of a transcript of L characters are blank, first, blank, second, …, blank: 2 L + 1. A program goes through
the frames of one utterance with all its states at once; what it needs of its neighbours it reads back from memory.
"""
# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs

from __future__ import annotations

from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor


def ctc_losses(log_probs: Tensor, targets: Tensor, frames: Tensor, target_lengths: Tensor) -> Tensor:
    """The negative log-likelihood of each transcript (B), of log-probabilities (T, B, classes); the blank is class 0.

    A transcript that its frames cannot emit counts as zero and has no gradient.
    """
    losses: Tensor = CTC.apply(log_probs, targets, frames, target_lengths)
    return losses


class CTC(torch.autograd.Function):
    """Forward probabilities are kept for the backward pass, which makes posteriors of them."""

    @staticmethod
    def forward(ctx: Any, log_probs: Tensor, targets: Tensor, frames: Tensor, target_lengths: Tensor) -> Tensor:
        count, batch, classes = log_probs.shape
        states = triton.next_power_of_2(2 * targets.shape[1] + 1)
        log_probs, targets = log_probs.contiguous(), targets.contiguous()
        alphas = torch.empty(batch, count, states, device=log_probs.device)
        losses = torch.empty(batch, device=log_probs.device)
        given = log_probs, targets, frames.contiguous(), target_lengths.contiguous()
        sizes = count, batch, classes, targets.shape[1]
        with torch.cuda.device_of(log_probs):
            _forward[(batch,)](*given, alphas, losses, *sizes, states, num_warps=_warps(states))
        ctx.save_for_backward(*given, alphas, losses)
        ctx.sizes = sizes
        return torch.where(losses.isinf(), 0.0, losses)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        *given, alphas, losses = ctx.saved_tensors
        states = alphas.shape[2]
        out = torch.zeros_like(given[0])
        ahead = torch.empty(len(losses), states, device=out.device)
        each = gradients[0].contiguous()
        with torch.cuda.device_of(out):
            _backward[(len(losses),)](
                *given,
                alphas,
                losses,
                each,
                ahead,
                out,
                *ctx.sizes,
                states,
                triton.next_power_of_2(ctx.sizes[2]),
                num_warps=_warps(states),
            )
        return out, None, None, None


def _warps(states: int) -> int:
    return max(1, min(8, states // 32))


@triton.jit
def _labels(targets, b, s, length, width):
    """The class of each state, and whether it may be reached from the one two before it."""
    odd = (s % 2 == 1) & (s < 2 * length + 1)
    label = tl.load(targets + b * width + s // 2, mask=odd, other=0)
    before = tl.load(targets + b * width + s // 2 - 1, mask=odd & (s > 2), other=0)
    return label, odd & (s > 2) & (label != before)


@triton.jit
def _log_sum(a, b, c):
    """log(eᵃ + eᵇ + eᶜ), also where all are −∞."""
    top = tl.maximum(tl.maximum(a, b), c)
    top = tl.where(top == float("-inf"), 0.0, top)
    return tl.log(tl.exp(a - top) + tl.exp(b - top) + tl.exp(c - top)) + top


@triton.jit
def _forward(
    log_probs, targets, frames, target_lengths, alphas, losses, count, batch, classes, width, S: tl.constexpr
):  # fmt: skip
    b = tl.program_id(0)
    n = tl.load(frames + b).to(tl.int32)
    length = tl.load(target_lengths + b).to(tl.int32)
    s = tl.arange(0, S)
    label, skips = _labels(targets, b, s, length, width)
    inside = s < 2 * length + 1
    mine = alphas + b * count * S
    emitted = tl.load(log_probs + b * classes + label, mask=inside, other=0.0)
    alpha = tl.where((s < 2) & inside, emitted, float("-inf"))
    tl.store(mine + s, alpha)
    t = tl.full([], 1, tl.int32)
    while t < n:
        tl.debug_barrier()  # neighbours were written by other threads
        row = mine + (t - 1) * S + s
        one = tl.load(row - 1, mask=s > 0, other=float("-inf"))
        two = tl.load(row - 2, mask=skips, other=float("-inf"))
        emitted = tl.load(log_probs + (t * batch + b) * classes + label, mask=inside, other=0.0)
        alpha = tl.where(inside, _log_sum(alpha, one, two) + emitted, float("-inf"))
        tl.store(row + S, alpha)
        t += 1
    last = tl.where((s >= 2 * length - 1) & inside, alpha, float("-inf"))
    top = tl.max(last, 0)
    safe = tl.where(top == float("-inf"), 0.0, top)
    tl.store(losses + b, -(tl.log(tl.sum(tl.exp(last - safe), 0)) + safe))


@triton.jit
def _backward(
    log_probs, targets, frames, target_lengths, alphas, losses, each, ahead, out, count, batch, classes, width,
    S: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Minus the posterior of every class at every frame, times the gradient of the utterance's loss."""
    b = tl.program_id(0)
    n = tl.load(frames + b).to(tl.int32)
    length = tl.load(target_lengths + b).to(tl.int32)
    loss = tl.load(losses + b)
    factor = tl.where(loss == float("inf"), 0.0, -tl.load(each + b))
    loss = tl.where(loss == float("inf"), 0.0, loss)
    s, c = tl.arange(0, S), tl.arange(0, C)
    label, _ = _labels(targets, b, s, length, width)
    _, skipped = _labels(targets, b, s + 2, length, width)  # by those two states ahead
    inside = s < 2 * length + 1
    mine, next_ones = alphas + b * count * S, ahead + b * S + s
    beta = tl.where((s >= 2 * length - 1) & inside, 0.0, float("-inf"))
    t = n - 1
    while t >= 0:
        place = log_probs + (t * batch + b) * classes
        alpha = tl.load(mine + t * S + s)
        posterior = tl.where(inside, tl.exp(alpha + beta + loss), 0.0)
        of_class = tl.sum(tl.where(label[:, None] == c[None, :], posterior[:, None], 0.0), 0)
        tl.store(out + (t * batch + b) * classes + c, factor * of_class, mask=c < classes)
        ending = beta + tl.load(place + label, mask=inside, other=0.0)
        ending = tl.where(inside, ending, float("-inf"))
        tl.debug_barrier()  # the row was read by other threads
        tl.store(next_ones, ending)
        tl.debug_barrier()
        one = tl.load(next_ones + 1, mask=s + 1 < S, other=float("-inf"))
        two = tl.load(next_ones + 2, mask=skipped & (s + 2 < S), other=float("-inf"))
        beta = tl.where(inside, _log_sum(ending, one, two), float("-inf"))
        t -= 1
