"""The paper's models and a few small ones, one file a family, and all of them by name."""

from .convnets import small_cnn, vgg
from .imagenet_resnet import imagenet_resnet
from .registry import MODELS, Model, build
from .resnet import cifar_resnet, wide_resnet

__all__ = ["MODELS", "Model", "build", "cifar_resnet", "imagenet_resnet", "small_cnn", "vgg", "wide_resnet"]
