"""CTC by our own kernels, in Triton's interpreter: torch's loss and gradient."""

from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F

from .interpreter import why_not

if reason := why_not("tests/test_cuda_sequences.py"):
    pytest.skip(reason, allow_module_level=True)

from ssgd.kernels.ctc import ctc_losses

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero:RuntimeWarning")


@pytest.fixture(autouse=True)
def no_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_of", lambda tensor: nullcontext())


def both(logits, targets, frames, lengths, weights):
    """Losses and gradients, ours and torch's in double precision."""
    found = []
    for ours, dtype in ((True, torch.float32), (False, torch.float64)):
        x = logits.to(dtype).requires_grad_()
        given = x.log_softmax(2), targets, frames, lengths
        losses = ctc_losses(*given) if ours else F.ctc_loss(*given, reduction="none", zero_infinity=True)
        (gradient,) = torch.autograd.grad((losses * weights).sum(), x)
        found += [losses.detach().double(), gradient.double()]
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(("count", "batch", "classes", "width"), [(12, 5, 7, 4), (33, 3, 29, 11), (5, 2, 3, 1)])
def test_loss_and_gradient_are_torchs(seed, count, batch, classes, width):
    """Utterances of all lengths, transcripts too, with characters twice in a row."""
    draws = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(count, batch, classes, generator=draws)
    targets = torch.randint(1, classes, (batch, width), generator=draws)
    targets[0] = 1
    frames = torch.randint(1, count + 1, (batch,), generator=draws)
    lengths = torch.randint(0, width + 1, (batch,), generator=draws)
    loss, gradient, their_loss, their_gradient = both(
        logits, targets, frames, lengths, torch.randn(batch, generator=draws)
    )
    torch.testing.assert_close(loss, their_loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, their_gradient, rtol=1e-4, atol=1e-5)


def test_what_cannot_be_emitted_counts_as_nothing():
    logits = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0))
    targets, frames, lengths = torch.tensor([[1, 1], [1, 2]]), torch.tensor([2, 3]), torch.tensor([2, 2])
    loss, gradient, their_loss, their_gradient = both(logits, targets, frames, lengths, torch.ones(2))
    assert loss[0] == 0 and not gradient[:, 0].any() and loss[1] > 0
    torch.testing.assert_close(loss, their_loss, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(gradient, their_gradient, rtol=1e-4, atol=1e-5)


def test_only_the_frames_and_characters_of_an_utterance_matter():
    """Beyond them may stand anything."""
    logits = torch.randn(6, 1, 5, generator=torch.Generator().manual_seed(1))
    short = both(logits[:4], torch.tensor([[2, 3]]), torch.tensor([4]), torch.tensor([2]), torch.ones(1))
    logits[4:] = float("nan")
    x = logits.clone().requires_grad_()
    losses = ctc_losses(x.log_softmax(2), torch.tensor([[2, 3, 4, 4]]), torch.tensor([4]), torch.tensor([2]))
    assert losses.double() == short[0]
    log_probs = logits.log_softmax(2).requires_grad_()
    ctc_losses(log_probs, torch.tensor([[2, 3, 4, 4]]), torch.tensor([4]), torch.tensor([2])).sum().backward()
    assert not log_probs.grad[4:].any()
    torch.testing.assert_close(log_probs.grad[:4].sum(2), -torch.ones(4, 1))  # a posterior of each frame
