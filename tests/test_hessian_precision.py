"""Products with the Hessian in single precision and in tf32, and how far apart the two points lie."""

import copy

import pytest
import torch
from torch import nn

from ssgd.analysis import FromProducts, Hessian, Task, spectrum, top_eigenvalues
from ssgd.analysis.acceleration import precision_settings
from ssgd.analysis.task import evaluating

from .hessian_problems import apart, cross_entropy, exact, some, task_of


@pytest.mark.parametrize("kind", ["mlp", "convnet"])
@pytest.mark.parametrize(("product", "tolerance"), [("forward", 1e-5), ("double", 1e-5), ("two-point", 3e-3)])
def test_single_precision(kind, product, tolerance):
    task, data = task_of(kind)
    with evaluating(task.model):
        full = exact(task, data)
    single = Task(copy.deepcopy(task.model).float(), task.loss, [(x.float(), y) for x, y in task.batches])
    matrix = Hessian(single, product=product)
    v = torch.cat([some(matrix.size), torch.linalg.eigh(full).eigenvectors[:, -1:].T])  # the sharpest direction too
    found = matrix.matmat(v)
    assert found.dtype == torch.float32
    assert apart(found, v @ full) < tolerance


@pytest.mark.parametrize(
    ("dtype", "precision", "eps"),
    [(torch.float32, "fp32", 2**-23), (torch.float64, "fp32", 2**-52), (torch.float32, "tf32", 2**-10)],
)
@pytest.mark.parametrize(("weight", "reach"), [(3.0, 6.0), (0.1, 1.0)])
def test_the_two_points(dtype, precision, eps, weight, reach):
    """They lie ¼ ∛(eps · max(1, ‖w‖)) from w on either side along v, whatever its length."""
    model = nn.Linear(4, 1, bias=False).to(dtype)
    nn.init.constant_(model.weight, weight)
    seen = []

    def loss(m, batch):
        seen.append(m.weight.detach().clone().flatten())
        return m(batch).square().mean()

    task = Task(model, loss, [torch.ones(1, 4, dtype=dtype)])
    Hessian(task, product="two-point", precision=precision).matvec(torch.tensor([5.0, 0, 0, 0]))
    length = 0.25 * (eps * reach) ** (1 / 3)
    moves = [(point - weight)[0].item() for point in seen]
    assert moves == pytest.approx([length, -length], rel=1e-3)
    assert not (seen[0] - seen[1])[1:].any()


def precisions():
    return {torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision}


@pytest.mark.skipif(not precision_settings(), reason="before torch 2.9 there are the older settings alone")
@pytest.mark.parametrize("source", ["task", "products"])
def test_single_precision_is_not_rounded_further(source):
    conv, seen = torch.backends.cudnn.conv, []
    before = conv.fp32_precision

    def loss(m, batch):
        seen.append(precisions())
        return cross_entropy(m, batch)

    task, _ = task_of("mlp")
    try:
        conv.fp32_precision = "tf32"
        if source == "task":
            Hessian(Task(task.model, loss, task.batches)).matvec(torch.ones(75))
        else:
            top_eigenvalues(FromProducts(lambda v: seen.append(precisions()) or v, 5))
        assert seen and all(found == {"ieee"} for found in seen)
        assert conv.fp32_precision == "tf32"
    finally:
        conv.fp32_precision = before


@pytest.mark.skipif(not precision_settings(), reason="before torch 2.9 there are the older settings alone")
def test_tf32_where_it_is_asked_for():
    """By torch's newer settings and its older ones, which torch.compile reads and which may not contradict them."""
    settings = lambda: (  # noqa: E731
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.cudnn.conv.fp32_precision,
        torch.backends.cudnn.allow_tf32,
        torch.get_float32_matmul_precision(),
    )
    before, seen = settings(), []

    def loss(m, batch):
        seen.append(settings())
        return cross_entropy(m, batch)

    task, _ = task_of("mlp")
    spectrum(Hessian(Task(task.model, loss, task.batches), precision="tf32"), steps=2, probes=1)
    assert set(seen) == {("tf32", "tf32", True, "high")}
    seen.clear()
    Hessian(Task(task.model, loss, task.batches))
    assert set(seen) == {("ieee", "ieee", False, "highest")}
    assert settings() == before
