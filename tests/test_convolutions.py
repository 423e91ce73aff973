"""The small convolutions: their kernels, run by Triton's interpreter, against torch's; who gets them, and when."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functional_call
from torch.utils._python_dispatch import TorchDispatchMode

from ssgd.kernels import conv2d as convolutions
from ssgd.kernels.conv2d import (
    FastConv2d,
    conv3x3,
    conv3x3_grad_input,
    conv3x3_grad_weight,
    use_fast_convolutions,
)
from ssgd.lab.models import build

from .interpreter import why_not

WHY_NOT = why_not("benchmarks/convolutions.py --check")
interpreted = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
SHAPES = {  # inputs, outputs, stride, images, height, width
    "stem": (3, 16, 1, 2, 5, 6),
    "16": (16, 16, 1, 3, 5, 6),
    "32": (32, 32, 1, 2, 6, 5),
    "64": (64, 64, 1, 1, 3, 2),
    "wider": (16, 32, 2, 2, 5, 6),
    "wider, even": (32, 64, 2, 1, 4, 4),
    "any": (32, 16, 1, 2, 4, 5),
    "any, stride 2": (64, 16, 2, 1, 5, 3),
    "one pixel": (16, 16, 1, 2, 1, 1),
}


def whole(*shape, layout="nhwc"):
    """Small whole numbers: sums of their products are exact in 16 bits, and so the same in any order."""
    return torch.randint(-2, 3, shape).float().contiguous(memory_format=LAYOUTS[layout])


def problem(name, layout="nhwc"):
    inputs, outputs, stride, images, height, width = SHAPES[name]
    torch.manual_seed(0)
    x, weight = whole(images, inputs, height, width), whole(outputs, inputs, 3, 3, layout=layout)
    x.requires_grad_(), weight.requires_grad_()
    out = F.conv2d(x, weight, stride=stride, padding=1)
    return x, weight, out, whole(*out.shape), stride


def half(tensor):
    return tensor.detach().half().requires_grad_()


class Calls(TorchDispatchMode):
    """The names of this package's operators, as they are called."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "ssgd":
            self.found.append(func._schema.name.removeprefix("ssgd::"))
        return func(*args, **(kwargs or {}))


# --- kernels --------------------------------------------------------------------------------------------------------


@interpreted
@pytest.mark.parametrize(("name", "layout"), [*((name, "nhwc") for name in SHAPES), ("16", "nchw"), ("wider", "nchw")])
def test_whole_numbers_come_out_exactly(name, layout):
    x, weight, out, gradient, stride = problem(name, layout)
    right = out, *torch.autograd.grad(out, (x, weight), gradient)
    x, weight = half(x), weight.detach().requires_grad_()
    out = conv3x3(x, weight, stride)
    found = out, *torch.autograd.grad(out, (x, weight), gradient.half())
    for one, other in zip(found, right, strict=True):
        assert torch.equal(one.float(), other)
    assert [t.dtype for t in found] == [torch.float16, torch.float16, torch.float32]
    assert all(t.is_contiguous(memory_format=torch.channels_last) for t in found[:2])
    assert found[2].stride() == weight.stride()


@interpreted
@pytest.mark.parametrize("name", ["16", "wider"])
def test_every_plan_gives_the_same(name):
    from ssgd.kernels import convolutions as kernels

    x, weight, out, gradient, stride = problem(name)
    right = out, *torch.autograd.grad(out, (x, weight), gradient)
    x, gradient, weight = x.detach().half(), gradient.half(), weight.detach()
    for taps, pixels, channels in ((1, 64, 16), (2, 64, 16), (4, 32, weight.shape[0]), (8, 128, 16)):
        found = torch.empty_like(gradient)
        kernels.forward(x, weight, found, stride, kernels.Tile(pixels, channels, taps, 4))
        assert torch.equal(found.float(), right[0])
        found = torch.empty_like(x)
        kernels.grad_input(gradient, weight, found, stride, kernels.Tile(pixels, 16, taps, 4))
        assert torch.equal(found.float(), right[1])
    for parts, pixels, rows, columns in ((1, 16, 4, 4), (3, 32, 4, 1), (5, 32, 1, 4), (2, 64, 1, 1), (100, 16, 4, 4)):
        found = torch.empty_like(weight)
        kernels.grad_weight(gradient, x, found, stride, kernels.Split(parts, pixels, rows, columns, 4, 1))
        assert torch.equal(found, right[2])


@interpreted
def test_real_numbers_are_rounded_once():
    torch.manual_seed(0)
    x, weight = torch.randn(2, 16, 5, 5).half(), torch.randn(32, 16, 3, 3)
    right = F.conv2d(x.float(), weight.half().float(), padding=1)
    found = conv3x3(x, weight, 1)
    assert not torch.equal(weight, weight.half().float())  # so that it matters which of the two is used
    torch.testing.assert_close(found.float(), right, rtol=2**-11, atol=1e-4)
    assert torch.equal(found, conv3x3(x, weight.half(), 1))


@interpreted
def test_the_weight_is_rounded_to_the_nearest():
    x, weight = torch.zeros(1, 16, 1, 1).half(), torch.zeros(16, 16, 3, 3)
    x[0, 0], weight[:, 0, 1, 1] = 1, 1 + 0.75 * 2**-10
    assert (conv3x3(x, weight, 1) == 1 + 2**-10).all()


@interpreted
def test_tensors_in_any_order():
    x, weight, out, _, _ = problem("16")
    right = torch.autograd.grad(out.sum(), (x, weight))
    x = x.detach().half().contiguous().requires_grad_()
    weight = F.pad(weight.detach(), (0, 1))[..., :3].requires_grad_()  # with gaps
    found = conv3x3(x, weight, 1)
    assert torch.equal(found.float(), out) and found.is_contiguous(memory_format=torch.channels_last)
    for one, other in zip(torch.autograd.grad(found.sum(), (x, weight)), right, strict=True):  # its strides are zero
        assert torch.equal(one.float(), other)


# --- operators ------------------------------------------------------------------------------------------------------


@interpreted
def test_the_operators_keep_torchs_rules():
    x, weight, _, gradient, stride = problem("wider")
    x, weight, gradient = half(x), weight.detach().requires_grad_(), gradient.half()
    torch.library.opcheck(conv3x3, (x, weight, stride))
    torch.library.opcheck(conv3x3_grad_input, (gradient, weight.detach(), *x.shape[2:], stride))
    torch.library.opcheck(conv3x3_grad_weight, (gradient, x.detach(), weight.detach(), stride))


@interpreted
@pytest.mark.parametrize("wanted", [("x",), ("weight",), ("x", "weight")])
def test_only_what_is_asked_for_is_computed(wanted):
    x, weight, _, _, _ = problem("one pixel")
    x, weight = x.detach().half(), weight.detach()
    leaves = [{"x": x, "weight": weight}[name].requires_grad_() for name in wanted]
    with Calls() as calls:
        torch.autograd.grad(conv3x3(x, weight, 1).sum(), leaves)
    names = {"x": "conv3x3_grad_input", "weight": "conv3x3_grad_weight"}
    assert calls.found == ["conv3x3", *(names[name] for name in wanted)]


@interpreted
def test_a_compiled_net_with_other_weights(monkeypatch):
    monkeypatch.setattr(convolutions, "_dtype", lambda x, weight: torch.float16)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1, bias=False))
    assert use_fast_convolutions(net) == 2
    net.to(memory_format=torch.channels_last)
    x = torch.randn(2, 16, 5, 5).half()
    weights = {name: (2 * p).detach().requires_grad_() for name, p in net.named_parameters()}

    def gradients(model, state):
        out = model(state, x)
        assert out.is_contiguous(memory_format=torch.channels_last)
        return torch.autograd.grad(out.float().square().sum(), list(state.values()))

    def model(state, x):
        return functional_call(net, state, x)

    eager, own = gradients(model, weights), gradients(model, dict(net.named_parameters()))
    compiled = gradients(torch.compile(model, backend="aot_eager", fullgraph=True), weights)
    for one, other, old in zip(compiled, eager, own, strict=True):
        assert torch.equal(one, other) and one.stride() == other.stride()
        assert not torch.equal(one, old)


# --- who gets them --------------------------------------------------------------------------------------------------


@pytest.fixture
def with_triton(monkeypatch):
    monkeypatch.setattr(convolutions, "find_spec", lambda name: name)


def test_a_net_keeps_its_names_and_on_the_cpu_its_numbers(with_triton):
    net = build("resnet20", 10)
    before, x = copy.deepcopy(net), torch.randn(2, 3, 8, 8)
    assert use_fast_convolutions(net) == 19
    assert use_fast_convolutions(net) == 0
    assert type(net.stem[0]) is FastConv2d and type(net.body[0].conv1) is FastConv2d
    assert list(net.state_dict()) == list(before.state_dict())
    again = pickle.loads(pickle.dumps(copy.deepcopy(net)))
    with Calls() as calls:
        assert torch.equal(net(x), before(x)) and torch.equal(again(x), before(x))
        with torch.autocast("cpu", torch.bfloat16):
            assert torch.equal(net(x), before(x))
    assert calls.found == []


@pytest.mark.parametrize(
    "options",
    [
        {"in_channels": 8},
        {"out_channels": 32},
        {"stride": 2},
        {"kernel_size": 1, "padding": 0},
        {"kernel_size": (3, 1)},
        {"padding": 0},
        {"padding": "same"},
        {"padding_mode": "circular"},
        {"stride": 3},
        {"stride": (1, 2)},
        {"dilation": 2},
        {"groups": 16},
        {"bias": True},
    ],
    ids=str,
)
def test_other_convolutions_stay_torchs(with_triton, options):
    served = {"in_channels": 16, "out_channels": 16, "kernel_size": 3, "padding": 1, "bias": False}
    assert use_fast_convolutions(nn.Conv2d(**served)) == 1
    net = nn.Conv2d(**{**served, **options})
    assert use_fast_convolutions(net) == 0 and type(net) is nn.Conv2d


def test_without_triton_nothing_changes(monkeypatch):
    monkeypatch.setattr(convolutions, "find_spec", lambda name: None)
    net = build("resnet20", 10)
    assert use_fast_convolutions(net) == 0
    assert not any(isinstance(module, FastConv2d) for module in net.modules())


def test_someone_elses_convolution_stays(with_triton):
    class Own(nn.Conv2d):
        pass

    net = Own(16, 16, 3, padding=1, bias=False)
    assert use_fast_convolutions(net) == 0 and type(net) is Own


BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64


@pytest.mark.parametrize(
    ("x", "weight", "autocast", "result"),
    [
        (BF16, BF16, None, BF16),
        (FP16, FP16, None, FP16),
        (FP32, FP32, BF16, BF16),
        (BF16, FP32, BF16, BF16),
        (FP32, FP32, FP16, FP16),
        (FP32, FP32, None, None),
        (FP32, FP32, FP32, None),
        (BF16, FP32, None, None),
        (FP64, FP32, BF16, None),
        (FP64, FP64, None, None),
    ],
    ids=str,
)
def test_on_cuda_the_dtype_decides(monkeypatch, x, weight, autocast, result):
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: autocast is not None)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: autocast)
    with FakeTensorMode():
        images = torch.empty(4, 16, 8, 8, dtype=x, device="cuda")
        filters = torch.empty(32, 16, 3, 3, dtype=weight, device="cuda")
        assert convolutions._dtype(images, filters) == result
        if result:
            out = conv3x3(images.to(result), filters, 2)
            assert (out.shape, out.dtype, out.device.type) == ((4, 32, 4, 4), result, "cuda")
            assert out.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("shape", [(16, 8, 8), (0, 16, 8, 8), (2**18, 16, 8, 8)])
def test_on_cuda_the_size_decides(shape):
    with FakeTensorMode():
        x = torch.empty(shape, dtype=BF16, device="cuda")
        assert convolutions._dtype(x, torch.empty(16, 16, 3, 3, dtype=BF16, device="cuda")) is None


def test_large_images_of_64_channels_are_cudnns():
    with FakeTensorMode():
        weight = torch.empty(64, 64, 3, 3, dtype=BF16, device="cuda")
        for size, dtype in ((8, BF16), (32, None)):
            x = torch.empty(128, 64, size, size, dtype=BF16, device="cuda")
            assert convolutions._dtype(x, weight) == dtype
