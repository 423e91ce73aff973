"""Connectionist temporal classification: its loss, and what it asks of a transcript."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch.nn.functional as F
from torch import Tensor, nn

from ....kernels import has_kernels


def ctc_objective(
    model: nn.Module, features: Tensor, lengths: Tensor, targets: Tensor, target_lengths: Tensor
) -> Tensor:
    """The negative log-likelihood of a batch's transcripts, in nats, as a mean over utterances.

    A transcript that its frames cannot emit counts as zero and has no gradient. On CUDA without Triton the backward
    pass is torch's, which adds in an order of its own: two runs differ in the last bits.
    """
    log_probs, frames = model(features, lengths)
    return ctc_loss(log_probs, frames, targets, target_lengths)


def ctc_loss(log_probs: Tensor, frames: Tensor, targets: Tensor, target_lengths: Tensor) -> Tensor:
    """The same of what the model has said."""
    if log_probs.is_cuda and has_kernels(log_probs.device):
        from .ctc_kernels import ctc_losses

        return ctc_losses(log_probs, targets, frames, target_lengths).mean()
    losses = F.ctc_loss(log_probs, targets, frames, target_lengths, reduction="none", zero_infinity=True)
    return losses.mean()


def frames_needed(target: Sequence[int]) -> int:
    """The fewest frames that can emit a transcript: one a character, and a blank between two that are the same."""
    return len(target) + sum(a == b for a, b in pairwise(target))
