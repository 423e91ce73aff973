"""one_pass() under torch.compile: no break, no compilation again, and refusals in dynamo's own error."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.optim import SGD

from ssgd import SSGD, Unserved

from .one_pass_cases import Nano, Use, ids, words
from .test_one_pass import normed, pictures

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def optimizer(parameters, model, **options):
    return SSGD(SGD(parameters, lr=0.1), 0.3, model=model, seed=1, **options)


def step(opt, loss, **options):
    with opt.one_pass(**options):
        loss().backward()
    opt.step()
    opt.zero_grad()


@pytest.mark.parametrize("outer", [True, False])
def test_a_compiled_language_model(outer):
    """Whether the compiled module or the one inside it is given as model=."""
    torch.manual_seed(0)
    plain = Nano().double()
    net = copy.deepcopy(plain)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(net, fullgraph=True, dynamic=False, backend=counter)
    opt, eager = optimizer(net.parameters(), compiled if outer else net), optimizer(plain.parameters(), plain)
    x = ids(6, 6)
    if not outer:
        opt.dry_run(net, x)
    for _ in range(3):
        step(opt, lambda: words(compiled, x))
        step(eager, lambda: words(plain, x))
    assert all(map(torch.allclose, net.parameters(), plain.parameters())) and counter.frame_count == 1


@pytest.mark.parametrize(("kind", "bn_stats"), [("halves", "both"), ("batch", "both"), ("halves", "once")])
def test_a_compiled_net_with_batch_norm(kind, bn_stats):
    plain, (x, y) = normed(), pictures(7)
    net = copy.deepcopy(plain)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(net, fullgraph=True, dynamic=False, backend=counter)
    opt = optimizer(net.parameters(), compiled, bn_stats=bn_stats)
    eager = optimizer(plain.parameters(), plain, bn_stats=bn_stats)
    for _ in range(3):
        step(opt, lambda: F.cross_entropy(compiled(x), y), batch_norm=kind)
        step(eager, lambda: F.cross_entropy(plain(x), y), batch_norm=kind)
    assert all(map(torch.allclose, net.state_dict().values(), plain.state_dict().values()))
    assert counter.frame_count == 1


def test_a_backward_after_the_block_is_refused_compiled_too():
    model, (x, y) = normed(), pictures()
    compiled = torch.compile(model, backend="aot_eager")
    with optimizer(model.parameters(), compiled).one_pass():
        loss = F.cross_entropy(compiled(x), y)
    with pytest.raises(Unserved, match=r"a backward\(\) came after its block"):
        loss.backward()


def test_a_refusal_stands_in_dynamos_error():
    torch.manual_seed(0)
    model = Use(lambda s, x: s.l(x), l=nn.Linear(5, 3)).double()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    opt, x = optimizer(model.parameters(), model, perturb=[model.l.weight]), torch.randn(6, 5).double()
    opt.dry_run(model, x)
    model.f = lambda s, x: s.l(x) * s.l.weight.exp().sum()
    message = r"one_pass\(\): l.weight: mul of .* use split\(\)"
    with pytest.raises(torch._dynamo.exc.Unsupported, match=message), opt.one_pass():
        compiled(x)


def test_without_a_dry_run_a_compiled_module_must_be_the_model():
    model = nn.Linear(5, 3)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    opt = optimizer(model.parameters(), model)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="pass the compiled module as model="), opt.one_pass():
        compiled(torch.randn(4, 5))
