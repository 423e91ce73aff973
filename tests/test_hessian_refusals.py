"""What a Hessian cannot be taken of is refused with a sentence."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from ssgd.analysis import Hessian, Task

from .hessian_problems import cross_entropy, task_of
from .problems import mlp, vectors


def test_refusals():
    task, _ = task_of("mlp")
    with pytest.raises(ValueError, match="product must be one of 'auto', 'forward', 'double', 'two-point', not 'hvp'"):
        Hessian(task, product="hvp")
    with pytest.raises(ValueError, match="mode must be one of 'eval', 'train', not 'test'"):
        Hessian(task, mode="test")
    with pytest.raises(ValueError, match="precision must be one of 'fp32', 'tf32', not 'bf16'"):
        Hessian(task, precision="bf16")
    with pytest.raises(ValueError, match=r"not of the task's model: take them from task\.model"):
        Hessian(task, mlp())
    with pytest.raises(ValueError, match="no weights to differentiate by"):
        Hessian(task, [])
    for empty in ([], iter(())):
        with pytest.raises(ValueError, match="the task has no batches"):
            Hessian(Task(task.model, task.loss, empty))
    once = Task(task.model, task.loss, iter(task.batches))
    matrix = Hessian(once, product="two-point")
    matrix.matvec(torch.ones(75))
    with pytest.raises(ValueError, match="can be gone through more than once"):
        matrix.matvec(torch.ones(75))
    frozen = copy.deepcopy(task.model).requires_grad_(False)
    with pytest.raises(ValueError, match="some of the weights are frozen"):
        Hessian(Task(frozen, task.loss, task.batches), frozen.parameters())
    half = copy.deepcopy(task.model).bfloat16()
    with pytest.raises(ValueError, match=r"more precision than torch.bfloat16: call model.float\(\)"):
        Hessian(Task(half, task.loss, task.batches))
    crooked = nn.ParameterList([torch.ones(2, 2, dtype=torch.complex64), torch.ones(2)])
    with pytest.raises(ValueError, match="some of the weights are complex, which are not served: leave them out"):
        Hessian(Task(crooked, lambda m, b: m[0].abs().sum(), task.batches))
    with pytest.raises(TypeError, match=r"needs a Task, such as Task\(model, loss, batches\), not a Sequential"):
        Hessian(task.model)
    half[0].float()
    with pytest.raises(ValueError, match="one dtype and be on one device"):
        Hessian(Task(half, task.loss, task.batches))


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return checkpoint(self.net, x.clone().requires_grad_(), use_reentrant=True)


@pytest.mark.parametrize("product", ["auto", "forward", "double", "two-point"])
@pytest.mark.parametrize(
    ("model", "loss", "sentence"),
    [
        (Checkpointed, cross_entropy, r"no gradient reaches the weights: .* use_reentrant=False"),
        (mlp, lambda m, b: cross_entropy(m, b).detach(), "no gradient reaches the weights"),
        (mlp, lambda m, b: F.cross_entropy(m(b[0]), b[1], reduction="none"), r"a single number, .* of shape \(13,\)"),
    ],
    ids=["checkpointed", "detached", "one a sample"],
)
def test_losses_without_a_gradient(product, model, loss, sentence):
    with pytest.raises(ValueError, match=sentence):
        Hessian(Task(model(), loss, [vectors(13)]), product=product).matvec(torch.ones(75))
