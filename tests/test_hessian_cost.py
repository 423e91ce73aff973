"""What a product with the Hessian costs."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ssgd.analysis import Hessian, Task
from ssgd.lab import models

from .hessian_problems import cross_entropy, images_of, some, task_of


@pytest.mark.parametrize("together", [1, 3])
def test_the_cost_in_operations(together):
    """That of the forward passes it counts: no convolution becomes one with kernels as large as the image."""
    torch.manual_seed(0)
    net = models.build("resnet20", 4, 3)
    x, y = images_of(8)[0]
    task = Task(net, cross_entropy, [(x.float(), y)])
    matrix = Hessian(task, product="forward", together=together)
    v = some(matrix.size, 3, torch.float32)
    with FlopCounterMode(display=False) as forward, torch.no_grad():
        net(x.float())
    matrix.passes = 0
    with FlopCounterMode(display=False) as product:
        matrix.matmat(v)
    assert product.get_total_flops() / forward.get_total_flops() == pytest.approx(matrix.passes, rel=0.02)


def test_the_cost_in_forward_passes():
    task, _ = task_of("mlp")
    for product, together, one, three in (
        ("forward", 1, 9, 27),
        ("forward", 2, 9, 24),
        ("double", 1, 9, 21),
        ("two-point", 1, 6, 18),
    ):
        matrix = Hessian(task, product=product, together=together)
        matrix.matvec(torch.ones(75))
        assert matrix.passes == one
        matrix.matmat(torch.ones(3, 75))
        assert matrix.passes == one + three
