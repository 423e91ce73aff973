"""Products with the Hessian, against exact Hessians, closed forms and curvlinops."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import hessian

from ssgd import select
from ssgd.analysis import Hessian, Task
from ssgd.analysis.task import evaluating

from .hessian_problems import apart, curvlinops_hessian, exact, ragged, some, task_of
from .problems import vectors


@pytest.mark.parametrize("kind", ["mlp", "convnet"])
@pytest.mark.parametrize(("product", "tolerance"), [("forward", 1e-10), ("double", 1e-10), ("two-point", 1e-7)])
def test_products_are_the_exact_hessians(kind, product, tolerance):
    task, data = task_of(kind)
    with evaluating(task.model):
        full = exact(task, data)
    matrix = Hessian(task, product=product)
    v = some(matrix.size)
    assert matrix.size == len(full) and matrix.dtype == torch.float64
    assert apart(matrix.matmat(v), v @ full) < tolerance
    assert apart(matrix.matvec(v[0]), full @ v[0]) < tolerance
    assert apart(matrix.matvec(1e-6 * v[0]), full @ (1e-6 * v[0])) < tolerance
    assert matrix.samples == 13


class ByHand(nn.BatchNorm2d):
    """Batch-norm over the batch in plain operations: torch.func's second derivatives of torch's are not symmetric."""

    def forward(self, x):
        variance, mean = torch.var_mean(x, (0, 2, 3), correction=0, keepdim=True)
        return (x - mean) / (variance + self.eps).sqrt() * self.weight[:, None, None] + self.bias[:, None, None]


def test_batch_statistics():
    """In train mode the loss of a batch has its own statistics; dropout stays off, the running statistics stay."""
    task, _ = task_of("convnet")
    before = copy.deepcopy(task.model.state_dict())
    oracle, _ = task_of("convnet")
    oracle.model[1] = ByHand(3).double()
    with evaluating(oracle.model):
        parts = [len(y) / 13 * exact(oracle, (x, y)) for x, y in task.batches]
    for product, tolerance in (("forward", 1e-10), ("double", 1e-10), ("two-point", 1e-7)):
        matrix = Hessian(task, product=product, mode="train")
        v = some(matrix.size)
        assert apart(matrix.matmat(v), v @ sum(parts)) < tolerance
    assert apart(Hessian(task).matmat(v), v @ sum(parts)) > 0.1
    assert all(torch.equal(value, before[name]) for name, value in task.model.state_dict().items())


def squares(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


def logistic(model, batch):
    return F.binary_cross_entropy_with_logits(model(batch[0]), batch[1])


@pytest.mark.parametrize(("product", "tolerance"), [("forward", 1e-12), ("double", 1e-12), ("two-point", 1e-8)])
@pytest.mark.parametrize("loss", [squares, logistic])
def test_regressions_in_closed_form(loss, product, tolerance):
    """H = 2 XᵀX / n, and Xᵀ diag(p (1 − p)) X / n."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(13, 4, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 2, (13, 1), generator=generator).double()
    model = nn.Linear(4, 1, bias=False).double()
    p = model(x).sigmoid().detach()
    curvature = 2.0 if loss is squares else p * (1 - p)
    found = Hessian(Task(model, loss, ragged((x, y))), product=product).matmat(torch.eye(4, dtype=torch.float64))
    torch.testing.assert_close(found, x.T @ (curvature * x) / 13, rtol=tolerance, atol=tolerance)


def test_curvlinops_agrees():
    task, _ = task_of("convnet")
    with evaluating(task.model):
        theirs = curvlinops_hessian(task)
        v = some(theirs.shape[1])
        expected = (theirs @ v.T).T
    assert apart(Hessian(task).matmat(v), expected) < 1e-10


@pytest.mark.parametrize("product", ["forward", "double", "two-point"])
def test_a_layer_and_a_selection(product):
    task, data = task_of("convnet")
    with evaluating(task.model):
        head, kernels = exact(task, data, list(task.model[5].parameters())), exact(task, data, [task.model[0].weight])
    v = some(39)
    assert apart(Hessian(task, task.model[5], product).matmat(v), v @ head) < 1e-7
    v = some(27)
    assert apart(Hessian(task, select(task.model, "conv"), product).matmat(v), v @ kernels) < 1e-7


class Tied(nn.Module):
    """A layer with two names, a weight in two layers, a frozen layer and an idle weight."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(3, 3, bias=False)
        self.again = self.a
        self.sharing = nn.Linear(3, 3, bias=False)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.idle = nn.Parameter(torch.ones(2))
        self.double()
        self.sharing.weight = self.a.weight

    def forward(self, x):
        return self.frozen(self.sharing(self.again(self.a(x).tanh()).tanh()))


@pytest.mark.parametrize("product", ["forward", "double", "two-point"])
def test_tied_frozen_and_idle_weights(product):
    x = vectors(13)[0][:, :3]
    task = Task(Tied(), lambda m, b: m(b).square().mean(), list(x.split(5)))
    weight = task.model.a.weight

    def loss(w):
        return task.model.frozen((x @ w.T).tanh().matmul(w.T).tanh() @ w.T).square().mean()

    full = hessian(loss)(weight.detach()).reshape(9, 9)
    matrix = Hessian(task, product=product)
    assert matrix.size == 11
    v = some(11)
    found = matrix.matmat(v)
    assert apart(found[:, 2:], v[:, 2:] @ full) < 1e-8  # a module's own weights, here the idle one, come first
    assert not found[:, :2].any()
    assert task.model.a.weight is task.model.sharing.weight is weight


@pytest.mark.parametrize("product", ["forward", "double", "two-point"])
def test_a_loss_without_curvature_and_a_vector_without_length(product):
    task, _ = task_of("mlp")
    assert not Hessian(task, product=product).matvec(torch.zeros(75)).any()
    flat = Task(nn.Linear(5, 3).double(), lambda m, b: m(b[0]).mean(), task.batches)
    assert Hessian(flat).product == "forward"
    assert Hessian(flat, product=product).matvec(torch.ones(18)).abs().max() < 1e-9
