"""Every model by name, and your own by the place where it is defined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import nn

from ...imported import imported, takes

DEPTHS = (20, 32, 44, 56, 110)


@dataclass(frozen=True)
class Model:
    """One net: ``make(classes, channels=3)`` builds it, for images of ``image_size`` × ``image_size`` pixels.

    Other kinds of data have no image size; for language, ``classes`` is the size of the vocabulary;
    for speech, that of the alphabet, and ``channels`` are the features of a frame.
    """

    name: str
    description: str
    make: Callable[..., nn.Module]
    image_size: int | None
    kind: str = "images"


def build(name: str, classes: int, channels: int = 3) -> nn.Module:
    """Builds the model of that name for images of so many channels.

    ``"package.module:function"`` is a model of your own: ``function(classes)``, which has to know its channels itself.
    """
    check_name(name)
    return _own(name, classes) if ":" in name else MODELS[name].make(classes, channels=channels)


def check_name(name: str) -> None:
    """Refuses a name that is neither in ``MODELS`` nor that of a function."""
    if ":" not in name and name not in MODELS:
        raise ValueError(
            f"no model called {name!r}: use one of {', '.join(MODELS)}, or 'package.module:function' for your own"
        )


def set_dropout(net: nn.Module, p: float) -> None:
    """Sets the share of units that all ``nn.Dropout`` layers of the net drop."""
    if not 0 <= p < 1:
        raise ValueError(f"dropout is the share of units dropped: at least 0 and below 1, not {p!r}")
    layers = [module for module in net.modules() if isinstance(module, nn.Dropout)]
    if not layers:
        raise ValueError(
            f"{type(net).__name__} has no dropout layers: method=dropout:{p:g} puts one on its dense layer"
        )
    for layer in layers:
        layer.p = p


def _own(name: str, classes: int) -> nn.Module:
    make = imported(name, "classes")
    if not takes(make, classes):
        function = name.partition(":")[2]
        raise ValueError(f"{name} cannot be called with the number of classes: define {function}(classes)")
    try:
        net = make(classes)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    if not isinstance(net, nn.Module):
        raise ValueError(f"{name} returned an object of type {type(net).__name__}: let it return an nn.Module")
    return net


def _of(family: str, function: str, *arguments: int, **options: Any) -> Callable[..., nn.Module]:
    """A function of this package's module ``family``, which is imported when a net is built."""

    def make(classes: int, channels: int = 3) -> nn.Module:
        found: Callable[..., nn.Module] = getattr(import_module(f".{family}", __package__), function)
        return found(*arguments, classes, channels=channels, **options)

    return make


_models = [
    *(
        Model(f"resnet{d}", f"ResNet{d}, shortcuts padded with zeros (A)", _of("resnet", "cifar_resnet", d), 32)
        for d in DEPTHS
    ),
    *(
        Model(f"resnet{d}-B", f"ResNet{d}, shortcuts projected (B)", _of("resnet", "cifar_resnet", d, shortcut="B"), 32)
        for d in DEPTHS
    ),
    Model(
        "resnet20-tf",
        "ResNet20 (A), batch-norm as TensorFlow has it",
        _of("resnet", "tensorflow_resnet", 20),
        32,
    ),
    *(
        Model(f"wrn{d}-{k}", f"WideResNet of depth {d}, {k} times as wide", _of("resnet", "wide_resnet", d, k), 32)
        for d, k in ((28, 2), (28, 4), (28, 10), (20, 2))
    ),
    Model("vgg6", "VGG6 with batch-norm, six convolutions", _of("convnets", "vgg", 6), 32),
    Model("vgg16", "VGG16 with batch-norm and one linear layer", _of("convnets", "vgg", 16), 32),
    Model("imagenet-resnet18", "ResNet18 for ImageNet", _of("resnet", "imagenet_resnet", 18), 224),
    Model("imagenet-resnet50", "ResNet50 for ImageNet", _of("resnet", "imagenet_resnet", 50), 224),
    Model("small-cnn", "three convolutions for the 8×8 digits", _of("convnets", "small_cnn"), 8),
    Model("small-cnn-group", "the same with group-norm", _of("convnets", "small_cnn", groups=4), 8),
    Model("lstm-large", "language model, LSTM 2×1500 (Zaremba's large)", _of("lstm", "large_lstm"), None, "language"),
    Model("lstm-small", "language model, LSTM 1×300", _of("lstm", "small_lstm"), None, "language"),
    Model("lstm-tiny", "language model, LSTM 2×32, for trying things out", _of("lstm", "tiny_lstm"), None, "language"),
    Model("gpt-2x128", "language model, transformer 2×128", _of("gpt", "GPT", 2, 128), None, "language"),
    Model("gpt-6x384", "language model, transformer 6×384", _of("gpt", "GPT", 6, 384), None, "language"),
    Model(
        "gpt-tiny",
        "language model, transformer 1×64, for trying things out",
        _of("gpt", "GPT", 1, 64),
        None,
        "language",
    ),
    Model("sgcn-190", "speech, Simple Gated ConvNet 12×190 (paper: 1.09 M)", _of("sgcn", "sgcn", 190), None, "speech"),
    Model("sgcn-300", "speech, Simple Gated ConvNet 12×300 (paper: 2.24 M)", _of("sgcn", "sgcn", 300), None, "speech"),
    Model(
        "sgcn-small", "speech, Simple Gated ConvNet 5×32", _of("sgcn", "sgcn", 32, layers=5, fronts=4), None, "speech"
    ),
]
MODELS: dict[str, Model] = {model.name: model for model in _models}
