"""Products with the Hessian of several vectors at once, and captured."""

from dataclasses import replace

import pytest
import torch

from ssgd.analysis import Hessian

from .hessian_problems import apart, some, task_of


@pytest.mark.parametrize("kind", ["mlp", "convnet"])
@pytest.mark.parametrize("mode", ["eval", "train"])
@pytest.mark.parametrize("together", [2, 3, 9])
@pytest.mark.parametrize("product", ["forward", "double"])
def test_several_vectors_in_one_pass(kind, mode, together, product):
    """Also where they do not come out even, and for a layer alone."""
    task, _ = task_of(kind)
    matrix = Hessian(task, product=product, mode=mode, together=together)
    plain = Hessian(task, product="double", mode=mode)
    v = some(matrix.size, 5)
    assert apart(matrix.matmat(v), plain.matmat(v)) < 1e-10
    head = task.model[-1]
    matrix = Hessian(task, head, product=product, mode=mode, together=together)
    plain = Hessian(task, head, product="double", mode=mode)
    v = some(matrix.size, 5)
    assert apart(matrix.matmat(v), plain.matmat(v)) < 1e-10


@pytest.mark.parametrize("product", ["forward", "double"])
def test_what_cannot_be_captured_goes_without(capsys, product):
    task, _ = task_of("convnet")
    matrix = Hessian(task, product=product, graph=True, together=3)
    v = some(matrix.size)
    for _ in range(2):
        assert apart(matrix.matmat(v), Hessian(task).matmat(v)) < 1e-10
    message = "a CUDA graph does not work here, all goes on without, slower (ValueError: not all of a batch"
    assert capsys.readouterr().err.count(message) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("product", ["forward", "double"])
def test_captured(capsys, product):
    task, _ = task_of("convnet")
    task = replace(task, model=task.model.cuda(), batches=[(x.cuda(), y.cuda()) for x, y in task.batches])
    matrix = Hessian(task, product=product, graph=True, together=2)
    for seed in range(3):
        v = (seed + 1) * some(matrix.size)
        assert apart(matrix.matmat(v).cpu(), Hessian(task, product="double").matmat(v).cpu()) < 1e-10
    assert capsys.readouterr().err == ""
