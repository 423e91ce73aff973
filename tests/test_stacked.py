"""S-SGD's two passes as one: what it leaves, and which nets can have it."""

import copy
import pickle
from contextlib import nullcontext

import pytest
import torch
from torch import nn
from torch.optim import SGD

from ssgd import methods, models
from ssgd.train import Execution, Recipe, classify, train
from ssgd.train.distributed import Ranks
from ssgd.train.job import Job, Sources
from ssgd.train.pair import PairStep
from ssgd.train.stacked import StackedStep, use_stacked_layers
from ssgd.train.steps import Step


def trained(kind, name, size=8, model="resnet20", steps=3, head_only=False):
    """A net after some steps of that kind, its optimizer and its sums; in fp64, so that rounding does not grow."""
    torch.manual_seed(0)
    net = models.build(model, 10, 3).double().to(memory_format=torch.channels_last)
    assert kind is not StackedStep or use_stacked_layers(net)
    method = methods.get(name)
    options = {"perturb": list(net.head.parameters())} if head_only else {}
    opt = method.build(SGD(net.parameters(), lr=0.05, momentum=0.9, fused=True), net, noise=0.2, seed=3, **options)
    step = kind(method, opt, net, classify.objective, nullcontext, torch.zeros(3).double())
    numbers = torch.Generator().manual_seed(1)
    for _ in range(steps):
        x = torch.randn(size, 3, 8, 8, generator=numbers).double().contiguous(memory_format=torch.channels_last)
        step(x, torch.randint(10, (size,), generator=numbers))
    return net, opt, step.sums


@pytest.mark.parametrize("name", ["ssgd", "split"])
@pytest.mark.parametrize("model", ["resnet20-B", "small-cnn"])
def test_it_leaves_what_the_passes_leave_one_after_the_other(name, model):
    found = [trained(kind, name, model=model) for kind in (Step, StackedStep)]
    (net, opt, sums), (other, other_opt, other_sums) = found
    first, _, _ = trained(Step, name, model=model, steps=0)
    assert any(not torch.allclose(p, q, rtol=0.1) for p, q in zip(net.parameters(), first.parameters(), strict=True))
    for p, q in zip(net.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(q, p, rtol=1e-6, atol=1e-9)
        momentum, of_other = (o.state[w]["momentum_buffer"] for o, w in ((opt, p), (other_opt, q)))
        torch.testing.assert_close(of_other, momentum, rtol=1e-6, atol=1e-9)
        assert q.stride() == p.stride() and of_other.stride() == momentum.stride()
    for (key, a), b in zip(net.named_buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-9, msg=key)
    torch.testing.assert_close(other_sums, sums, rtol=1e-6, atol=1e-9)
    assert opt.param_groups[0]["noise_step"] == other_opt.param_groups[0]["noise_step"] == 3


def test_layers_without_noise_stay_where_they_are():
    nets = [trained(kind, "split", head_only=True)[0] for kind in (Step, StackedStep)]
    for p, q in zip(*(net.parameters() for net in nets), strict=True):
        torch.testing.assert_close(q, p, rtol=1e-6, atol=1e-9)


def test_halves_of_unequal_size_are_two_passes():
    nets = [trained(kind, "split", size=7)[0] for kind in (PairStep, StackedStep)]
    assert all(torch.equal(p, q) for p, q in zip(*(net.parameters() for net in nets), strict=True))


def test_with_its_own_weights_a_net_is_what_it_was():
    net = models.build("resnet20-B", 10)
    before, x = copy.deepcopy(net), torch.randn(4, 3, 8, 8)
    assert use_stacked_layers(net)
    assert list(net.state_dict()) == list(before.state_dict())
    assert torch.equal(net(x), before(x))
    again = pickle.loads(pickle.dumps(copy.deepcopy(net)))
    for one in (net, before, again):
        one.eval()
    assert torch.equal(net(x), before(x)) and torch.equal(again(x), before(x))


@pytest.mark.parametrize(
    "other",
    [nn.GroupNorm(4, 16), nn.BatchNorm2d(16, affine=False), nn.BatchNorm2d(16, momentum=None), nn.Dropout(0.2)],
    ids=lambda layer: str(layer).partition("(")[0],
)
def test_a_net_with_another_layer_stays_as_it_is(other):
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), other)
    assert not use_stacked_layers(net)
    assert type(net[0]) is nn.Conv2d and type(net[1]) is nn.BatchNorm2d
    assert use_stacked_layers(net[:2])


@pytest.mark.parametrize("method", ["sgd", "ssgd", "split", "sam"])
def test_a_training_comes_out_alike(tmp_path, method):
    recipe = Recipe(name=method, model="small-cnn", data="digits", phases="2", lr=(0.05,), batch=64, method=method)
    plain, stacked = (
        train(recipe, Execution(out=str(tmp_path / str(stack)), progress=False, device="cpu", stack=stack))[0]
        for stack in (False, True)
    )
    assert plain["test_accuracy"] > 50
    assert stacked["test_loss"] == pytest.approx(plain["test_loss"], rel=5e-3)
    assert stacked["curves"]["loss"] == pytest.approx(plain["curves"]["loss"], rel=5e-3)


def test_a_net_of_ones_own_is_never_stacked_and_hears_so(tmp_path):
    recipe = Recipe(name="own", model="tests.test_stacked:own", data="digits", phases="1", lr=(0.05,), method="split")
    said = []
    job = Job(recipe, 0, Execution(out=str(tmp_path), device="cpu", stack=True), Ranks(), said.append)
    job.begin(Sources(job.execution))
    assert not job.run.stack and type(job.run.net[1]) is nn.BatchNorm2d
    assert said == ["stack=true is not for tests.test_stacked:own: S-SGD takes its two passes"]
    job.close()


def own(classes):
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, classes))
