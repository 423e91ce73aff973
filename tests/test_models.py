"""The models: parameter counts, shapes, first weights, names."""

import math
import re
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ssgd.lab.models import MODELS, build
from ssgd.lab.models.convnets import vgg
from ssgd.lab.models.resnet import PreActivated, cifar_resnet, imagenet_resnet, wide_resnet

COUNTS = {  # 10 classes and three channels, but 1,000 classes for ImageNet and one channel for the digits
    "resnet20": 269_722,
    "resnet56": 853_018,
    "wrn28-2": 1_467_610,
    "wrn28-4": 5_849_050,
    "wrn28-10": 36_479_194,
    "vgg6": 4_585_098,
    "vgg16": 14_728_266,
    "imagenet-resnet18": 11_689_512,
    "imagenet-resnet50": 25_557_032,
}
IMAGES = [name for name, model in MODELS.items() if model.kind == "images"]
FAMILIES = ["resnet20", "wrn28-2", "vgg6", "imagenet-resnet18", "small-cnn"]


def count(net):
    return sum(p.numel() for p in net.parameters())


def on_paper(name, channels=3):
    """The net without memory or arithmetic: shapes alone."""
    with torch.device("meta"):
        return build(name, 1000 if name.startswith("imagenet") else 10, channels)


# --- counts and shapes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COUNTS)
def test_parameter_counts(name):
    assert count(on_paper(name)) == COUNTS[name]


@pytest.mark.parametrize(("depth", "blocks"), [(20, 3), (32, 5), (44, 7), (56, 9), (110, 18)])
def test_shortcut_b_adds_two_projections_and_their_norms(depth, blocks):
    plain, projected = on_paper(f"resnet{depth}"), on_paper(f"resnet{depth}-B")
    assert len(plain.body) == len(projected.body) == 3 * blocks
    assert count(projected) - count(plain) == 16 * 32 + 32 * 64 + 2 * (32 + 64)


def test_batch_norm_as_tensorflow_has_it_and_the_same_first_weights():
    nets = []
    for name in ("resnet20", "resnet20-tf"):
        torch.manual_seed(0)
        nets.append(build(name, 10))
    norms = [[m for m in net.modules() if isinstance(m, nn.BatchNorm2d)] for net in nets]
    assert [{(m.momentum, m.eps) for m in found} for found in norms] == [{(0.1, 1e-5)}, {(0.01, 1e-3)}]
    assert all(torch.equal(a, b) for a, b in zip(*(net.state_dict().values() for net in nets), strict=True))


def test_wrn20_has_three_blocks_a_stage_as_resnet20():
    net = on_paper("wrn20-2")
    assert len(net.body) == len(on_paper("resnet20").body) == 9
    expected = 27 * 16 + 2 * 128 + 128 * 10 + 10  # the first convolution, the last norm and the linear layer
    for width, wider in ((16, 32), (32, 64), (64, 128)):
        expected += (9 + 1) * width * wider + 9 * wider**2 + 2 * (width + wider)  # the block that widens
        expected += 2 * (2 * 9 * wider**2 + 2 * 2 * wider)
    assert count(net) == expected


@pytest.mark.parametrize(
    ("name", "inner", "shape"),
    [
        ("resnet20", "body", (64, 8, 8)),
        ("resnet20-B", "body", (64, 8, 8)),
        ("wrn28-4", "body", (256, 8, 8)),
        ("vgg6", "body", (512, 4, 4)),
        ("vgg16", "body", (512, 1, 1)),
        ("imagenet-resnet18", "layer4", (512, 7, 7)),
        ("imagenet-resnet50", "layer4", (2048, 7, 7)),
        ("small-cnn", "body", (32, 2, 2)),
    ],
)
def test_what_is_left_of_an_image(name, inner, shape):
    net, size, found = on_paper(name), MODELS[name].image_size, []
    net.get_submodule(inner).register_forward_hook(lambda module, x, y: found.append(y.shape))
    net(torch.randn(2, 3, size, size, device="meta"))
    assert found == [(2, *shape)]


@pytest.mark.parametrize("name", IMAGES)
def test_forward_and_backward(name):
    torch.manual_seed(0)
    net, size = build(name, classes=7), min(MODELS[name].image_size, 64)
    out = net(torch.randn(2, 3, size, size))
    assert out.shape == (2, 7)
    F.cross_entropy(out, torch.tensor([0, 6])).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in net.parameters())


@pytest.mark.parametrize("name", FAMILIES)
def test_images_of_one_channel(name):
    net, size = on_paper(name, channels=1), MODELS[name].image_size
    assert len(net(torch.randn(2, 1, size, size, device="meta"))) == 2
    first = next(m for m in net.modules() if isinstance(m, nn.Conv2d))
    assert count(on_paper(name)) - count(net) == 2 * first.weight.numel()


# --- what a count does not show -------------------------------------------------------------------------------------


def test_wide_blocks_are_pre_activated():
    x = torch.randn(2, 4, 6, 6)
    same, wider = PreActivated(4, 4, 1), PreActivated(4, 8, 2)
    for block in (same, wider):
        nn.init.zeros_(block.conv2.weight)
    assert torch.equal(same(x), x)
    assert torch.equal(wider(x), wider.shortcut(F.relu(F.batch_norm(x, None, None, training=True))))


def test_imagenet_resnets_have_the_names_of_torchvision():
    layers = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    for depth, blocks in layers.items():
        names = {"conv1.weight", *(f"bn1.{n}" for n in norm), "fc.weight", "fc.bias"}
        for i, many in enumerate(blocks, start=1):
            for j in range(many):
                for k in (1, 2) if depth == 18 else (1, 2, 3):
                    names |= {f"layer{i}.{j}.conv{k}.weight", *(f"layer{i}.{j}.bn{k}.{n}" for n in norm)}
            if depth == 50 or i > 1:
                names |= {f"layer{i}.0.downsample.0.weight", *(f"layer{i}.0.downsample.1.{n}" for n in norm)}
        assert set(on_paper(f"imagenet-resnet{depth}").state_dict()) == names


def test_bottlenecks_stride_in_the_middle():
    first = on_paper("imagenet-resnet50").layer2[0]
    assert [conv.stride for conv in (first.conv1, first.conv2, first.conv3)] == [(1, 1), (2, 2), (1, 1)]


@pytest.mark.parametrize(
    ("name", "layer", "fan"),
    [
        ("resnet20", "body.6.conv1", 32 * 9),
        ("wrn28-2", "body.8.conv1", 64 * 9),
        ("vgg6", "body.7", 128 * 9),
        ("small-cnn", "body.6", 16 * 9),
        ("imagenet-resnet18", "layer2.0.conv1", 128 * 9),  # of the output: the input's is 64 * 9
    ],
)
def test_first_weights(name, layer, fan):
    torch.manual_seed(0)
    net = build(name, 10)
    weight = net.get_submodule(layer).weight
    assert weight.std().item() == pytest.approx(math.sqrt(2 / fan), rel=4 / math.sqrt(2 * weight.numel()))
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert (module.weight == 1).all()
        if getattr(module, "bias", None) is not None:
            assert (module.bias == 0).all()


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet18", "resnet20-b", ""])
def test_an_unknown_name_gets_the_list(name):
    with pytest.raises(
        ValueError, match=f"no model called '{name}': use one of resnet20, .*resnet110-B, .*small-cnn, .*or"
    ):
        build(name, 10)


def test_bad_choices():
    with pytest.raises(ValueError, match="no ResNet18 for CIFAR: the depths are 20, 32"):
        cifar_resnet(18, 10)
    with pytest.raises(ValueError, match="shortcut must be 'A'"):
        cifar_resnet(20, 10, "C")
    with pytest.raises(ValueError, match="no ResNet34 for ImageNet: the depths are 18 and 50"):
        imagenet_resnet(34, 10)
    with pytest.raises(ValueError, match="no VGG11 for 32×32 images: the depths are 6, 16"):
        vgg(11, 10)
    for depth in (4, 18):
        with pytest.raises(ValueError, match=rf"no WideResNet of depth {depth}: use 6n \+ 4"):
            wide_resnet(depth, 2, 10)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's package on the path."""
    package = tmp_path / "own_nets"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "flat.py").write_text(
        "from torch import nn\nSIZE = 3\ndef linear(classes): return nn.Linear(4, classes)\n"
        "def nothing(classes): pass\ndef none(): pass\ndef odd(classes): raise ValueError('an odd number')"
    )
    (package / "broken.py").write_text("import a_library_that_is_not_there")
    monkeypatch.syspath_prepend(tmp_path)


def test_a_model_of_your_own(own):
    net = build("own_nets.flat:linear", classes=5)
    assert isinstance(net, nn.Linear) and net.out_features == 5


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("own_nets.missing:linear", r"no module called 'own_nets\.missing': install it, or put its folder"),
        ("nowhere.flat:linear", r"no module called 'nowhere\.flat'"),
        ("own_nets.flat.deeper:linear", r"no module called 'own_nets\.flat\.deeper'"),
        ("own_nets.flat:missing", r"own_nets\.flat has no function called 'missing'"),
        ("own_nets.flat:SIZE", r"own_nets\.flat has no function called 'SIZE'"),
        ("own_nets.flat:nothing", "own_nets.flat:nothing returned an object of type NoneType: let it return"),
        (
            "own_nets.flat:none",
            r"own_nets\.flat:none cannot be called with the number of classes: define none\(classes\)",
        ),
        ("own_nets.flat:odd", r"own_nets\.flat:odd: an odd number"),
        ("own_nets.flat:", "names no function: write 'package.module:function'"),
        (":linear", "names no function"),
        (".flat:linear", "names no function"),
    ],
)
def test_a_model_of_your_own_that_is_none(own, name, sentence):
    with pytest.raises(ValueError, match=sentence):
        build(name, 5)


def test_a_module_that_lacks_a_library_says_which(own):
    with pytest.raises(
        ImportError, match=r"own_nets\.broken cannot be imported: No module .*a_library_that_is_not_there"
    ):
        build("own_nets.broken:linear", 5)


def test_the_page_has_every_model_with_its_count():
    page = (Path(__file__).parent.parent / "docs" / "models.md").read_text()
    rows = re.findall(r"^\| `([\w-]+)` \| ([\d,]+) \|", page, re.MULTILINE)
    assert rows == [(name, f"{count(on_paper(name, 1 if 'small' in name else 3)):,}") for name in IMAGES]
