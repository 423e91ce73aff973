"""A product with the Hessian leaves the model as it was, and comes out the same each time."""

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from ssgd.analysis import Hessian, Task

from .hessian_problems import convnet, cross_entropy, images, some, task_of
from .problems import same


@pytest.mark.parametrize("product", ["forward", "double", "two-point"])
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_left_as_it_was(product, mode, fails):
    task, _ = task_of("convnet")
    model = task.model.train()
    model[1].eval()
    gradients = [torch.randn_like(p) for p in model.parameters()]
    for p, gradient in zip(model.parameters(), gradients, strict=True):
        p.grad = gradient
    before = [t.clone() for t in (*model.parameters(), *model.buffers(), *gradients)]
    modes, storages = [m.training for m in model.modules()], [p.data_ptr() for p in model.parameters()]
    calls = []

    def loss(m, batch):
        calls.append(batch)
        torch.rand(3)
        if fails and len(calls) == 3:
            raise KeyboardInterrupt
        return cross_entropy(m, batch)

    torch.manual_seed(5)
    stream = torch.get_rng_state()
    try:
        matrix = Hessian(Task(model, loss, task.batches), product=product, mode=mode)
        matrix.matvec(some(matrix.size)[0])
        assert not fails
    except KeyboardInterrupt:
        assert fails
    assert same([*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters())], before)
    assert all(p.grad is gradient for p, gradient in zip(model.parameters(), gradients, strict=True))
    assert [m.training for m in model.modules()] == modes
    assert [p.data_ptr() for p in model.parameters()] == storages
    assert model[1].track_running_stats
    assert torch.equal(torch.get_rng_state(), stream)


def test_a_loader_that_shuffles_gives_the_same_matrix_each_time():
    model, data = convnet(), images()
    loader = DataLoader(TensorDataset(*data), batch_size=5, shuffle=True)
    matrix = Hessian(Task(model, cross_entropy, loader), mode="train")  # where it matters which samples meet
    v = some(matrix.size)[0]
    first = matrix.matvec(v)
    torch.rand(7)
    assert torch.equal(matrix.matvec(v), first)
    torch.manual_seed(99)
    assert not torch.equal(Hessian(matrix.task, mode="train").matvec(v), first)


def test_inside_no_grad_and_inference_mode():
    task, _ = task_of("mlp")
    matrix = Hessian(task)
    v = some(matrix.size)[0]
    expected = matrix.matvec(v)
    with torch.no_grad():
        assert torch.equal(matrix.matvec(v), expected)
    with torch.inference_mode():
        assert torch.equal(Hessian(task).matvec(v), expected)
    assert not expected.requires_grad
