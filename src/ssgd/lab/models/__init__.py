"""The paper's models, one file a family, and all of them by name."""

from .imagenet_resnet import imagenet_resnet
from .registry import MODELS, Model, build
from .resnet import cifar_resnet
from .small import small_cnn
from .vgg import vgg
from .wide_resnet import wide_resnet

__all__ = ["MODELS", "Model", "build", "cifar_resnet", "imagenet_resnet", "small_cnn", "vgg", "wide_resnet"]
